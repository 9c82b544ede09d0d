//! Configuration keys of a Discord channel.

use rstest::rstest;

use super::*;

fn config_error_after(change: impl FnOnce(&mut ChannelConfig)) -> ChannelConfigError {
    let mut config = discord_config("http://127.0.0.1:1/api/v10");
    change(&mut config);
    DiscordNetwork::new("work", &config).unwrap_err()
}

#[test]
fn without_a_token_it_says_where_one_is_found() {
    let error = config_error_after(|config| config.token = None);
    assert_eq!((error.channel.as_str(), error.key), ("work", "token_env"));
    assert!(error.problem.contains("Developer Portal"), "{error}");
}

#[test]
fn a_token_with_a_line_break_is_none() {
    let error = config_error_after(|config| config.token = Some("secret\nsecret".into()));
    assert_eq!(error.key, "token_env");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[rstest]
#[case::no_url("discord.com")]
#[case::another_scheme("ftp://discord.com")]
#[case::without_encryption("http://discord.example/api/v10")]
#[case::a_user("https://me@discord.com/api/v10")]
#[case::a_query("https://discord.com/api/v10?v=10")]
fn an_api_base_that_would_give_the_token_away_is_refused(#[case] base: &str) {
    assert_eq!(config_error_after(|config| config.api_base = Some(base.to_owned())).key, "api_base");
}

#[rstest]
#[case("https://discord.com/api/v10")]
#[case("http://localhost:8080/api/v10/")]
#[case("http://[::1]:8080")]
fn an_api_base_with_encryption_or_on_this_machine_is_taken(#[case] base: &str) {
    DiscordNetwork::new("work", &discord_config(base)).unwrap();
}

#[test]
fn keys_of_other_networks_are_refused() {
    assert_eq!(config_error_after(|config| config.nick = Some("quell".to_owned())).key, "nick");
    assert_eq!(config_error_after(|config| config.join = vec!["#general".to_owned()]).key, "join");
    assert_eq!(config_error_after(|config| config.app_token_env = Some("X".to_owned())).key, "app_token_env");
}

#[test]
fn people_are_named_by_their_numbers() {
    assert_eq!(config_error_after(|config| config.allow = vec!["anna".to_owned()]).key, "allow");
    assert_eq!(config_error_after(|config| config.operators = vec!["anna#1234".to_owned()]).key, "operators");
    let mut config = discord_config("https://discord.com/api/v10");
    config.operators = vec!["80351110224678912".to_owned()];
    DiscordNetwork::new("work", &config).unwrap();
}

#[test]
fn the_token_is_not_shown() {
    let discord = DiscordNetwork::new("work", &discord_config("https://discord.com/api/v10")).unwrap();
    assert!(!format!("{discord:?}").contains(TOKEN));
}
