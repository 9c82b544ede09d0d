//! Tests of reasoning that is kept for people and sent to no model.

use super::*;

/// A message with unsigned reasoning, which no provider accepts back.
fn unsigned_message(thinking: &str, text: &str) -> AssistantMessage {
    AssistantMessage::new(vec![Thinking::Shown { text: thinking.into(), signature: None }], text, Vec::new())
}

fn thinking_and_text(turn: &Turn) -> Vec<(String, String)> {
    turn.history().into_iter().filter(|m| m.role == "assistant").map(|m| (m.thinking, m.text)).collect()
}

fn pair(thinking: &str, text: &str) -> (String, String) {
    (thinking.into(), text.into())
}

#[test]
fn people_read_the_reasoning_that_they_saw_stream() {
    let mut draft = draft();
    draft.push_thinking("First I ");
    draft.push_thinking("look.");
    draft.finish_message(unsigned_message("First I look.", "I look."));
    draft.push_thinking("It says nothing.");
    draft.finish_message(unsigned_message("It says nothing.", ""));
    draft.push_thinking("Cut o");
    let turn = Turn::from_stored(&seal_stopped(draft).to_stored()).unwrap();
    let expected = [pair("First I look.", "I look."), pair("It says nothing.", ""), pair("Cut o", "")];
    assert_eq!(thinking_and_text(&turn), expected);
    let items = serde_json::to_string(turn.items()).unwrap();
    assert!(!items.contains("First I look."), "models read the items: {items}");
}

#[test]
fn reasoning_that_a_provider_takes_back_is_stored_once() {
    let mut draft = draft();
    draft.push_thinking("Signed.");
    let signed = Thinking::Shown { text: "Signed.".into(), signature: Some("proof".into()) };
    draft.finish_message(AssistantMessage::new(vec![signed], "Yes.", Vec::new()));
    let stored = seal(draft, &Verdict::Completed, PartialPolicy::Discard).to_stored();
    assert_eq!(stored.matches("Signed.").count(), 1, "{stored}");
    assert_eq!(thinking_and_text(&Turn::from_stored(&stored).unwrap()), [pair("Signed.", "Yes.")]);
}
