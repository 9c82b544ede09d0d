//! Checks the sanitiser against the golden tables.

use std::collections::BTreeSet;

use super::super::{EmptyReplyReason, NarrationPolicy, SanitisedReply, SanitiserRules, sanitise_reply};
use super::{GoldenCase, NARRATION, ORDINARY, PROTOCOL, parse_golden_cases, rules_keeping_narration, tools};

fn assert_golden_cases(rows: &[GoldenCase], rules: &SanitiserRules<'_>) {
    let mut wrong = Vec::new();
    for GoldenCase { name, input, expected } in rows {
        let expected = SanitisedReply {
            text: expected.unwrap_or_default().to_owned(),
            empty_reason: expected.is_none().then_some(EmptyReplyReason::OnlyProtocol),
        };
        let sanitised = sanitise_reply(input, rules);
        if sanitised != expected {
            wrong.push(format!("{name}:\n{input}\nexpected {expected:?}\ngot      {sanitised:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong\n\n{}", wrong.len(), rows.len(), wrong.join("\n\n"));
}

#[test]
fn protocol_is_taken_out() {
    let rows = parse_golden_cases(PROTOCOL);
    assert!(rows.len() >= 70, "{} rows", rows.len());
    assert_golden_cases(&rows, &rules_keeping_narration(&tools()));
}

#[test]
fn ordinary_answers_stay_as_they_are() {
    let rows = parse_golden_cases(ORDINARY);
    assert!(rows.len() >= 80, "{} rows", rows.len());
    assert!(rows.iter().all(|row| row.expected == Some(row.input)));
    assert_golden_cases(&rows, &rules_keeping_narration(&tools()));
    assert_golden_cases(&rows, &rules_keeping_narration(&BTreeSet::new()));
}

#[test]
fn narration_is_dropped_when_asked_for() {
    let (rows, tools) = (parse_golden_cases(NARRATION), tools());
    assert!(rows.len() >= 7, "{} rows", rows.len());
    assert_golden_cases(&rows, &SanitiserRules { tools: &tools, narration_policy: NarrationPolicy::Drop });
}

#[test]
fn a_blank_reply_says_that_it_was_blank() {
    for blank in ["", " ", "\n\n\t \r\n"] {
        assert_eq!(
            sanitise_reply(blank, &rules_keeping_narration(&tools())),
            SanitisedReply { text: String::new(), empty_reason: Some(EmptyReplyReason::Blank) }
        );
    }
}

#[test]
fn a_bare_call_of_an_unknown_tool_is_an_answer() {
    let call = r#"{"name": "shell", "arguments": {"command": "ls"}}"#;
    assert_eq!(sanitise_reply(call, &rules_keeping_narration(&BTreeSet::new())).text, call);
}
