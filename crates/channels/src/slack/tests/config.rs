//! Configuration keys of a Slack channel, and its probe.

use rstest::rstest;

use super::*;

const LOCAL_API_URL: &str = "http://127.0.0.1:1/api";

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
#[case::in_the_clear_below_localhost("api_base", "https://", |config: &mut ChannelConfig| config.api_base = Some("http://slack.localhost".into()))]
#[case::a_query("api_base", "query", |config: &mut ChannelConfig| config.api_base = Some("https://example.org/?a=b".into()))]
fn invalid_settings_are_named(#[case] key: &str, #[case] text: &str, #[case] change: fn(&mut ChannelConfig)) {
    let mut config = slack_config(LOCAL_API_URL);
    change(&mut config);
    let error = SlackNetwork::new("work", &config).unwrap_err();
    assert_eq!((error.channel.as_str(), error.key), ("work", key));
    assert!(error.problem.contains(text), "{error}");
}

#[test]
fn valid_settings_are_accepted() {
    let mut config = slack_config(LOCAL_API_URL);
    config.allow = vec!["U012ABC".into(), "W012ABC".into()];
    config.api_base = None;
    let slack = SlackNetwork::new("work", &config).unwrap();
    let shown = format!("{slack:?}");
    assert!(!shown.contains("fakeToken"), "{shown}");
}

#[tokio::test]
async fn a_probe_says_who_and_where() {
    let fixture = SlackFixture::new().await;
    assert_eq!(fixture.network.probe().await, Ok(format!("quell ({BOT}) in Fake")));
    fixture.server.update(|state| state.scopes = "chat:write,files:write".to_owned());
    let line = fixture.network.probe().await.unwrap();
    assert!(line.contains("without reactions on messages, because the scope reactions:write is missing"), "{line}");
    assert!(line.contains("files:read"), "{line}");
    fixture.server.update(|state| state.scopes = "files:write".to_owned());
    let NetworkError(problem) = fixture.network.probe().await.unwrap_err();
    assert!(problem.contains("add the scope chat:write"), "{problem}");
}

#[tokio::test]
async fn a_probe_sees_that_socket_mode_is_off() {
    let fixture = SlackFixture::new().await;
    fixture.server.disable_socket_mode();
    let NetworkError(problem) = fixture.network.probe().await.unwrap_err();
    assert!(problem.contains("switch on Socket Mode"), "{problem}");
}

#[tokio::test]
async fn a_probe_without_a_server_shows_no_token() {
    let fixture = SlackFixture::new().await;
    fixture.server.stop_listening().await;
    let NetworkError(problem) = fixture.network.probe().await.unwrap_err();
    assert!(problem.contains("cannot be reached") && !problem.contains("fakeToken"), "{problem}");
}

#[tokio::test]
async fn a_page_of_something_in_between_is_not_repeated() {
    let fixture = SlackFixture::new().await;
    fixture.server.inject_fault("auth.test", FakeSlackFault::HtmlPage(502));
    let NetworkError(problem) = fixture.network.probe().await.unwrap_err();
    assert_eq!(problem, "Slack has failed: HTTP 502 without an answer of the API");
}
