//! Tests of prompts by example, in both formats. `properties` has random histories.

mod images;
mod properties;
mod run_context;

use std::sync::Arc;

use quell_protocol::{CallEnd, StopReason, Verdict};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::turn::samples::{READER_MODEL, aborted, run_id, seal};
use crate::turn::{
    ADDED_MESSAGE_REQUEST, AssistantMessage, COMPACTION_REQUEST, CallResult, Compaction, Thinking, ToolCall,
};

/// A prompt for [`READER_MODEL`] with nothing but a history.
fn prompt<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> Prompt<'a> {
    Prompt {
        model: READER_MODEL,
        system: "",
        turns,
        draft,
        run_context: None,
        time_zone: None,
        vision: Vision::TextOnly,
    }
}

/// The checked messages of a prompt in the formats of OpenAI and Anthropic.
fn render_both(prompt: &Prompt<'_>) -> [Vec<Value>; 2] {
    let (openai, anthropic) = (openai::build_messages(prompt), anthropic::build_request(prompt).messages);
    openai::check_messages(&openai).unwrap();
    anthropic::check_messages(&anthropic).unwrap();
    [openai, anthropic]
}

fn openai(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<Value> {
    let [openai, _] = render_both(&prompt(turns, draft));
    openai
}

fn anthropic(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<Value> {
    let [_, anthropic] = render_both(&prompt(turns, draft));
    anthropic
}

fn text_message(text: &str) -> AssistantMessage {
    AssistantMessage::new(Vec::new(), text, Vec::new())
}

fn calls_message(ids: &[&str]) -> AssistantMessage {
    let call = |id: &&str| ToolCall::from_wire(id, "shell", json!({"command": "ls"}));
    AssistantMessage::new(Vec::new(), "", ids.iter().map(call).collect())
}

/// The message with [`READER_MODEL`] as its author.
fn from_reader_model(message: AssistantMessage) -> AssistantMessage {
    AssistantMessage { model: Some(READER_MODEL.into()), ..message }
}

fn signed_thinking(text: &str) -> Thinking {
    Thinking::Shown { text: text.into(), signature: Some("proof".into()) }
}

fn draft(run: &str, user: &str) -> TurnDraft {
    TurnDraft::new(run_id(run), user.into())
}

fn seal_stopped(draft: TurnDraft, policy: PartialPolicy) -> Arc<Turn> {
    Arc::new(seal(draft, &aborted(StopReason::User), policy))
}

/// A draft that is interrupted between the two calls of a batch, with reasoning of all kinds.
fn interrupted_draft(run: &str) -> TurnDraft {
    let mut turn = draft(run, "look around");
    let thinking = vec![
        signed_thinking("First ls."),
        Thinking::Redacted { data: "ZW5j".into() },
        Thinking::Shown { text: "unsigned".into(), signature: None },
    ];
    let calls = calls_message(&["a", "b"]).calls().cloned().collect();
    let made = turn.finish_message(from_reader_model(AssistantMessage::new(thinking, "I look.", calls)));
    turn.begin_call(&made[0].id);
    turn.finish_call(&made[0].id, CallResult::new(CallEnd::Ok, "x.txt"));
    turn
}

fn in_zone(prompt: Prompt<'_>) -> Prompt<'_> {
    Prompt { time_zone: Some("Asia/Seoul"), ..prompt }
}

#[test]
fn a_message_begins_with_its_time_and_keeps_it_in_later_requests() {
    let timed = |run, text| draft(run, text).with_asked_at("2026-01-02T03:04:05.678901Z".to_owned());
    let first = timed("run-1", "hello");
    let line = "[Sent 2026-01-02 03:04:05 UTC; the time zone here is Asia/Seoul]";
    let [openai, _] = render_both(&Prompt { run_context: Some("Notes."), ..in_zone(prompt(&[], Some(&first))) });
    assert_eq!(openai, [json!({"role": "user", "content": format!("Notes.\n\n{line}\n\nhello")})]);
    let [before, _] = render_both(&in_zone(prompt(&[], Some(&first))));
    let mut first = first;
    first.finish_message(text_message("Hi."));
    let turns = [Arc::new(seal(first, &Verdict::Completed, PartialPolicy::Discard))];
    let next = timed("run-2", " ");
    let [after, _] = render_both(&in_zone(prompt(&turns, Some(&next))));
    assert_eq!(after[..before.len()], before, "the cache of the provider holds");
    assert_eq!(after.last().unwrap()["content"], format!("{line}\n\n(empty message)"));
}

#[test]
fn a_stopped_batch_in_both_dialects() {
    let turns = [seal_stopped(interrupted_draft("run-1"), PartialPolicy::Discard)];
    let last_text = format!("{}\n\nand now?", turns[0].note().unwrap());
    let not_started = CallResult::not_started().output;
    let next = draft("run-2", "and now?");
    let prompt = Prompt { system: "Be brief.", ..prompt(&turns, Some(&next)) };
    let [openai, anthropic] = render_both(&prompt);
    let call =
        |id| json!({"id": id, "type": "function", "function": {"name": "shell", "arguments": "{\"command\":\"ls\"}"}});
    assert_eq!(
        openai,
        [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "look around"}),
            json!({"role": "assistant", "content": "I look.", "tool_calls": [call("a"), call("b")]}),
            json!({"role": "tool", "tool_call_id": "a", "content": "x.txt"}),
            json!({"role": "tool", "tool_call_id": "b", "content": not_started}),
            json!({"role": "user", "content": last_text}),
        ]
    );
    assert_eq!(anthropic::build_request(&prompt).system, "Be brief.");
    let call = |id| json!({"type": "tool_use", "id": id, "name": "shell", "input": {"command": "ls"}});
    assert_eq!(
        anthropic,
        [
            json!({"role": "user", "content": [{"type": "text", "text": "look around"}]}),
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "First ls.", "signature": "proof"},
                {"type": "redacted_thinking", "data": "ZW5j"},
                {"type": "text", "text": "I look."},
                call("a"),
                call("b"),
            ]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "x.txt"},
                {"type": "tool_result", "tool_use_id": "b", "content": not_started, "is_error": true},
                {"type": "text", "text": last_text},
            ]}),
        ]
    );
}

