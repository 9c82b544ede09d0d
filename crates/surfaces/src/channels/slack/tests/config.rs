//! Keys, and who the account is.

use rstest::rstest;

use super::*;

const HERE: &str = "http://127.0.0.1:1/api";

#[rstest]
#[case::a_key_of_irc("server", "", |config: &mut ChannelConfig| config.server = Some("x".into()))]
#[case::a_name("allow", "U...", |config: &mut ChannelConfig| config.allow = vec!["alice".into()])]
#[case::an_operator("operators", "\"C123\"", |config: &mut ChannelConfig| config.operators = vec!["C123".into()])]
#[case::no_token("token_env", "xoxb-", |config: &mut ChannelConfig| config.token = None)]
#[case::no_app_token("app_token_env", "connections:write", |config: &mut ChannelConfig| config.app_token = None)]
#[case::swapped("token_env", "xoxb-", |config: &mut ChannelConfig| config.token = Some(APP_TOKEN.into()))]
#[case::swapped_too("app_token_env", "xapp-", |config: &mut ChannelConfig| config.app_token = Some(BOT_TOKEN.into()))]
#[case::a_line_break("token_env", "copy it anew", |config: &mut ChannelConfig| config.token = Some("a\nb".into()))]
#[case::no_url("api_base", "no URL", |config: &mut ChannelConfig| config.api_base = Some("slack".into()))]
#[case::in_the_clear("api_base", "https://", |config: &mut ChannelConfig| config.api_base = Some("http://example.org".into()))]
#[case::a_query("api_base", "query", |config: &mut ChannelConfig| config.api_base = Some("https://example.org/?a=b".into()))]
fn what_is_wrong_is_named(#[case] key: &str, #[case] told: &str, #[case] change: fn(&mut ChannelConfig)) {
    let mut config = config(HERE);
    change(&mut config);
    let bad = Slack::new("work", &config).unwrap_err();
    assert_eq!((bad.channel.as_str(), bad.key), ("work", key));
    assert!(bad.problem.contains(told), "{bad}");
}

#[test]
fn what_is_right_is_taken() {
    let mut config = config(HERE);
    config.allow = vec!["U012ABC".into(), "W012ABC".into()];
    config.api_base = None;
    let slack = Slack::new("work", &config).unwrap();
    let shown = format!("{slack:?}");
    assert!(!shown.contains("fakeToken"), "{shown}");
}

#[tokio::test]
async fn a_probe_says_who_and_where() {
    let stage = Stage::new().await;
    assert_eq!(stage.slack.probe().await, Ok(format!("quell ({BOT}) in Fake")));
    stage.server.grant("chat:write,files:write");
    let line = stage.slack.probe().await.unwrap();
    assert!(line.contains("without signs on messages, for want of the scope reactions:write"), "{line}");
    assert!(line.contains("files:read"), "{line}");
    stage.server.grant("files:write");
    let Trouble(trouble) = stage.slack.probe().await.unwrap_err();
    assert!(trouble.contains("add the scope chat:write"), "{trouble}");
}

#[tokio::test]
async fn a_probe_sees_that_socket_mode_is_off() {
    let stage = Stage::new().await;
    stage.server.switch_off();
    let Trouble(trouble) = stage.slack.probe().await.unwrap_err();
    assert!(trouble.contains("switch on Socket Mode"), "{trouble}");
}

#[tokio::test]
async fn a_probe_without_a_server_shows_no_token() {
    let stage = Stage::new().await;
    stage.server.go_away().await;
    let Trouble(trouble) = stage.slack.probe().await.unwrap_err();
    assert!(trouble.contains("cannot be reached") && !trouble.contains("fakeToken"), "{trouble}");
}

#[tokio::test]
async fn a_page_of_something_in_between_is_not_repeated() {
    let stage = Stage::new().await;
    stage.server.fault("auth.test", Fault::Page(502));
    let Trouble(trouble) = stage.slack.probe().await.unwrap_err();
    assert_eq!(trouble, "Slack has failed: HTTP 502 without an answer of the API");
}
