//! Configuration keys of a Matrix channel.

use rstest::rstest;
use serde_json::{Value, json};

use super::matrix_config;
use crate::matrix::MatrixNetwork;

#[rstest]
#[case(json!({"api_base": null}), "api_base", "the URL of your homeserver")]
#[case(json!({"api_base": "matrix.example.org"}), "api_base", "is no URL")]
#[case(json!({"api_base": "ftp://matrix.example.org"}), "api_base", "not the URL of a web server")]
#[case(json!({"api_base": "https://matrix.example.org/?a=b"}), "api_base", "query or a fragment")]
#[case(json!({"api_base": "https://matrix.example.org/_matrix/client/v3"}), "api_base", "must end before /_matrix")]
#[case(json!({"allow": ["alice"]}), "allow", "@name:server")]
#[case(json!({"operators": ["@:"]}), "operators", "@name:server")]
#[case(json!({"join": ["town"]}), "join", "#alias:server")]
#[case(json!({"join": ["#town"]}), "join", "#alias:server")]
#[case(json!({"nick": "quell"}), "nick", "remove it")]
#[case(json!({"app_token_env": "A"}), "app_token_env", "remove it")]
fn a_mistake_is_named_with_what_would_be_right(#[case] extra_keys: Value, #[case] key: &str, #[case] words: &str) {
    let config = matrix_config("https://matrix.example.org", "token", extra_keys);
    let error = MatrixNetwork::new("office", &config).unwrap_err();
    assert_eq!((error.channel.as_str(), error.key), ("office", key));
    let text = error.to_string();
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_token_is_needed() {
    let mut config = matrix_config("https://matrix.example.org", "token", json!({}));
    config.token = None;
    assert_eq!(MatrixNetwork::new("office", &config).unwrap_err().key, "token_env");
}

#[test]
fn valid_settings_are_accepted() {
    let extra_keys = json!({
        "api_base": "https://example.org/below/", "allow": ["*", "@alice:quell.test", "@bob:[::1]:8448"],
        "operators": ["@alice:quell.test"], "join": ["!id:quell.test", "!of-version-12", "#town:quell.test"],
    });
    let matrix = MatrixNetwork::new("office", &matrix_config("", "token of nobody", extra_keys)).unwrap();
    assert!(!format!("{matrix:?}").contains("token of nobody"));
}