#[test]
fn a_run_superseded_before_it_produced_anything_is_one_message_with_its_successor() {
    let superseded = Arc::new(seal(draft("run-1", "안녕"), &aborted(StopReason::Superseded), PartialPolicy::Discard));
    let next = draft("run-2", "무시해");
    assert_eq!(openai(&[superseded], Some(&next)), [json!({"role": "user", "content": "안녕\n\n무시해"})]);
}

#[rstest]
#[case(aborted(StopReason::User))]
#[case(aborted(StopReason::Superseded))]
#[case(Verdict::Failed { code: "compaction_failed".into(), message: String::new() })]
fn session_work_that_was_not_done_leaves_nothing_for_models(
    #[case] verdict: Verdict,
    #[values(COMPACTION_REQUEST, ADDED_MESSAGE_REQUEST)] request: &str,
) {
    let mut first = draft("run-1", "hello");
    first.finish_message(text_message("Hi."));
    let first = Arc::new(seal(first, &Verdict::Completed, PartialPolicy::Discard));
    let mut undone = draft("run-2", request);
    undone.push_text("It was ab");
    let undone = Arc::new(seal(undone, &verdict, PartialPolicy::Keep));
    let next = draft("run-3", "go on");
    let turns = [first, undone];
    assert_eq!(openai(&turns, Some(&next)), openai(&turns[..1], Some(&next)));
    assert_eq!(anthropic(&turns, Some(&next)), anthropic(&turns[..1], Some(&next)));
    let summary = Compaction::new(&turns, None, "Greetings.".to_owned(), 0).summary;
    assert_eq!((turns[1].size(), summary.as_str()), (0, "Greetings."));
}

