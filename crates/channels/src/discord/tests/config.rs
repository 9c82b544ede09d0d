//! Configuration keys of a Discord channel.

use rstest::rstest;

use super::*;

#[rstest]
#[case::no_token("token_env", "Developer Portal", |config: &mut ChannelConfig| config.token = None)]
#[case::a_line_break("token_env", "copy it anew", |config: &mut ChannelConfig| config.token = Some("secret\nsecret".into()))]
#[case::no_url("api_base", "no URL", |config: &mut ChannelConfig| config.api_base = Some("discord.com".into()))]
#[case::another_scheme("api_base", "https://", |config: &mut ChannelConfig| config.api_base = Some("ftp://discord.com".into()))]
#[case::without_encryption("api_base", "https://", |config: &mut ChannelConfig| config.api_base = Some("http://discord.example/api/v10".into()))]
#[case::a_user("api_base", "neither a user", |config: &mut ChannelConfig| config.api_base = Some("https://me@discord.com/api/v10".into()))]
#[case::a_query("api_base", "nor a query", |config: &mut ChannelConfig| config.api_base = Some("https://discord.com/api/v10?v=10".into()))]
#[case::a_nick("nick", "remove it", |config: &mut ChannelConfig| config.nick = Some("quell".into()))]
#[case::a_room("join", "remove it", |config: &mut ChannelConfig| config.join = vec!["#general".into()])]
#[case::a_second_token("app_token_env", "remove it", |config: &mut ChannelConfig| config.app_token_env = Some("X".into()))]
#[case::a_name("allow", "Copy User ID", |config: &mut ChannelConfig| config.allow = vec!["anna".into()])]
#[case::an_operator("operators", "anna#1234", |config: &mut ChannelConfig| config.operators = vec!["anna#1234".into()])]
fn invalid_settings_are_named(#[case] key: &str, #[case] text: &str, #[case] change: fn(&mut ChannelConfig)) {
    let mut config = discord_config("http://127.0.0.1:1/api/v10");
    change(&mut config);
    let error = DiscordNetwork::new("work", &config).unwrap_err();
    assert_eq!((error.channel.as_str(), error.key), ("work", key));
    assert!(error.problem.contains(text) && !error.problem.contains("secret"), "{error}");
}

#[rstest]
#[case("https://discord.com/api/v10")]
#[case("http://localhost:8080/api/v10/")]
#[case("http://[::1]:8080")]
fn an_api_base_with_encryption_or_on_this_machine_is_taken(#[case] base: &str) {
    DiscordNetwork::new("work", &discord_config(base)).unwrap();
}

#[test]
fn an_operator_is_named_by_a_number_and_the_token_is_not_shown() {
    let mut config = discord_config("https://discord.com/api/v10");
    config.operators = vec!["80351110224678912".to_owned()];
    let discord = DiscordNetwork::new("work", &config).unwrap();
    assert!(!format!("{discord:?}").contains(TOKEN));
}
