//! Tests of the run context: it is in the user's message, the same in every step, and nowhere after the run.

use proptest::prelude::*;

use super::*;
use crate::turn::samples::{conversation, story, turns};

const RUN_CONTEXT: &str = "[Memory context]\n- colour: blue";

fn render_with_context(turns: &[Arc<Turn>], draft: &TurnDraft, run_context: Option<&str>) -> [Vec<Value>; 2] {
    render_both(&Prompt { run_context, ..prompt(turns, Some(draft)) })
}

#[test]
fn it_stands_before_the_text_in_the_same_message_in_both_dialects() {
    let next = draft("run-1", "which colour?");
    let text = format!("{RUN_CONTEXT}\n\nwhich colour?");
    let [openai, anthropic] = render_with_context(&[], &next, Some(RUN_CONTEXT));
    assert_eq!(openai, [json!({"role": "user", "content": text})]);
    assert_eq!(anthropic, [json!({"role": "user", "content": [{"type": "text", "text": text}]})]);
}

#[test]
fn it_follows_what_the_last_turn_left_in_that_message() {
    let turn = seal_stopped(interrupted_draft("run-1"), PartialPolicy::Discard);
    let text = format!("{}\n\n{RUN_CONTEXT}\n\nand now?", turn.note().unwrap());
    let [openai, anthropic] = render_with_context(&[turn], &draft("run-2", "and now?"), Some(RUN_CONTEXT));
    assert_eq!(openai.last().unwrap()["content"], text);
    let last = anthropic.last().unwrap()["content"].as_array().unwrap().clone();
    assert_eq!(last.last().unwrap()["text"], text);
    assert_eq!(last[0]["type"], "tool_result");
}

#[test]
fn a_blank_one_leaves_no_trace() {
    let next = draft("run-1", "hello");
    assert_eq!(render_with_context(&[], &next, Some(" \n")), render_with_context(&[], &next, None));
}

/// All messages as one text, to search for the run context.
fn join_messages(messages: &[Value]) -> String {
    messages.iter().map(|message| format!("{message}\n")).collect()
}

proptest! {
    #[test]
    fn taking_it_away_leaves_the_view_as_it_was(before in conversation(), story in story()) {
        let (turns, draft) = (turns(&before), story.draft("run-now"));
        let mark = "<<the run context>>";
        let plain = render_with_context(&turns, &draft, None);
        let marked = render_with_context(&turns, &draft, Some(mark));
        for (plain, marked) in plain.iter().zip(&marked) {
            let (plain, marked) = (join_messages(plain), join_messages(marked));
            prop_assert_eq!(marked.matches(mark).count(), 1);
            prop_assert_eq!(marked.replacen(&format!("{mark}\\n\\n"), "", 1), plain);
        }
    }

    #[test]
    fn a_step_more_keeps_every_byte_before_it(before in conversation(), first in "[a-z ]{1,9}", answer in "[a-z]{1,9}") {
        let turns = turns(&before);
        let mut draft = TurnDraft::new(run_id("run-now"), format!("x{first}"));
        let [openai, anthropic] = render_with_context(&turns, &draft, Some(RUN_CONTEXT));
        let calls = draft.finish_message(AssistantMessage::new(Vec::new(), answer, vec![ToolCall::from_wire("c", "ls", json!({}))]));
        draft.begin_call(&calls[0].id);
        draft.finish_call(&calls[0].id, CallResult::new(CallEnd::Ok, "x.txt"));
        let [later_openai, later_anthropic] = render_with_context(&turns, &draft, Some(RUN_CONTEXT));
        prop_assert_eq!(&later_openai[..openai.len()], &openai[..]);
        prop_assert_eq!(&later_anthropic[..anthropic.len()], &anthropic[..]);
    }
}