#[test]
fn session_work_that_was_done_stays_in_the_prompt() {
    let mut added = draft("run-1", ADDED_MESSAGE_REQUEST);
    added.finish_message(text_message("The build is green."));
    let added = Arc::new(seal(added, &Verdict::Completed, PartialPolicy::Discard));
    let mut summarised = draft("run-2", COMPACTION_REQUEST);
    summarised.set_compaction(Compaction::new(&[], None, "Greetings.".to_owned(), 1));
    let stopped = seal_stopped(summarised, PartialPolicy::Discard);
    let seen = Value::Array(openai(&[added, stopped.clone()], None)).to_string();
    for text in [ADDED_MESSAGE_REQUEST, "The build is green.", COMPACTION_REQUEST, "Greetings.", "stopped on purpose"] {
        assert!(seen.contains(text), "{text:?} is missing in {seen}");
    }
}

#[test]
fn a_cut_message_is_shown_only_where_it_is_kept_and_then_marked() {
    let mut cut = draft("run-1", "count");
    cut.push_thinking("one at a time");
    cut.push_text("1, 2, 3");
    let next = draft("run-2", "go on");
    let shown = |policy| openai(&[seal_stopped(cut.clone(), policy)], Some(&next));
    let discarded = shown(PartialPolicy::Discard);
    assert_eq!(discarded.len(), 1);
    assert!(!discarded[0].to_string().contains("1, 2, 3"));
    let kept = shown(PartialPolicy::Keep);
    assert_eq!(kept[1], json!({"role": "assistant", "content": format!("1, 2, 3\n\n{INTERRUPTED_MARK}")}));
    assert!(kept[2]["content"].as_str().unwrap().ends_with("\n\ngo on"));
    assert!(!kept.iter().any(|message| message.to_string().contains("one at a time")));
}

#[test]
fn the_same_provider_ids_in_two_turns_become_distinct_and_stay_so() {
    let turn = |run: &str| {
        let mut turn = draft(run, "look");
        let made = turn.finish_message(calls_message(&["call_0"]));
        turn.finish_call(&made[0].id, CallResult::new(CallEnd::Ok, "x"));
        turn
    };
    let first = seal_stopped(turn("run-1"), PartialPolicy::Discard);
    let second = turn("run-2");
    let ids = |messages: &[Value]| {
        let calls = messages.iter().filter_map(|message| message["tool_calls"][0]["id"].as_str());
        calls.map(str::to_owned).collect::<Vec<_>>()
    };
    let at_work = ids(&openai(std::slice::from_ref(&first), Some(&second)));
    assert_eq!(at_work[0], "call_0");
    assert_ne!(at_work[1], "call_0");
    let sealed = seal_stopped(second, PartialPolicy::Discard);
    let later = draft("run-3", "go on");
    assert_eq!(ids(&openai(&[first, sealed], Some(&later))), at_work);
}

#[test]
fn invalid_call_ids_names_and_arguments_are_made_valid() {
    let mut odd = draft("run-1", " ");
    let call = |id: &str, tool: &str, arguments| ToolCall::from_wire(id, tool, arguments);
    let calls = vec![
        call("ü", "functions.read file", json!("{not json")),
        call(&"x".repeat(41), "", Value::Null),
        call("c", &"long".repeat(50), json!([1])),
    ];
    let made = odd.finish_message(AssistantMessage::new(Vec::new(), "", calls));
    odd.finish_call(&made[0].id, CallResult::new(CallEnd::Ok, " \n"));
    let messages = anthropic(&[], Some(&odd));
    let calls = &messages[1]["content"];
    assert_eq!(
        (&calls[0]["name"], &calls[0]["input"]),
        (&json!("functions_read_file"), &json!({"input": "{not json"}))
    );
    assert_eq!((&calls[1]["name"], &calls[1]["input"]), (&json!("unknown"), &json!({})));
    assert_eq!(calls[2]["name"].as_str().map(str::len), Some(64));
    assert_eq!(messages[0]["content"][0]["text"], EMPTY_TEXT);
    assert_eq!(messages[2]["content"][0]["content"], EMPTY_OUTPUT);
    let messages = openai(&[], Some(&odd));
    assert_eq!(messages[1]["content"], Value::Null);
    assert_eq!(messages[1]["tool_calls"][1]["function"]["arguments"], "{}");
}

