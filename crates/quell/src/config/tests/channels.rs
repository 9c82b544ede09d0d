//! `[messages]`, `[routing]` and `[channels]`: errors with their place, and tokens that are never shown.

use std::path::Path;

use rstest::rstest;

use super::super::{LoadedConfig, environment, parse_config};
use super::{assert_refused, parse_error};

#[rstest]
#[case("[messages]\ntimeout_scale_cap = 0\n", "quell.toml:2:21:", "leave the key out")]
#[case("[messages]\nmessage_timeout = 1\n", "quell.toml:2:1:", "did you mean `message_timeout_s`?")]
#[case("[[routing.keywords]]\nword = [\"x\"]\n", "quell.toml:2:1:", "did you mean `words`?")]
#[case("[[routing.keywords]]\nwords = [\"x\"]\nhint = \"code\"\n", "quell.toml:3:8:", "has no route")]
#[case("[[routing.keywords]]\nwords = []\nhint = \"code\"\n", "quell.toml:2:9:", "give at least one")]
#[case(
    "[[routing.model_routes]]\nhint = \"a\"\nprovider = \"demo\"\nmodel = \"m\"\n\
     [[routing.model_routes]]\nhint = \"a\"\nprovider = \"demo\"\nmodel = \"n\"\n",
    "quell.toml:6:8:",
    "never taken"
)]
#[case(
    "[[routing.model_routes]]\nhint = \"a\"\nprovider = \"nobody\"\nmodel = \"m\"\n",
    "quell.toml:3:12:",
    "there is no [providers.nobody]"
)]
#[case("[channels.x]\nkind = \"icq\"\n", "quell.toml:2:8:", "unknown variant `icq`")]
#[case("[channels.x]\nallow = [\"*\"]\n", "quell.toml:1:1:", "missing field `kind`")]
#[case("[channels.x]\nkind = \"irc\"\nnik = \"q\"\n", "quell.toml:3:1:", "did you mean `nick`?")]
#[case("[channels.\"a:b\"]\nkind = \"irc\"\n", "quell.toml:1:1:", "letters, digits")]
#[case("[channels.x]\nkind = \"irc\"\nagent = \"ghost\"\n", "quell.toml:3:9:", "there is no [agents.ghost]")]
#[case(
    "[channels.x]\nkind = \"irc\"\ninterrupt_on_new_message = true\non_busy = \"queue\"\n",
    "quell.toml:4:11:",
    "contradicts"
)]
fn a_mistake_is_named_with_its_place(#[case] text: &str, #[case] place: &str, #[case] says: &str) {
    assert_refused(text, place, says);
}

#[rstest]
#[case("token = \"123:very-secret\"", "token_env")]
#[case("app_token = \"xapp-very-secret\"", "app_token_env")]
#[case("password = \"very-secret\"", "token_env")]
#[case("token_env = \"T\"\ntoken_file = \"very-secret\"", "excludes token_env")]
#[case("api_base = \"https://me:very-secret@h/\"", "which would be shown")]
fn a_token_in_the_file_is_refused_and_not_echoed(#[case] line: &str, #[case] says: &str) {
    let error = parse_error(&format!("[channels.x]\nkind = \"telegram\"\n{line}\n"));
    assert!(error.contains(says) && !error.contains("very-secret"), "{error}");
}

#[test]
fn a_channel_may_name_the_agent_that_is_there_without_any() {
    parse_config(Path::new("quell.toml"), "[channels.x]\nkind = \"irc\"\nagent = \"main\"\n").unwrap();
}

#[test]
fn tokens_are_read_from_their_files_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "123:very-secret\n").unwrap();
    let text = format!("[channels.x]\nkind = \"telegram\"\ntoken_file = {file:?}\nallow = [\"*\"]\n");
    let mut config = parse_config(Path::new("quell.toml"), &text).unwrap();
    environment::apply_environment(&mut config).unwrap();
    assert!(config.channels["x"].token.is_some() && config.channels["x"].app_token.is_none());
    let loaded = LoadedConfig { config, file: None };
    assert!(loaded.summary().ends_with("; channels x"), "{}", loaded.summary());
    let flow = loaded.flow_settings();
    let (shown, debug) = (toml::to_string_pretty(&loaded.config).unwrap(), format!("{loaded:?} {flow:?}"));
    assert!(shown.contains("token_file = ") && !shown.contains("very-secret") && !debug.contains("very-secret"));
    let again = parse_config(Path::new("shown.toml"), &shown).unwrap();
    assert_eq!(again.channels["x"].allow, ["*"]);
}

#[test]
fn a_token_file_that_is_missing_is_named() {
    let text = "[channels.x]\nkind = \"telegram\"\ntoken_file = \"/nowhere/token\"\n";
    let mut config = parse_config(Path::new("quell.toml"), text).unwrap();
    let error = format!("{:#}", environment::apply_environment(&mut config).unwrap_err());
    assert!(error.contains("token_file of [channels.x], /nowhere/token"), "{error}");
}

#[test]
fn the_rules_of_the_file_choose_the_model() {
    let text = "[[routing.keywords]]\nwords = [\"Code\"]\nhint = \"a\"\n\
                [[routing.model_routes]]\nhint = \"a\"\nprovider = \"demo\"\nmodel = \"demo\"\n";
    let config = parse_config(Path::new("quell.toml"), text).unwrap();
    let flow = LoadedConfig { config, file: None }.flow_settings();
    assert_eq!(flow.routing.model_for("my code").as_deref(), Some("demo/demo"));
}
