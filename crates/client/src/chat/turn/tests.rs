//! Turns as their events make them: streams, calls, what was missed, and how they end.

use serde_json::json;

use super::*;
use crate::chat::scene::{NOON, read};
use crate::fake::receipts;

fn turn(events: &[serde_json::Value]) -> Turn {
    let mut turn = Turn::default();
    for event in events {
        turn.take(&read(event.clone()), NOON);
    }
    turn
}

fn outline(turn: &Turn) -> Vec<String> {
    let part = |block: &Block| match block {
        Block::Text { text, partial: Partial::No } => text.clone(),
        Block::Text { text, .. } => format!("cut: {text}"),
        Block::Thinking(text) => format!("thinking: {text}"),
        Block::Call(call) => format!("{} {} {:?} {}", call.tool, call.label, call.end, call.output),
        Block::Steered(text) => format!("steered: {text}"),
        Block::Compacted(turns) => format!("compacted {turns}"),
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
    json!({"type": "run.ended", "verdict": receipts::by_user(), "receipt": receipts::stopped(), "steps": 2})
}

#[test]
fn text_and_calls_stand_in_their_order() {
    let output = json!({"type": "tool.output", "callId": "c1", "stream": "stdout", "text": "some"});
    let turn = turn(&[step(1), text("I lo"), text("ok."), call("c1"), output, call_over("c1"), step(2), text("Done.")]);
    assert_eq!(outline(&turn), ["I look.", "shell ls Some(Ok) all", "Done."]);
    assert_eq!(turn.doing, Doing::Answering);
}

#[test]
fn a_stop_cuts_the_text_of_the_step_and_no_other() {
    let cut = turn(&[step(1), text("I look."), call("c1"), call_over("c1"), step(2), text("Do"), stopped()]);
    assert_eq!(outline(&cut), ["I look.", "shell ls Some(Ok) all", "cut: Do"]);
    // The message of a step whose calls began was complete.
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
    let mut receipt = receipts::completed();
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
    let Block::Call(call) = &turn.blocks[0] else { panic!("a call") };
    assert!(call.output.len() <= MOST_OUTPUT && call.output.ends_with('ü'));
}

#[test]
fn what_it_does_follows_the_open_call() {
    let asked = json!({"type": "approval.requested", "id": "a", "callId": "c2", "tool": "shell", "arguments": {}, "expiresAt": ""});
    let resolved = json!({"type": "approval.resolved", "id": "a", "decision": "allow"});
    let mut turn = turn(&[step(1), call("c1"), asked]);
    assert_eq!(turn.doing, Doing::Approval("shell".into()));
    turn.take(&read(resolved), NOON);
    turn.take(&read(call_over("c1")), NOON);
    assert_eq!(turn.doing, Doing::Tool("shell".into()));
    turn.take(&read(call_over("c2")), NOON);
    assert_eq!(turn.doing, Doing::Waiting);
}

#[test]
fn a_message_that_was_handed_over_stands_before_the_step_that_reads_it() {
    let mut turn = turn(&[step(1), text("half a sen")]);
    turn.steered.push("be brief".into());
    turn.take(&read(text("tence.")), NOON);
    turn.take(&read(step(2)), NOON);
    turn.take(&read(text("Yes.")), NOON);
    assert_eq!(outline(&turn), ["half a sentence.", "steered: be brief", "Yes."]);
}

#[test]
fn a_step_that_a_stop_cut_off_is_not_counted_as_done() {
    let done = |steps: u32, verdict: Verdict| {
        End { verdict, steps: Some(steps), receipt: None, leftovers: false, amended: Vec::new(), unsettled: false }
            .steps_done()
    };
    let by_limit = Verdict::Aborted { reason: quell_protocol::StopReason::Steps, by: None };
    assert_eq!(done(1, receipts::by_user()), Some((0, true)));
    assert_eq!(done(3, receipts::by_user()), Some((2, true)));
    assert_eq!(done(0, receipts::by_user()), Some((0, false)), "one that never began has no step");
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
    let mut stored = Turn::default();
    let (run, at) = ("r", "2026-03-01T12:00:00Z");
    let calls = json!([{"id": "c1", "tool": "shell", "arguments": {"command": "ls"}}]);
    for message in [
        json!({"runId": run, "role": "assistant", "text": "I look.", "thinking": "First this.", "calls": calls, "at": at}),
        json!({"runId": run, "role": "tool", "text": "all", "callId": "c1", "end": "ok", "ms": 2.0, "at": at}),
        json!({"runId": run, "role": "assistant", "text": "", "thinking": "Hm.", "at": at}),
        json!({"runId": run, "role": "note", "text": "", "verdict": receipts::by_user(), "at": at}),
    ] {
        stored.recall(&read(message));
    }
    // Whether its tool had started matters to a call without an end alone; when it began, to one that is at work.
    let plain = |turn: &mut Turn| turn.calls_mut().for_each(|call| (call.begun, call.since) = (true, None));
    plain(&mut live);
    plain(&mut stored);
    assert_eq!(live.blocks, stored.blocks);
}
