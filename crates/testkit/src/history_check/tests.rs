//! The history checkers against the corpus.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use super::corpus::{self, ModelDialect};
use super::{HistoryRule, HistoryViolation, anthropic, gemini, openai, responses};

fn check_history(dialect: ModelDialect, body: &Value) -> Vec<HistoryViolation> {
    match dialect {
        ModelDialect::OpenAi => openai::check(body),
        ModelDialect::OpenAiResponses => responses::check(body),
        ModelDialect::Anthropic => anthropic::check(body),
        ModelDialect::Gemini => gemini::check(body),
    }
}

fn broken_rules(violations: &[HistoryViolation]) -> BTreeSet<&'static str> {
    violations.iter().map(|v| v.rule.as_str()).collect()
}

#[rstest]
#[case::openai(ModelDialect::OpenAi, 45)]
#[case::responses(ModelDialect::OpenAiResponses, 25)]
#[case::anthropic(ModelDialect::Anthropic, 25)]
#[case::gemini(ModelDialect::Gemini, 25)]
fn every_broken_history_is_rejected_for_exactly_its_reasons(#[case] dialect: ModelDialect, #[case] at_least: usize) {
    let cases = corpus::broken_histories(dialect);
    assert!(cases.len() >= at_least, "{} cases", cases.len());
    for case in &cases {
        let found = check_history(dialect, &case.request_body(dialect));
        let expected: BTreeSet<&str> = case.breaks.iter().map(String::as_str).collect();
        assert!(!expected.is_empty() && !case.from.is_empty(), "{}", case.name);
        assert_eq!(broken_rules(&found), expected, "{}: {found:#?}", case.name);
    }
}

#[rstest]
#[case::openai(ModelDialect::OpenAi, 12)]
#[case::responses(ModelDialect::OpenAiResponses, 8)]
#[case::anthropic(ModelDialect::Anthropic, 10)]
#[case::gemini(ModelDialect::Gemini, 8)]
fn every_valid_history_is_accepted(#[case] dialect: ModelDialect, #[case] at_least: usize) {
    let cases = corpus::valid_histories(dialect);
    assert!(cases.len() >= at_least, "{} cases", cases.len());
    for case in &cases {
        assert_eq!(check_history(dialect, &case.request_body(dialect)), [], "{}", case.name);
    }
}

/// Without any one rule the checker accepts some broken history: each rule has a case that only it rejects.
#[rstest]
#[case::openai(ModelDialect::OpenAi, &[HistoryRule::ResultsNotFirst, HistoryRule::UnsignedThinking, HistoryRule::ThinkingLast, HistoryRule::ReasoningTwice])]
#[case::responses(ModelDialect::OpenAiResponses, &[HistoryRule::ResultsNotFirst])]
#[case::anthropic(ModelDialect::Anthropic, &[HistoryRule::SystemNotFirst, HistoryRule::ReasoningTwice])]
#[case::gemini(ModelDialect::Gemini, &[HistoryRule::SystemNotFirst, HistoryRule::ThinkingLast, HistoryRule::ReasoningTwice])]
fn losing_any_rule_lets_a_broken_history_through(
    #[case] dialect: ModelDialect,
    #[case] not_of_this_dialect: &[HistoryRule],
) {
    let cases = corpus::broken_histories(dialect);
    for rule in HistoryRule::ALL.iter().filter(|rule| !not_of_this_dialect.contains(rule)) {
        let only_this_rule = |case: &&corpus::HistoryCase| {
            let found = check_history(dialect, &case.request_body(dialect));
            !found.is_empty() && found.iter().all(|violation| violation.rule == *rule)
        };
        assert!(cases.iter().find(only_this_rule).is_some(), "no case is rejected by {rule:?} alone");
    }
}

#[rstest]
#[case(json!(null))]
#[case(json!([]))]
#[case(json!({}))]
#[case(json!({"model": "m", "messages": "hello"}))]
#[case(json!({"model": "m", "input": [null, 1, "text", [], {}, {"type": "reasoning"}, {"type": "message", "content": [null]}]}))]
#[case(json!({"contents": [null, 1, "text", [], {}, {"role": "model", "parts": [null, {"functionCall": 1}]}]}))]
#[case(json!({"model": "m", "messages": [null, 1, "text", [], {}]}))]
#[case(json!({"model": "m", "messages": [{"role": "assistant", "tool_calls": [null, {"function": 1}], "content": 3}]}))]
#[case(json!({"model": "m", "messages": [{"role": "user", "content": [null, {"type": "tool_result"}]}], "tools": 1}))]
fn nonsense_is_refused_without_a_panic(#[case] body: Value) {
    for dialect in ModelDialect::ALL {
        assert!(!check_history(dialect, &body).is_empty(), "{dialect:?}");
    }
}
