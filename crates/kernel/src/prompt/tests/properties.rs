//! Property tests over random histories: the next request is valid, and begins with the earlier ones.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::*;
use super::prompt;
use crate::turn::samples::{STREAM_MARKER, abort, conversation, ended, run_id, seal, story, turns};
use crate::turn::{CallResult, Compaction, Turn, TurnDraft};

fn next_draft() -> TurnDraft {
    TurnDraft::new(run_id("run-next"), "what now?".into())
}

fn openai(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<Value> {
    openai::build_messages(&Prompt { system: "Be brief.", ..prompt(turns, draft) })
}

fn anthropic(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<Value> {
    anthropic::build_request(&Prompt { system: "Be brief.", ..prompt(turns, draft) }).messages
}

fn responses(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<Value> {
    responses::build_input(&Prompt { system: "Be brief.", ..prompt(turns, draft) }).items
}

fn gemini(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<Value> {
    gemini::build_contents(&Prompt { system: "Be brief.", ..prompt(turns, draft) }).contents
}

fn assert_valid(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Result<(), TestCaseError> {
    let messages = openai(turns, draft);
    prop_assert_eq!(openai::check_messages(&messages), Ok(()), "{:#?}", messages);
    let messages = anthropic(turns, draft);
    prop_assert_eq!(anthropic::check_messages(&messages), Ok(()), "{:#?}", messages);
    let items = responses(turns, draft);
    prop_assert_eq!(responses::check_items(&items), Ok(()), "{:#?}", items);
    let contents = gemini(turns, draft);
    prop_assert_eq!(gemini::check_contents(&contents), Ok(()), "{:#?}", contents);
    Ok(())
}

/// All user text of a message list, in any format.
fn user_text(messages: &[Value]) -> String {
    let users = messages.iter().filter(|message| message["role"] == "user");
    let content = |message: &'_ Value| message.get("parts").unwrap_or(&message["content"]).clone();
    let contents: Vec<Value> = users.map(content).collect();
    let texts = contents.iter().flat_map(|content| match content {
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        content => content.as_str().into_iter().collect::<Vec<_>>(),
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

/// True when `later` begins with `earlier`, byte for byte; the last message may have grown at its end.
pub(super) fn begins_with(later: &[Value], earlier: &[Value]) -> bool {
    let Some((last, whole)) = earlier.split_last() else { return true };
    let bytes = |messages: &[Value]| messages.iter().map(Value::to_string).collect::<Vec<_>>();
    let Some(grown) = later.get(whole.len()) else { return false };
    bytes(&later[..whole.len()]) == bytes(whole) && has_grown(last, grown)
}

fn has_grown(from: &Value, to: &Value) -> bool {
    if from == to {
        return true;
    }
    let text = |before: &Value, after: &Value| match (before.as_str(), after.as_str()) {
        (Some(before), Some(after)) => after == before || after.starts_with(&format!("{before}\n\n")),
        _ => false,
    };
    let key = if from["parts"].is_array() { "parts" } else { "content" };
    match (&from[key], &to[key]) {
        (Value::Array(before), Value::Array(after)) => {
            let Some((last, whole)) = before.split_last() else { return false };
            let grown = after.get(whole.len());
            after.starts_with(whole) && grown.is_some_and(|g| g == last || text(&last["text"], &g["text"]))
        }
        (before, after) => from["role"] == to["role"] && from["role"] == "user" && text(before, after),
    }
}

/// Removes the `(continue)` message, which the Anthropic format needs after a final assistant message.
pub(super) fn without_continue_message(mut messages: Vec<Value>) -> Vec<Value> {
    let is_continue =
        |last: &Value| last["content"][0]["text"] == "(continue)" || last["parts"][0]["text"] == "(continue)";
    if messages.last().is_some_and(is_continue) {
        messages.pop();
    }
    messages
}

proptest! {
    #[test]
    fn any_draft_cut_anywhere_and_sealed_anyhow_is_valid(end in ended()) {
        for steps in 0..=end.story.steps.len() {
            let mut cut = end.clone();
            cut.story.steps.truncate(steps);
            let turn = Arc::new(cut.turn("run-0"));
            assert_valid(std::slice::from_ref(&turn), Some(&next_draft()))?;
            assert_valid(&[turn], None)?;
            assert_valid(&[], Some(&cut.story.draft("run-0")))?;
        }
    }

    #[test]
    fn any_conversation_is_valid_for_the_next_message(conversation in conversation()) {
        assert_valid(&turns(&conversation), Some(&next_draft()))?;
    }

    #[test]
    fn any_part_of_a_conversation_is_valid(conversation in conversation(), story in story()) {
        let turns = turns(&conversation);
        let draft = story.draft("run-next");
        for first in 0..=turns.len() {
            assert_valid(&turns[first..], Some(&draft))?;
        }
    }

    #[test]
    fn one_run_twice_in_a_view_is_still_valid(end in ended()) {
        let turn = Arc::new(end.turn("run-0"));
        assert_valid(&[turn.clone(), turn], Some(&end.story.draft("run-0")))?;
    }

    #[test]
    fn earlier_turns_keep_their_bytes_when_one_is_added(conversation in conversation()) {
        let turns = turns(&conversation);
        for count in 0..turns.len() {
            let (earlier, later) = (openai(&turns[..count], None), openai(&turns[..=count], None));
            prop_assert!(begins_with(&later, &earlier), "{later:#?} does not begin with {earlier:#?}");
            let earlier = without_continue_message(anthropic(&turns[..count], None));
            let later = anthropic(&turns[..=count], None);
            prop_assert!(begins_with(&later, &earlier), "{later:#?} does not begin with {earlier:#?}");
            let earlier = without_continue_message(gemini(&turns[..count], None));
            let later = gemini(&turns[..=count], None);
            prop_assert!(begins_with(&later, &earlier), "{later:#?} does not begin with {earlier:#?}");
            let (earlier, later) = (responses(&turns[..count], None), responses(&turns[..=count], None));
            prop_assert!(begins_with(&later, &earlier), "{later:#?} does not begin with {earlier:#?}");
        }
    }

    #[test]
    fn a_sealed_turn_extends_the_request_that_was_sent(
        conversation in conversation(), story in story(), abort in abort(),
    ) {
        let mut turns = turns(&conversation);
        let mut draft = story.draft("run-now");
        // A model request is made only when every call has its result and nothing streams.
        let open: Vec<_> = draft.calls().filter(|(_, _, end)| end.is_none()).map(|(id, _, _)| id.clone()).collect();
        open.iter().for_each(|id| draft.finish_call(id, CallResult::stopped("half")));
        draft.clear_partial();
        let sent = (openai(&turns, Some(&draft)), without_continue_message(anthropic(&turns, Some(&draft))));
        draft.push_text(&STREAM_MARKER.to_string());
        turns.push(Arc::new(seal(draft, &abort, PartialPolicy::Keep)));
        // An assistant message without calls is merged with the next one, so it may have grown as well.
        if sent.0.last().is_some_and(|last| last["role"] != "assistant") {
            prop_assert!(begins_with(&openai(&turns, Some(&next_draft())), &sent.0));
            prop_assert!(begins_with(&anthropic(&turns, Some(&next_draft())), &sent.1));
        }
    }

    #[test]
    fn a_stored_turn_renders_like_the_one_in_memory(conversation in conversation()) {
        let turns = turns(&conversation);
        let read = |turn: &Arc<Turn>| Arc::new(Turn::from_stored(&turn.to_stored()).unwrap());
        let stored: Vec<Arc<Turn>> = turns.iter().map(read).collect();
        let bytes = |messages: Vec<Value>| Value::Array(messages).to_string();
        prop_assert_eq!(bytes(openai(&stored, None)), bytes(openai(&turns, None)));
        prop_assert_eq!(bytes(anthropic(&stored, None)), bytes(anthropic(&turns, None)));
        prop_assert_eq!(bytes(responses(&stored, None)), bytes(responses(&turns, None)));
        prop_assert_eq!(bytes(gemini(&stored, None)), bytes(gemini(&turns, None)));
    }

    #[test]
    fn user_texts_are_always_in_the_prompt(conversation in conversation()) {
        let turns = turns(&conversation);
        for render in [openai, anthropic, responses, gemini] {
            let all_user_text = user_text(&render(&turns, Some(&next_draft())));
            let mut rest = all_user_text.as_str();
            let shown = conversation.iter().zip(&turns).filter(|(_, turn)| !turn.is_hidden_from_models());
            let texts = shown.flat_map(|(end, _)| end.story.user_texts()).filter(|text| !is_blank(text));
            for text in texts.chain(["what now?"]) {
                let at = rest.find(text);
                prop_assert!(at.is_some(), "{text:?} is missing in {all_user_text:?}");
                rest = &rest[at.unwrap_or(0) + text.len()..];
            }
        }
    }

    #[test]
    fn nothing_of_a_refused_turn_but_its_note_is_in_any_view(end in ended()) {
        let verdict = quell_protocol::Verdict::Failed { code: crate::turn::CODE_REFUSED.into(), message: "no".into() };
        let turn = Arc::new(seal(end.story.draft("run-0"), &verdict, end.policy));
        let note = turn.note().unwrap().to_owned();
        let turns = [turn];
        prop_assert_eq!(openai(&turns, Some(&next_draft()))[1..].to_vec(), [serde_json::json!({"role": "user", "content": format!("{note}\n\nwhat now?")})]);
        prop_assert_eq!(user_text(&anthropic(&turns, Some(&next_draft()))), format!("{note}\n\nwhat now?"));
        assert_valid(&turns, Some(&next_draft()))?;
    }

    #[test]
    fn discarded_text_is_in_no_view(mut conversation in conversation(), story in story()) {
        conversation.iter_mut().for_each(|end| end.policy = PartialPolicy::Discard);
        let turns = turns(&conversation);
        let draft = story.draft("run-next");
        for render in [openai, anthropic, responses, gemini] {
            let messages = render(&turns, Some(&draft));
            prop_assert!(!Value::Array(messages).to_string().contains(STREAM_MARKER));
        }
    }

    /// "History intact" of B10 in `docs/design/requirements.md`: a stop during the request or the answer changes no
    /// earlier message and stores no partial answer. The next request is valid and mentions the stop.
    #[test]
    fn b10_history_stays_intact_whenever_a_call_to_the_model_is_aborted(
        conversation in conversation(), story in story(), abort in abort(),
    ) {
        let mut turns = turns(&conversation);
        let before = (openai(&turns, None), without_continue_message(anthropic(&turns, None)));
        let draft = story.draft("run-now");
        let produced = draft.has_output();
        let turn = seal(draft, &abort, PartialPolicy::Discard);
        prop_assert_eq!(turn.final_text(), None);
        let superseded = matches!(&abort, quell_protocol::Verdict::Aborted { reason, .. } if reason.as_str() == "superseded");
        let stop_note = turn.note().map(str::to_owned);
        prop_assert_eq!(stop_note.is_none(), superseded && !produced);
        turns.push(Arc::new(turn));
        let after = (openai(&turns, Some(&next_draft())), anthropic(&turns, Some(&next_draft())));
        prop_assert!(begins_with(&after.0, &before.0));
        prop_assert!(begins_with(&after.1, &before.1));
        assert_valid(&turns, Some(&next_draft()))?;
        for messages in [after.0, after.1] {
            prop_assert!(stop_note.as_ref().is_none_or(|note| user_text(&messages).contains(note)));
        }
    }
}

proptest! {
    #[test]
    fn a_summary_stands_in_for_old_turns_and_every_request_stays_valid(
        before in conversation(), after in conversation(), kept in 0_usize..6,
    ) {
        let mut turns = turns(&before);
        let mut draft = next_draft();
        draft.set_compaction(Compaction { summary: "It was about boats.".into(), kept });
        assert_valid(&turns, Some(&draft))?;
        let shown = turns.len() - turns.len().saturating_sub(kept);
        prop_assert_eq!(visible_turn_count(&turns, Some(&draft)), shown);
        prop_assert!(user_text(&openai(&turns, Some(&draft))).contains("It was about boats."));
        let at_work = openai(&turns, Some(&draft));
        turns.push(Arc::new(seal(draft, &quell_protocol::Verdict::Completed, PartialPolicy::Discard)));
        let sealed = without_continue_message(openai(&turns, None));
        prop_assert!(begins_with(&sealed, &at_work), "{sealed:#?}\n{at_work:#?}");
        turns.extend(after.iter().enumerate().map(|(nth, end)| Arc::new(end.turn(&format!("later-{nth}")))));
        assert_valid(&turns, Some(&next_draft()))?;
        prop_assert_eq!(visible_turn_count(&turns, None), shown + 1 + after.len());
        let seen = turns.split_off(turns.len() - shown - 1 - after.len());
        let alone = openai(&seen, None);
        prop_assert!(user_text(&alone).contains("It was about boats."), "old turns are not needed");
    }
}
