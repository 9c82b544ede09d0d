//! Valid and invalid sections of the configuration.

use reqwest::header::AUTHORIZATION;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::ProviderKind;

fn provider_from_json(section: serde_json::Value) -> Result<Provider, ProviderConfigError> {
    let config: ProviderConfig = serde_json::from_value(section).unwrap();
    Provider::new("p", config, &HttpClients::default())
}

#[rstest]
#[case(json!({"kind": "anthropic"}), "https://api.anthropic.com/v1")]
#[case(json!({"kind": "anthropic", "base_url": "http://h/v1"}), "http://h/v1")]
#[case(json!({"kind": "openai"}), "https://api.openai.com/v1")]
#[case(json!({"kind": "openai", "base_url": "http://h/v1?a=b#x"}), "http://h/v1?a=b")]
fn the_base_url_is_that_of_the_section_or_the_dialect(#[case] section: serde_json::Value, #[case] base_url: &str) {
    assert_eq!(provider_from_json(section).unwrap().base_url.as_str(), base_url);
}

#[test]
fn a_model_has_its_own_price_or_that_of_all_others() {
    let price = |input: f64| json!({"input": input, "output": 2.0});
    let prices = json!({"meta/m": price(1.0), "*": price(3.0)});
    let provider = provider_from_json(json!({"kind": "openai", "prices": prices})).unwrap();
    let input = |model| provider.price_of(model).map(|price| price.input);
    assert_eq!((input("meta/m"), input("other")), (Some(1.0), Some(3.0)));
    assert!(provider_from_json(json!({"kind": "openai"})).unwrap().price_of("m").is_none());
}

#[rstest]
#[case::price(json!({"kind": "openai", "prices": {"m": {"input": -1.0, "output": 0.0}}}), "numbers from 0 on")]
#[case::no_url(json!({"kind": "openai", "base_url": "localhost"}), "is no URL")]
#[case::scheme(json!({"kind": "openai", "base_url": "ftp://h/v1"}), "neither http nor https")]
#[case::no_path(json!({"kind": "openai", "base_url": "data:x"}), "neither http nor https")]
#[case::demo(json!({"kind": "demo"}), "not started")]
#[case::header(json!({"kind": "openai", "base_url": "http://h", "headers": {"a b": "c"}}), "`a b` is no header name")]
#[case::value(json!({"kind": "openai", "base_url": "http://h", "headers": {"a": "c\nd"}}), "value of header `a`")]
#[case::zero(json!({"kind": "openai", "base_url": "http://h", "idle_timeout_s": 0}), "idle_timeout_s is 0")]
#[case::negative(json!({"kind": "openai", "base_url": "http://h", "connect_timeout_s": -1}), "connect_timeout_s is -1")]
#[case::huge(json!({"kind": "openai", "base_url": "http://h", "header_timeout_s": 1e300}), "header_timeout_s")]
fn a_wrong_section_says_what_is_wrong(#[case] section: serde_json::Value, #[case] problem: &str) {
    let error = provider_from_json(section).unwrap_err();
    assert_eq!(error.provider, "p");
    assert!(error.problem.contains(problem), "{error}");
}

#[rstest]
#[case::unknown_key(json!({"kind": "openai", "base": "x"}))]
#[case::key_in_the_file(json!({"kind": "openai", "api_key": "sk"}))]
#[case::unknown_kind(json!({"kind": "wrong"}))]
#[case::no_kind(json!({}))]
fn an_invalid_provider_section_is_refused(#[case] section: serde_json::Value) {
    assert!(serde_json::from_value::<ProviderConfig>(section).is_err());
}

#[test]
fn the_defaults_of_a_section_are_those_of_new() {
    let section: ProviderConfig = serde_json::from_value(json!({"kind": "openai"})).unwrap();
    assert_eq!(format!("{section:?}"), format!("{:?}", ProviderConfig::new(ProviderKind::OPENAI)));
    assert_eq!((section.max_retries, section.connect_timeout_s), (5, 10.0));
}

#[test]
fn the_schema_names_every_key_but_the_secret() {
    let schema = schemars::schema_for!(ProviderConfig);
    let mut keys: Vec<_> = schema.as_value()["properties"].as_object().unwrap().keys().cloned().collect();
    keys.sort_unstable();
    let expected = "api_key_env api_key_file base_url connect_timeout_s header_timeout_s headers idle_timeout_s kind max_retries prices";
    assert_eq!(keys.join(" "), expected);
}

#[test]
fn the_anthropic_dialect_has_its_own_header_for_the_key_and_names_its_version() {
    let mut config = ProviderConfig::new(ProviderKind::ANTHROPIC);
    config.api_key = Some("k".to_owned().into());
    let (headers, _) = request_headers(&config).unwrap();
    assert_eq!(headers["x-api-key"], "k");
    assert_eq!(headers["anthropic-version"], "2023-06-01");
    assert!(headers["x-api-key"].is_sensitive(), "or it would be printed in logs");
    assert!(!headers.contains_key(AUTHORIZATION));
}

#[test]
fn a_key_goes_out_as_a_bearer_unless_a_header_says_otherwise() {
    let mut config = ProviderConfig::new(ProviderKind::OPENAI);
    config.api_key = Some("k".to_owned().into());
    let bearer = |config: &ProviderConfig| request_headers(config).unwrap().0[AUTHORIZATION].clone();
    assert_eq!(bearer(&config), "Bearer k");
    assert!(bearer(&config).is_sensitive(), "or it would be printed in logs");
    config.headers.insert("Authorization".to_owned(), "Basic x".to_owned());
    assert_eq!(bearer(&config), "Basic x");
}
