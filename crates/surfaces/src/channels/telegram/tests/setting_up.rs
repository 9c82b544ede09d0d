//! Configurations that are refused, and what the probe tells.

use quell_testkit::networks::telegram::{FakeTelegram, TOKEN};
use rstest::rstest;
use serde_json::{Value, json};

use super::{assert_keeps_the_secret, bot, config};
use crate::channels::seam::recording::RecordingEar;
use crate::channels::seam::{Lost, Network};
use crate::channels::telegram::Telegram;

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
    let bad = Telegram::new("tg", &config(keys)).unwrap_err();
    assert_eq!((bad.channel.as_str(), bad.key), ("tg", key));
}

#[rstest]
#[case(None)]
#[case(Some(""))]
#[case(Some("1234567"))]
#[case(Some("bot1234567:AAFakeTokenOfTheTestkit"))]
#[case(Some("1234567:AAFakeToken/../of the testkit"))]
#[case(Some("1234567:short"))]
fn a_token_that_is_none_is_refused_and_not_shown(#[case] token: Option<&str>) {
    let mut config = config(json!({}));
    config.token = token.map(Into::into);
    let bad = Telegram::new("tg", &config).unwrap_err();
    assert_eq!(bad.key, "token_env");
    let told = format!("{bad} {bad:?}");
    assert!(token.is_none_or(|token| token.is_empty() || !told.contains(token)), "{told}");
}

#[tokio::test]
async fn a_token_that_telegram_does_not_take_is_refused_and_not_shown() {
    let fake = FakeTelegram::start().await;
    let mut config = config(json!({"api_base": fake.base_url()}));
    config.token = Some("1234567:AAAnotherTokenThatIsWrong_0123456789".into());
    let telegram = Telegram::new("tg", &config).unwrap();
    let lost = telegram.listen(&RecordingEar::new()).await;
    assert!(matches!(&lost, Lost::Refused(why) if why.contains("@BotFather")), "{lost:?}");
    let trouble = telegram.probe().await.unwrap_err();
    for told in [format!("{lost} {lost:?} {trouble} {trouble:?}"), format!("{telegram:?}")] {
        assert!(!told.contains("AnotherToken"), "{told}");
    }
}

#[tokio::test]
async fn the_probe_says_who_the_bot_is_and_what_is_in_its_way() {
    let fake = FakeTelegram::start().await;
    let telegram = bot(&fake);
    assert_eq!(telegram.probe().await.unwrap(), "@quell_test_bot (id 1234567)");
    assert!(fake.calls("getUpdates").is_empty(), "it must not disturb who listens");
    fake.set_webhook("https://example.org/hook");
    let trouble = telegram.probe().await.unwrap_err().to_string();
    assert!(trouble.contains("webhook"), "{trouble}");
    fake.stop().await;
    let trouble = telegram.probe().await.unwrap_err().to_string();
    assert!(trouble.contains("cannot be reached"), "{trouble}");
    assert_keeps_the_secret(&trouble);
}

#[tokio::test]
async fn the_api_may_be_under_a_path() {
    let fake = FakeTelegram::start().await;
    for base in [format!("{}/", fake.base_url()), format!("{}/elsewhere/", fake.base_url())] {
        let telegram = Telegram::new("tg", &config(json!({"api_base": base}))).unwrap();
        assert_eq!(telegram.probe().await.is_ok(), !base.contains("elsewhere"));
        assert_eq!(telegram.api.post("getMe").build().unwrap().url().as_str(), format!("{base}bot{TOKEN}/getMe"));
    }
}