#[test]
fn the_last_word_is_never_the_models_own() {
    let mut answered = draft("run-1", "hello");
    answered.finish_message(text_message("Hi."));
    let turn = Arc::new(seal(answered, &Verdict::Completed, PartialPolicy::Discard));
    let messages = anthropic(&[turn], None);
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[2]["role"], "user");
}

#[test]
fn messages_of_one_side_in_a_row_become_one() {
    let mut turn = draft("run-1", "one");
    turn.add_user("two".into(), None);
    turn.finish_message(text_message("three"));
    let calls = calls_message(&["a"]).calls().cloned().collect();
    turn.finish_message(from_reader_model(AssistantMessage::new(vec![signed_thinking("hmm")], "", calls)));
    turn.add_user("four".into(), None);
    let turns = [seal_stopped(turn, PartialPolicy::Discard)];
    let messages = openai(&turns, None);
    assert_eq!(messages[0]["content"], "one\n\ntwo");
    assert_eq!(messages[1]["content"], "three");
    assert_eq!(messages[1]["tool_calls"][0]["id"], "a");
    let kinds: Vec<Value> =
        anthropic(&turns, None)[1]["content"].as_array().unwrap().iter().map(|block| block["type"].clone()).collect();
    assert_eq!(kinds, ["text", "thinking", "tool_use"]);
}

/// Providers refuse signed reasoning at another position than the one where it came.
#[test]
fn reasoning_between_two_calls_goes_back_between_them() {
    let call = |id| MessageBlock::Call(ToolCall::from_wire(id, "shell", json!({})));
    let says = |text: &str| MessageBlock::Text { text: text.into() };
    let thinks = |text| MessageBlock::Thinking(signed_thinking(text));
    let blocks = vec![
        thinks("one"),
        says("First."),
        call("a"),
        thinks("two"),
        says(" \n"),
        call("b"),
        says("So."),
        thinks("end"),
    ];
    let mut turn = draft("run-1", "look");
    turn.finish_message(from_reader_model(AssistantMessage { blocks, ..AssistantMessage::default() }));
    let messages = anthropic(&[], Some(&turn));
    let block_text = |block: &Value| {
        let fields = ["thinking", "text", "id"].map(|field| block[field].as_str());
        fields.into_iter().flatten().collect::<String>()
    };
    let texts: Vec<String> = messages[1]["content"].as_array().unwrap().iter().map(block_text).collect();
    assert_eq!(texts, ["one", "First.", "a", "two", "b", "So."]);
    let messages = openai(&[], Some(&turn));
    assert_eq!((&messages[1]["content"], &messages[1]["tool_calls"][1]["id"]), (&json!("First.So."), &json!("b")));
}

/// A provider refuses the signatures of another one. A session whose model was changed would fail for ever.
#[rstest]
#[case::its_own(Some(READER_MODEL), true)]
#[case::of_another_model(Some("some/other"), false)]
#[case::of_another_provider(Some("other/model"), false)]
#[case::of_nobody_knows_whom(None, false)]
fn reasoning_goes_back_to_the_model_that_signed_it_alone(#[case] model: Option<&str>, #[case] shown: bool) {
    let mut turn = draft("run-1", "look");
    let calls = calls_message(&["a"]).calls().cloned().collect();
    let message =
        AssistantMessage::new(vec![signed_thinking("hmm"), Thinking::Redacted { data: "x".into() }], "I look.", calls);
    turn.finish_message(AssistantMessage { model: model.map(Into::into), ..message });
    for messages in [anthropic(&[], Some(&turn)), anthropic(&[seal_stopped(turn, PartialPolicy::Discard)], None)] {
        let thinks = |block: &Value| block["type"].as_str().is_some_and(|kind| kind.ends_with("thinking"));
        assert_eq!(messages[1]["content"].as_array().unwrap().iter().any(thinks), shown, "{messages:#?}");
        assert!(messages[1].to_string().contains("I look."));
    }
}

