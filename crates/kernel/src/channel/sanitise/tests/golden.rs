//! Golden tables.

use std::collections::BTreeSet;

use super::super::{Cleaned, Narration, Rules, Why, finished};
use super::{NARRATION, ORDINARY, PROTOCOL, Row, keep, rows, tools};

fn check(rows: &[Row], rules: &Rules<'_>) {
    let mut wrong = Vec::new();
    for Row { name, input, left } in rows {
        let expected =
            Cleaned { text: left.unwrap_or_default().to_owned(), instead: left.is_none().then_some(Why::OnlyProtocol) };
        let cleaned = finished(input, rules);
        if cleaned != expected {
            wrong.push(format!("{name}:\n{input}\nexpected {expected:?}\ngot      {cleaned:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong\n\n{}", wrong.len(), rows.len(), wrong.join("\n\n"));
}

#[test]
fn protocol_is_taken_out() {
    let rows = rows(PROTOCOL);
    assert!(rows.len() >= 70, "{} rows", rows.len());
    check(&rows, &keep(&tools()));
}

#[test]
fn ordinary_answers_stay_as_they_are() {
    let rows = rows(ORDINARY);
    assert!(rows.len() >= 80, "{} rows", rows.len());
    assert!(rows.iter().all(|row| row.left == Some(row.input)));
    check(&rows, &keep(&tools()));
    check(&rows, &keep(&BTreeSet::new()));
}

#[test]
fn narration_is_dropped_when_asked_for() {
    let (rows, tools) = (rows(NARRATION), tools());
    assert!(rows.len() >= 7, "{} rows", rows.len());
    check(&rows, &Rules { tools: &tools, narration: Narration::Drop });
}

#[test]
fn a_blank_reply_says_that_it_was_blank() {
    for blank in ["", " ", "\n\n\t \r\n"] {
        assert_eq!(finished(blank, &keep(&tools())), Cleaned { text: String::new(), instead: Some(Why::Nothing) });
    }
}

#[test]
fn a_bare_call_of_an_unknown_tool_is_an_answer() {
    let call = r#"{"name": "shell", "arguments": {"command": "ls"}}"#;
    assert_eq!(finished(call, &keep(&BTreeSet::new())).text, call);
}
