//! What is wrong with a configuration is said, with what would be right.

use rstest::rstest;
use serde_json::{Value, json};

use super::config;
use crate::channels::matrix::Matrix;

#[rstest]
#[case(json!({"api_base": null}), "api_base", "the URL of your homeserver")]
#[case(json!({"api_base": "matrix.example.org"}), "api_base", "is no URL")]
#[case(json!({"api_base": "ftp://matrix.example.org"}), "api_base", "not the URL of a web server")]
#[case(json!({"api_base": "https://matrix.example.org/?a=b"}), "api_base", "goes on after the path")]
#[case(json!({"api_base": "https://matrix.example.org/_matrix/client/v3"}), "api_base", "ends before /_matrix")]
#[case(json!({"allow": ["alice"]}), "allow", "@name:server")]
#[case(json!({"operators": ["@:"]}), "operators", "@name:server")]
#[case(json!({"join": ["town"]}), "join", "#alias:server")]
#[case(json!({"join": ["#town"]}), "join", "#alias:server")]
#[case(json!({"nick": "quell"}), "nick", "remove it")]
#[case(json!({"app_token_env": "A"}), "app_token_env", "remove it")]
fn a_mistake_is_named_with_what_would_be_right(#[case] wishes: Value, #[case] key: &str, #[case] words: &str) {
    let config = config("https://matrix.example.org", "token", wishes);
    let bad = Matrix::new("office", &config).unwrap_err();
    assert_eq!((bad.channel.as_str(), bad.key), ("office", key));
    let told = bad.to_string();
    assert!(told.contains(words), "{told}");
}

#[test]
fn a_token_is_needed() {
    let mut config = config("https://matrix.example.org", "token", json!({}));
    config.token = None;
    assert_eq!(Matrix::new("office", &config).unwrap_err().key, "token_env");
}

#[test]
fn what_is_right_is_taken() {
    let wishes = json!({
        "api_base": "https://example.org/below/", "allow": ["*", "@alice:quell.test", "@bob:[::1]:8448"],
        "operators": ["@alice:quell.test"], "join": ["!id:quell.test", "!of-version-12", "#town:quell.test"],
    });
    let matrix = Matrix::new("office", &config("", "token of nobody", wishes)).unwrap();
    assert!(!format!("{matrix:?}").contains("token of nobody"));
}
