//! Which keys contradict each other, and which changes a listener notices.

use rstest::rstest;

use super::*;

fn telegram_config() -> ChannelConfig {
    let keys = serde_json::json!({"kind": "telegram", "token_env": "BOT", "allow": ["1"]});
    serde_json::from_value(keys).expect("a channel")
}

#[rstest]
#[case::colon("matrix:x")]
#[case::dot("a.b")]
#[case::space("my bot")]
#[case::empty("")]
#[case::other_letters("канал")]
fn a_name_that_keys_could_not_begin_with_is_refused(#[case] name: &str) {
    let bad = telegram_config().validate(name).expect_err("a bad name");
    assert_eq!((bad.key, bad.problem.contains("letters, digits")), ("", true), "{bad}");
}

#[test]
fn the_longest_name_is_taken_and_a_longer_one_is_not() {
    assert_eq!(telegram_config().validate(&"x".repeat(MAX_NAME_BYTES)), Ok(()));
    assert!(telegram_config().validate(&"x".repeat(MAX_NAME_BYTES + 1)).is_err());
}

#[rstest]
#[case::two_tokens(ChannelConfig { token_file: Some("t".into()), ..telegram_config() }, "token_file")]
#[case::two_ways(
    ChannelConfig { interrupt_on_new_message: true, on_busy: Some(OnBusy::Queue), ..telegram_config() },
    "on_busy"
)]
#[case::everybody(ChannelConfig { operators: vec!["*".to_owned()], ..telegram_config() }, "operators")]
#[case::everybody_approves(ChannelConfig { approvers: vec!["*".to_owned()], ..telegram_config() }, "approvers")]
#[case::endless_wait(ChannelConfig { debounce_ms: MAX_DEBOUNCE_MS + 1, ..telegram_config() }, "debounce_ms")]
#[case::password(ChannelConfig { api_base: Some("https://me:hush@h/".to_owned()), ..telegram_config() }, "api_base")]
#[case::password_in_reply(ChannelConfig { reply_url: Some("https://hush@h/".to_owned()), ..telegram_config() }, "reply_url")]
fn keys_that_contradict_each_other_are_named(#[case] config: ChannelConfig, #[case] key: &str) {
    let bad = config.validate("bot").expect_err("a bad channel");
    assert_eq!(bad.key, key);
    assert!(!bad.to_string().contains("hush"), "{bad}");
}

#[test]
fn both_words_for_an_interruption_may_be_said_at_once() {
    let both = ChannelConfig { interrupt_on_new_message: true, on_busy: Some(OnBusy::Interrupt), ..telegram_config() };
    assert_eq!(both.validate("bot"), Ok(()));
}

#[rstest]
#[case::variable(telegram_config(), "token_env", "export BOT=")]
#[case::file(ChannelConfig { token_env: None, token_file: Some("t".into()), ..telegram_config() }, "token_file", "t is empty")]
#[case::second_one(
    ChannelConfig { token: Some("a".to_owned().into()), app_token_env: Some("APP".to_owned()), ..telegram_config() },
    "app_token_env",
    "export APP="
)]
fn a_token_that_is_named_and_not_there_is_missed(#[case] config: ChannelConfig, #[case] key: &str, #[case] text: &str) {
    let bad = config.validate_tokens("bot").expect_err("a bad channel");
    assert!(bad.key == key && bad.problem.contains(text), "{bad}");
    let with_all =
        ChannelConfig { token: Some("a".to_owned().into()), app_token: Some("b".to_owned().into()), ..config };
    assert_eq!(with_all.validate_tokens("bot"), Ok(()));
}

#[test]
fn a_new_token_is_a_change_and_the_same_file_again_is_none() {
    let with = |token: &str| ChannelConfig { token: Some(token.to_owned().into()), ..telegram_config() };
    assert!(with("a").has_same_settings(&with("a")));
    assert!(!with("a").has_same_settings(&with("b")));
    assert!(!with("a").has_same_settings(&telegram_config()));
    assert!(!telegram_config().has_same_settings(&ChannelConfig { mention_only: true, ..telegram_config() }));
}

#[rstest]
#[case::by_default(MessageSettings::default(), 1200)]
#[case::fewer_rounds_than_the_cap(MessageSettings { max_tool_iterations: 2, ..MessageSettings::default() }, 600)]
#[case::no_tools_is_one_round(MessageSettings { max_tool_iterations: 0, ..MessageSettings::default() }, 300)]
#[case::cap_of_one(MessageSettings { timeout_scale_cap: 1, ..MessageSettings::default() }, 300)]
#[case::more_than_a_clock_counts(MessageSettings { message_timeout_s: u64::MAX, ..MessageSettings::default() }, u64::MAX)]
fn an_answer_has_time_for_its_rounds(#[case] settings: MessageSettings, #[case] seconds: u64) {
    assert_eq!(settings.reply_timeout(), Duration::from_secs(seconds));
    assert_eq!(settings.first_problem(), None);
}

#[rstest]
#[case(MessageSettings { message_timeout_s: 0, ..MessageSettings::default() }, "message_timeout_s")]
#[case(MessageSettings { timeout_scale_cap: 0, ..MessageSettings::default() }, "timeout_scale_cap")]
#[case(MessageSettings { history_budget_chars: 0, ..MessageSettings::default() }, "history_budget_chars")]
fn a_zero_that_lets_nothing_through_is_named(#[case] settings: MessageSettings, #[case] key: &str) {
    assert_eq!(settings.first_problem().map(|(key, _)| key), Some(key));
}
