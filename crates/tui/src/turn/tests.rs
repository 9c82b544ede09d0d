//! Turns built from events: streams, calls, snapshots, and how they end.

use quell_client::test_support::receipts;
use serde_json::json;

use super::*;
use crate::harness::{NOON, from_json};

fn turn(events: &[serde_json::Value]) -> ChatTurn {
    let mut turn = ChatTurn::default();
    for event in events {
        turn.apply_event(&from_json(event.clone()), NOON);
    }
    turn
}

fn outline(turn: &ChatTurn) -> Vec<String> {
    let part = |block: &TurnBlock| match block {
        TurnBlock::Text { text, partial: TextCompleteness::Complete } => text.clone(),
        TurnBlock::Text { text, .. } => format!("cut: {text}"),
        TurnBlock::Thinking(text) => format!("thinking: {text}"),
        TurnBlock::Call(call) => format!("{} {} {:?} {}", call.tool, call.label, call.end, call.output),
        TurnBlock::Steered(text) => format!("steered: {text}"),
        TurnBlock::Compacted(turns) => format!("compacted {turns}"),
        TurnBlock::WebSearch(query) => format!("searched for {query}"),
        TurnBlock::ModelFallback { from, to } => format!("{from} failed, {to} took over"),
    };
    turn.blocks.iter().map(part).collect()
}

fn step(n: u32) -> serde_json::Value {
    json!({"type": "step.started", "step": n})
}

fn text(text: &str) -> serde_json::Value {
    json!({"type": "text.delta", "text": text})
}

fn call(id: &str) -> serde_json::Value {
    json!({"type": "tool.started", "callId": id, "tool": "shell", "arguments": {"command": "ls"}})
}

fn call_over(id: &str) -> serde_json::Value {
    json!({"type": "tool.ended", "callId": id, "end": "ok", "output": "all", "ms": 2.0})
}

fn stopped() -> serde_json::Value {
    json!({"type": "run.ended", "verdict": receipts::aborted_by_user(), "receipt": receipts::stopped_receipt(), "steps": 2})
}

#[test]
fn text_and_calls_stand_in_their_order() {
    let output = json!({"type": "tool.output", "callId": "c1", "stream": "stdout", "text": "some"});
    let turn = turn(&[step(1), text("I lo"), text("ok."), call("c1"), output, call_over("c1"), step(2), text("Done.")]);
    assert_eq!(outline(&turn), ["I look.", "shell ls Some(Ok) all", "Done."]);
    assert_eq!(turn.activity, ChatRunActivity::Answering);
}

#[test]
fn a_stop_cuts_the_text_of_the_step_and_no_other() {
    let cut = turn(&[step(1), text("I look."), call("c1"), call_over("c1"), step(2), text("Do"), stopped()]);
    assert_eq!(outline(&cut), ["I look.", "shell ls Some(Ok) all", "cut: Do"]);
    // The text of a step whose calls have started is complete.
    let whole = turn(&[step(1), text("I look."), call("c1"), stopped()]);
    assert_eq!(outline(&whole)[0], "I look.");
}

#[test]
fn a_snapshot_brings_what_was_missed_and_nothing_twice() {
    let calls = json!([{"callId": "c1", "tool": "shell", "end": "ok"}, {"callId": "c2", "tool": "fetch_url"}]);
    let snapshot = json!({"type": "run.snapshot", "text": "whole text", "thinking": "hm", "calls": calls});
    let turn = turn(&[step(1), call("c1"), step(2), text("whole"), snapshot.clone(), text(" and on")]);
    let shown = outline(&turn);
    assert_eq!(shown.iter().filter(|part| part.contains("whole")).collect::<Vec<_>>(), ["whole text and on"]);
    assert!(shown.iter().any(|part| part.starts_with("fetch_url")), "{shown:?}");
    assert!(shown.iter().any(|part| part == "shell ls Some(Ok) "), "{shown:?}");
}

#[test]
fn a_snapshot_says_how_a_missed_call_has_ended() {
    let calls = json!([{"callId": "c1", "tool": "shell", "end": "error", "code": 3, "ms": 2.0, "output": "4000\n[exit code 3]"}]);
    let snapshot = json!({"type": "run.snapshot", "text": "", "thinking": "", "calls": calls});
    let shown = outline(&turn(&[step(1), call("c1"), snapshot]));
    assert_eq!(shown, ["shell ls Some(Error) 4000\n[exit code 3]"]);
}

#[test]
fn progress_takes_back_the_line_that_is_open() {
    let piece = |text: &str| json!({"type": "tool.output", "callId": "c1", "stream": "stderr", "text": text});
    let events = [step(1), call("c1"), piece("begun\n10%"), piece("\r50%"), piece("\r99%\n"), piece("done")];
    assert_eq!(outline(&turn(&events)), ["shell ls None begun\n99%\ndone"]);
}

#[test]
fn the_end_brings_an_answer_that_was_missed() {
    let mut receipt = receipts::completed_receipt();
    receipt.verdict = quell_protocol::Verdict::Completed;
    let end = json!({"type": "run.ended", "verdict": {"kind": "completed"}, "receipt": receipt, "steps": 1, "text": "All of it."});
    assert_eq!(outline(&turn(&[step(1), text("All"), end.clone()])), ["All of it."]);
    assert_eq!(outline(&turn(&[end])), ["All of it."]);
}