/// Some models of the chat dialect refuse their own call without the reasoning that led to it, in later turns too.
#[test]
fn open_reasoning_goes_back_with_its_calls_to_its_own_model_alone() {
    let thinks = || vec![Thinking::Open { text: "hm".into() }, signed_thinking("signed")];
    let calls = || calls_message(&["a"]).calls().cloned().collect::<Vec<_>>();
    let sent_reasoning = |model: &str| {
        let of_model = |message| AssistantMessage { model: Some(model.into()), ..message };
        let mut turn = draft("run-1", "look");
        let made = turn.finish_message(of_model(AssistantMessage::new(thinks(), "I look.", calls())));
        turn.finish_call(&made[0].id, CallResult::new(CallEnd::Ok, "x.txt"));
        turn.finish_message(of_model(AssistantMessage::new(thinks(), "There.", Vec::new())));
        let at_work = openai(&[], Some(&turn));
        let foreign = anthropic(&[], Some(&turn));
        assert!(!Value::Array(foreign).to_string().contains("hm"), "the other format has no place for it");
        let sealed = openai(&[seal_stopped(turn, PartialPolicy::Discard)], Some(&draft("run-2", "and now?")));
        assert_eq!(sealed[..at_work.len()], at_work, "messages that were sent stay the same");
        [&at_work[1]["reasoning_content"], &at_work[3]["reasoning_content"]].map(Value::clone)
    };
    assert_eq!(sent_reasoning(READER_MODEL), [json!("hm"), Value::Null]);
    assert_eq!(sent_reasoning("other/model"), [Value::Null, Value::Null]);
}

/// A provider wants its own searches back, and no other takes them. The links below an answer are for people.
#[rstest]
#[case::its_own(READER_MODEL, 1)]
#[case::of_another_model("other/model", 0)]
fn a_search_goes_back_to_its_own_model_alone(#[case] model: &str, #[case] kept: usize) {
    let item = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "rust"}});
    let part = json!({"toolCall": {"id": "ts_1", "args": {"queries": ["rust"]}}});
    let thinking = [&item, &part].map(|part| Thinking::WebSearch { part: part.clone() }).to_vec();
    let mut message =
        AssistantMessage { model: Some(model.into()), ..AssistantMessage::new(thinking, "Safe.", vec![]) };
    message.citations.add("https://cited.example", "A page");
    let mut turn = draft("run-1", "is it?");
    turn.finish_message(message);
    assert_eq!(turn.answer().unwrap(), "Safe.\n\n- [A page](https://cited.example/)");
    let sealed = seal(turn, &Verdict::Completed, PartialPolicy::Discard);
    assert_eq!(sealed.final_text().unwrap(), "Safe.\n\n- [A page](https://cited.example/)");
    assert_eq!(Turn::from_stored(&sealed.to_stored()).unwrap(), sealed);
    let (turns, next) = ([Arc::new(sealed)], draft("run-2", "sure?"));
    let prompt = prompt(&turns, Some(&next));
    let items = responses::build_input(&prompt).items;
    let contents = gemini::build_contents(&prompt).contents;
    responses::check_items(&items).unwrap();
    gemini::check_contents(&contents).unwrap();
    assert_eq!(items.iter().filter(|sent| **sent == item).count(), kept);
    assert_eq!(contents[1]["parts"].as_array().unwrap().iter().filter(|sent| **sent == part).count(), kept);
    for sent in [items, contents].into_iter().chain(render_both(&prompt)) {
        let sent = Value::Array(sent).to_string();
        assert!(!sent.contains("cited.example") && sent.matches("rust").count() <= kept, "{sent}");
    }
}

#[test]
fn an_agent_without_a_prompt_sends_none() {
    let next = draft("run-1", "hello");
    for system in ["", " \n"] {
        let prompt = Prompt { system, ..prompt(&[], Some(&next)) };
        assert_eq!(openai::build_messages(&prompt)[0]["role"], "user");
        assert_eq!(anthropic::build_request(&prompt).system, "");
    }
}

/// Replaces the value at a JSON pointer in the message `at` of a list, or the whole message.
pub(super) fn damage_message(list: &mut [Value], at: usize, place: &str, damage: Value) {
    match place.rsplit_once('/') {
        None => list[at] = damage,
        Some((parent, key)) => match list[at].pointer_mut(parent).unwrap() {
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = damage,
            fields => fields[key] = damage,
        },
    }
}
