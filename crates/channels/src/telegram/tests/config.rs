//! Configuration keys of a Telegram channel, and its probe.

use quell_testkit::networks::telegram::{FakeTelegram, TOKEN};
use rstest::rstest;
use serde_json::{Value, json};

use super::{assert_token_hidden, telegram_config, telegram_network};
use crate::network::test_support::RecordingInboundSink;
use crate::network::{ListenError, Network};
use crate::telegram::TelegramNetwork;

#[rstest]
#[case(json!({"allow": ["ann"]}), "allow")]
#[case(json!({"operators": ["@ann"]}), "operators")]
#[case(json!({"api_base": "nowhere"}), "api_base")]
#[case(json!({"api_base": "ftp://example.org"}), "api_base")]
#[case(json!({"api_base": "https://user:word@example.org"}), "api_base")]
#[case(json!({"api_base": "https://example.org/?token=x"}), "api_base")]
#[case(json!({"api_base": "data:text/plain,x"}), "api_base")]
#[case(json!({"server": "irc.example.org:6697"}), "server")]
#[case(json!({"join": ["#room"]}), "join")]
#[case(json!({"reply_url": "https://example.org"}), "reply_url")]
#[case(json!({"app_token_env": "X"}), "app_token_env")]
fn a_wrong_key_is_named(#[case] keys: Value, #[case] key: &str) {
    let error = TelegramNetwork::new("tg", &telegram_config(keys)).unwrap_err();
    assert_eq!((error.channel.as_str(), error.key), ("tg", key));
}

#[rstest]
#[case(None)]
#[case(Some(""))]
#[case(Some("1234567"))]
#[case(Some("bot1234567:AAFakeTokenOfTheTestkit"))]
#[case(Some("1234567:AAFakeToken/../of the testkit"))]
#[case(Some("1234567:short"))]
fn a_token_that_is_none_is_refused_and_not_shown(#[case] token: Option<&str>) {
    let mut config = telegram_config(json!({}));
    config.token = token.map(Into::into);
    let error = TelegramNetwork::new("tg", &config).unwrap_err();
    assert_eq!(error.key, "token_env");
    let text = format!("{error} {error:?}");
    assert!(token.is_none_or(|token| token.is_empty() || !text.contains(token)), "{text}");
}

#[tokio::test]
async fn a_token_that_telegram_does_not_take_is_refused_and_not_shown() {
    let fake = FakeTelegram::start().await;
    let mut config = telegram_config(json!({"api_base": fake.base_url()}));
    config.token = Some("1234567:AAAnotherTokenThatIsWrong_0123456789".into());
    let telegram = TelegramNetwork::new("tg", &config).unwrap();
    let lost = telegram.listen(&RecordingInboundSink::new()).await;
    assert!(matches!(&lost, ListenError::Refused(why) if why.contains("@BotFather")), "{lost:?}");
    let error = telegram.probe().await.unwrap_err();
    for text in [format!("{lost} {lost:?} {error} {error:?}"), format!("{telegram:?}")] {
        assert!(!text.contains("AnotherToken"), "{text}");
    }
}

#[tokio::test]
async fn the_probe_says_who_the_bot_is_and_what_is_in_its_way() {
    let fake = FakeTelegram::start().await;
    let telegram = telegram_network(&fake);
    assert_eq!(telegram.probe().await.unwrap(), "@quell_test_bot (id 1234567)");
    assert!(fake.calls("getUpdates").is_empty(), "it must not disturb who listens");
    fake.update(|state| state.webhook = "https://example.org/hook".to_owned());
    let error = telegram.probe().await.unwrap_err().to_string();
    assert!(error.contains("webhook"), "{error}");
    fake.stop().await;
    let error = telegram.probe().await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
    assert_token_hidden(&error);
}

#[tokio::test]
async fn the_api_may_be_under_a_path() {
    let fake = FakeTelegram::start().await;
    for base in [format!("{}/", fake.base_url()), format!("{}/elsewhere/", fake.base_url())] {
        let telegram = TelegramNetwork::new("tg", &telegram_config(json!({"api_base": base}))).unwrap();
        assert_eq!(telegram.probe().await.is_ok(), !base.contains("elsewhere"));
        assert_eq!(
            telegram.api.method_request("getMe").build().unwrap().url().as_str(),
            format!("{base}bot{TOKEN}/getMe")
        );
    }
}