#[test]
fn an_output_that_does_not_end_is_kept_at_its_end() {
    let piece = json!({"type": "tool.output", "callId": "c1", "stream": "stdout", "text": "ü".repeat(10_000)});
    let mut events = vec![call("c1")];
    events.extend(std::iter::repeat_n(piece, 10));
    let turn = turn(&events);
    let TurnBlock::Call(call) = &turn.blocks[0] else { panic!("a call") };
    assert!(call.output.len() <= MAX_OUTPUT_BYTES && call.output.ends_with('ü'));
}

#[test]
fn the_activity_follows_the_open_call() {
    let asked = json!({"type": "approval.requested", "id": "a", "callId": "c2", "tool": "shell", "arguments": {}, "expiresAt": ""});
    let resolved = json!({"type": "approval.resolved", "id": "a", "decision": "allow"});
    let mut turn = turn(&[step(1), call("c1"), asked]);
    assert_eq!(turn.activity, ChatRunActivity::Approval("shell".into()));
    turn.apply_event(&from_json(resolved), NOON);
    turn.apply_event(&from_json(call_over("c1")), NOON);
    assert_eq!(turn.activity, ChatRunActivity::Tool("shell".into()));
    turn.apply_event(&from_json(call_over("c2")), NOON);
    assert_eq!(turn.activity, ChatRunActivity::WaitingForModel);
}

#[test]
fn a_message_that_was_handed_over_stands_before_the_step_that_reads_it() {
    let mut turn = turn(&[step(1), text("half a sen")]);
    turn.pending_steered.push("be brief".into());
    turn.apply_event(&from_json(text("tence.")), NOON);
    turn.apply_event(&from_json(step(2)), NOON);
    turn.apply_event(&from_json(text("Yes.")), NOON);
    assert_eq!(outline(&turn), ["half a sentence.", "steered: be brief", "Yes."]);
}

#[test]
fn a_step_that_a_stop_cut_off_is_not_counted_as_done() {
    let done = |steps, verdict| ChatTurnEnd { verdict, steps: Some(steps), receipt: None }.completed_steps();
    let by_limit = Verdict::Aborted { reason: quell_protocol::StopReason::Steps, by: None };
    assert_eq!(done(1, receipts::aborted_by_user()), Some((0, true)));
    assert_eq!(done(3, receipts::aborted_by_user()), Some((2, true)));
    assert_eq!(done(0, receipts::aborted_by_user()), Some((0, false)), "one that never began has no step");
    assert_eq!(done(3, by_limit), Some((3, false)), "a budget is looked at between two steps");
    assert_eq!(done(2, Verdict::Completed), Some((2, false)));
}

#[test]
fn the_history_makes_the_turn_that_the_events_made() {
    let output = json!({"type": "tool.output", "callId": "c1", "stream": "stdout", "text": "al"});
    let thought = |text: &str| json!({"type": "thinking.delta", "text": text});
    let mut live = turn(&[
        step(1),
        text("I "),
        thought("First "),
        text("look."),
        thought("this."),
        call("c1"),
        output,
        call_over("c1"),
        step(2),
        thought("Hm."),
        stopped(),
    ]);
    let mut stored = ChatTurn::default();
    let (run, at) = ("r", "2026-03-01T12:00:00Z");
    let calls = json!([{"id": "c1", "tool": "shell", "arguments": {"command": "ls"}}]);
    for message in [
        json!({"runId": run, "role": "assistant", "text": "I look.", "thinking": "First this.", "calls": calls, "at": at}),
        json!({"runId": run, "role": "tool", "text": "all", "callId": "c1", "end": "ok", "ms": 2.0, "at": at}),
        json!({"runId": run, "role": "assistant", "text": "", "thinking": "Hm.", "at": at}),
        json!({"runId": run, "role": "note", "text": "", "verdict": receipts::aborted_by_user(), "at": at}),
    ] {
        stored.apply_stored_message(&from_json(message));
    }
    // `tool_started` matters only for a call without an end, and `since` only for an active one.
    let plain = |turn: &mut ChatTurn| turn.calls_mut().for_each(|call| (call.tool_started, call.since) = (true, None));
    plain(&mut live);
    plain(&mut stored);
    assert_eq!(live.blocks, stored.blocks);
}

#[test]
fn a_search_of_the_provider_is_named_where_it_happened() {
    let search = json!({"type": "model.search", "query": "rust\nsafe"});
    let turn = turn(&[step(1), search, text("Yes.")]);
    assert_eq!(outline(&turn), ["searched for rust safe", "Yes."]);
}

#[test]
fn a_fallback_is_named_where_it_happened() {
    let fallback = json!({"type": "model.fallback", "from": "a/x", "to": "b/y", "reason": "overloaded"});
    let turn = turn(&[step(1), fallback, text("Hello.")]);
    assert_eq!(outline(&turn), ["a/x failed, b/y took over", "Hello."]);
}
