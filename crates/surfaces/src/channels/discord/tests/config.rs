//! Keys of `[channels.X]`.

use rstest::rstest;

use super::*;

fn problem(change: impl FnOnce(&mut ChannelConfig)) -> BadChannel {
    let mut config = config("http://127.0.0.1:1/api/v10");
    change(&mut config);
    Discord::new("work", &config).unwrap_err()
}

#[test]
fn without_a_token_it_says_where_one_is_found() {
    let bad = problem(|config| config.token = None);
    assert_eq!((bad.channel.as_str(), bad.key), ("work", "token_env"));
    assert!(bad.problem.contains("Developer Portal"), "{bad}");
}

#[test]
fn a_token_with_a_line_break_is_none() {
    let bad = problem(|config| config.token = Some("secret\nsecret".into()));
    assert_eq!(bad.key, "token_env");
    assert!(!bad.to_string().contains("secret"), "{bad}");
}

#[rstest]
#[case::no_url("discord.com")]
#[case::another_scheme("ftp://discord.com")]
#[case::without_encryption("http://discord.example/api/v10")]
#[case::a_user("https://me@discord.com/api/v10")]
#[case::a_query("https://discord.com/api/v10?v=10")]
fn an_api_base_that_would_give_the_token_away_is_refused(#[case] base: &str) {
    assert_eq!(problem(|config| config.api_base = Some(base.to_owned())).key, "api_base");
}

#[rstest]
#[case("https://discord.com/api/v10")]
#[case("http://localhost:8080/api/v10/")]
#[case("http://[::1]:8080")]
fn an_api_base_with_encryption_or_on_this_machine_is_taken(#[case] base: &str) {
    Discord::new("work", &config(base)).unwrap();
}

#[test]
fn keys_of_other_networks_are_refused() {
    assert_eq!(problem(|config| config.nick = Some("quell".to_owned())).key, "nick");
    assert_eq!(problem(|config| config.join = vec!["#general".to_owned()]).key, "join");
    assert_eq!(problem(|config| config.app_token_env = Some("X".to_owned())).key, "app_token_env");
}

#[test]
fn people_are_named_by_their_numbers() {
    assert_eq!(problem(|config| config.allow = vec!["anna".to_owned()]).key, "allow");
    assert_eq!(problem(|config| config.operators = vec!["anna#1234".to_owned()]).key, "operators");
    let mut config = config("https://discord.com/api/v10");
    config.operators = vec!["80351110224678912".to_owned()];
    Discord::new("work", &config).unwrap();
}

#[test]
fn the_token_is_not_shown() {
    let discord = Discord::new("work", &config("https://discord.com/api/v10")).unwrap();
    assert!(!format!("{discord:?}").contains(TOKEN));
}
