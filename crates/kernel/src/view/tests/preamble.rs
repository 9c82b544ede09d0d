//! What stands before the user's text while its run is at work: in its message, the same in every step, and nowhere after.

use proptest::prelude::*;

use super::*;
use crate::turn::sample::{Ended, conversation, story};

const BLOCK: &str = "[Memory context]\n- colour: blue";

fn with<'a>(turns: &'a [Arc<Turn>], draft: &'a TurnDraft, preamble: Option<&'a str>) -> [Vec<Value>; 2] {
    let prompt = Prompt { model: READER, system: "", turns, draft: Some(draft), preamble, sight: Sight::Blind };
    let (openai, anthropic) = (openai::messages(&prompt), anthropic::request(&prompt).messages);
    openai::check(&openai).unwrap();
    anthropic::check(&anthropic).unwrap();
    [openai, anthropic]
}

#[test]
fn it_stands_before_the_text_in_the_same_message_in_both_dialects() {
    let next = draft("run-1", "which colour?");
    let text = format!("{BLOCK}\n\nwhich colour?");
    let [openai, anthropic] = with(&[], &next, Some(BLOCK));
    assert_eq!(openai, [json!({"role": "user", "content": text})]);
    assert_eq!(anthropic, [json!({"role": "user", "content": [{"type": "text", "text": text}]})]);
}

#[test]
fn it_follows_what_the_last_turn_left_in_that_message() {
    let turn = stop(interrupted("run-1"), PartialPolicy::Discard);
    let text = format!("{}\n\n{BLOCK}\n\nand now?", turn.note().unwrap());
    let [openai, anthropic] = with(&[turn], &draft("run-2", "and now?"), Some(BLOCK));
    assert_eq!(openai.last().unwrap()["content"], text);
    let last = anthropic.last().unwrap()["content"].as_array().unwrap().clone();
    assert_eq!(last.last().unwrap()["text"], text);
    assert_eq!(last[0]["type"], "tool_result");
}

#[test]
fn a_blank_one_leaves_no_trace() {
    let next = draft("run-1", "hello");
    assert_eq!(with(&[], &next, Some(" \n")), with(&[], &next, None));
}

fn turns(conversation: &[Ended]) -> Vec<Arc<Turn>> {
    let turn = |(nth, end): (usize, &Ended)| Arc::new(end.turn(&format!("run-{nth}")));
    conversation.iter().enumerate().map(turn).collect()
}

/// All messages as one text, in which the block is looked for.
fn flat(messages: &[Value]) -> String {
    messages.iter().map(|message| format!("{message}\n")).collect()
}

proptest! {
    #[test]
    fn taking_it_away_leaves_the_view_as_it_was(before in conversation(), story in story()) {
        let (turns, draft) = (turns(&before), story.draft("run-now"));
        let mark = "<<the preamble>>";
        let plain = with(&turns, &draft, None);
        let marked = with(&turns, &draft, Some(mark));
        for (plain, marked) in plain.iter().zip(&marked) {
            let (plain, marked) = (flat(plain), flat(marked));
            prop_assert_eq!(marked.matches(mark).count(), 1);
            prop_assert_eq!(marked.replacen(&format!("{mark}\\n\\n"), "", 1), plain);
        }
    }

    #[test]
    fn a_step_more_keeps_every_byte_before_it(before in conversation(), first in "[a-z ]{1,9}", answer in "[a-z]{1,9}") {
        let turns = turns(&before);
        let mut draft = TurnDraft::new(run_id("run-now"), format!("x{first}"));
        let [openai, anthropic] = with(&turns, &draft, Some(BLOCK));
        let calls = draft.finish_message(AssistantMessage::new(Vec::new(), answer, vec![ToolCall::from_wire("c", "ls", json!({}))]));
        draft.begin_call(&calls[0].id);
        draft.finish_call(&calls[0].id, CallResult::new(CallEnd::Ok, "x.txt"));
        let [later_openai, later_anthropic] = with(&turns, &draft, Some(BLOCK));
        prop_assert_eq!(&later_openai[..openai.len()], &openai[..]);
        prop_assert_eq!(&later_anthropic[..anthropic.len()], &anthropic[..]);
    }
}
