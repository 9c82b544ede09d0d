//! The events of a run as updates of the session.

use std::collections::HashMap;
use std::path::PathBuf;

use quell_client::StreamedAnswer;
use quell_protocol::RunId;
use quell_protocol::event::{EventKind, SnapshotCall};
use serde_json::Value;

use crate::editor::{CallStatus, EditorUpdate, MessageRole, MessageText};
use crate::tool_calls::{CallStart, ToolCallEnd, add_output, fence, wire_call_id};

/// Kinds of messages, as parts of their ids.
pub(crate) const USER_MESSAGE: &str = "user";
pub(crate) const TEXT: &str = "text";
pub(crate) const THINKING: &str = "thinking";

/// What the editor knows of a run so far.
pub(crate) struct RunUpdates {
    run: RunId,
    workdir: PathBuf,
    /// The number of the current step, 0 before the first one.
    step: u32,
    text: StreamedAnswer,
    /// Reasoning of the current step.
    thinking: String,
    calls: HashMap<String, ShownCall>,
}

#[derive(Default)]
struct ShownCall {
    status: ShownStatus,
    output: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ShownStatus {
    #[default]
    Pending,
    Started,
    Ended,
}

impl RunUpdates {
    pub(crate) fn new(run: RunId, workdir: PathBuf) -> Self {
        let (text, thinking) = (StreamedAnswer::default(), String::new());
        Self { run, workdir, step: 0, text, thinking, calls: HashMap::new() }
    }

    /// The updates that an event means, in order. Approvals and the end are not among them.
    pub(crate) fn translate(&mut self, event: &EventKind) -> Vec<EditorUpdate> {
        match event {
            EventKind::StepStarted { step } => {
                self.step = *step;
                self.text.begin_step();
                self.thinking.clear();
                Vec::new()
            }
            EventKind::TextDelta { text } => {
                self.text.push(text);
                vec![self.add_text(text)]
            }
            EventKind::ThinkingDelta { text } => {
                self.thinking.push_str(text);
                vec![self.add_thought(text)]
            }
            EventKind::ToolWaiting { call_id, tool, arguments } => {
                self.show_call(call_id.as_str(), tool, arguments, ShownStatus::Pending)
            }
            EventKind::ToolStarted { call_id, tool, arguments } => {
                self.show_call(call_id.as_str(), tool, arguments, ShownStatus::Started)
            }
            EventKind::ApprovalRequested { call_id, tool, arguments, .. } => {
                self.show_call(call_id.as_str(), tool, arguments, ShownStatus::Pending)
            }
            EventKind::ToolOutput { call_id, text, .. } => {
                let shown = &mut self.calls.entry(call_id.to_string()).or_default().output;
                add_output(shown, text);
                let (id, output) = (wire_call_id(&self.run, call_id.as_str()), fence(shown));
                vec![EditorUpdate::CallOutput { id, output }]
            }
            EventKind::ToolEnded { call_id, end, code, output, diff, ms: _ } => {
                let result = ToolCallEnd { end: *end, code: *code, output, diff: diff.as_deref() };
                self.end_call(call_id.as_str(), &result)
            }
            EventKind::Snapshot { earlier_text, text, thinking, calls, .. } => {
                self.catch_up([earlier_text, text], thinking, calls)
            }
            EventKind::ModelRetry { attempt, attempts, delay_ms, reason } => vec![self.add_thought(&format!(
                "\nAttempt {attempt} of {attempts} to ask the model failed: {reason}. The next one follows in {delay_ms} ms.\n"
            ))],
            EventKind::ModelFallback { from, to, reason } => {
                vec![self.add_thought(&format!("\nThe model {from} failed: {reason}. {to} takes over.\n"))]
            }
            EventKind::ModelSearch { query } => vec![self.add_thought(&format!("\nSearched the web for {query}.\n"))],
            EventKind::Compacted { turns, .. } => {
                vec![self.add_thought(&format!("\nA summary replaces the oldest {turns} turns of the conversation.\n"))]
            }
            EventKind::Queued { .. }
            | EventKind::Started { .. }
            | EventKind::ApprovalUpdated { .. }
            | EventKind::ApprovalResolved { .. }
            | EventKind::SubRunApprovalRequested { .. }
            | EventKind::SubRunApprovalResolved { .. }
            | EventKind::Ending { .. }
            | EventKind::Ended { .. }
            | EventKind::Usage { .. } => Vec::new(),
        }
    }

    /// A text of the agent that continues the message of the current step.
    pub(crate) fn add_text(&self, text: &str) -> EditorUpdate {
        let message = message_id(&self.run, TEXT, self.step);
        EditorUpdate::AddedText(MessageText { role: MessageRole::Agent, message, text: text.to_owned() })
    }

    fn add_thought(&self, text: &str) -> EditorUpdate {
        let message = message_id(&self.run, THINKING, self.step);
        EditorUpdate::AddedText(MessageText { role: MessageRole::Thought, message, text: text.to_owned() })
    }

    /// Whether a call is at work.
    pub(crate) fn is_call_running(&self) -> bool {
        self.calls.values().any(|call| call.status == ShownStatus::Started)
    }

    fn show_call(&mut self, id: &str, tool: &str, arguments: &Value, status: ShownStatus) -> Vec<EditorUpdate> {
        let wire_id = wire_call_id(&self.run, id);
        let start = CallStart { id: &wire_id, tool, arguments, workdir: &self.workdir };
        let wire_status = if status == ShownStatus::Started { CallStatus::InProgress } else { CallStatus::Pending };
        let mut updates = match self.calls.get_mut(id) {
            None => {
                self.calls.insert(id.to_owned(), ShownCall { status, ..ShownCall::default() });
                vec![EditorUpdate::CallAnnounced { call: start.describe(), status: wire_status }]
            }
            Some(shown) if shown.status == ShownStatus::Pending && status == ShownStatus::Started => {
                shown.status = status;
                vec![EditorUpdate::CallStatus { id: wire_id.clone(), status: wire_status }]
            }
            Some(_) => Vec::new(),
        };
        if status == ShownStatus::Started {
            updates.extend(start.plan().map(EditorUpdate::Plan));
        }
        updates
    }

    fn end_call(&mut self, id: &str, result: &ToolCallEnd<'_>) -> Vec<EditorUpdate> {
        let shown = self.calls.entry(id.to_owned()).or_default();
        if shown.status == ShownStatus::Ended {
            return Vec::new();
        }
        shown.status = ShownStatus::Ended;
        shown.output = String::new();
        vec![EditorUpdate::CallEnded(result.result(wire_call_id(&self.run, id), &self.workdir))]
    }

    /// Sends what was missed: a reader that falls behind gets the state instead of events.
    fn catch_up(&mut self, [earlier, text]: [&str; 2], thinking: &str, calls: &[SnapshotCall]) -> Vec<EditorUpdate> {
        let mut updates = Vec::new();
        let missed = self.text.catch_up(earlier, text);
        updates.extend((!missed.earlier.is_empty()).then(|| self.add_text(&missed.earlier)));
        // A message that is complete has no reasoning in a snapshot.
        if missed.is_new_step || !thinking.is_empty() && !thinking.starts_with(&self.thinking) {
            // The start of a later step was missed, too.
            self.step += 1;
        }
        updates.extend(missing_part(&mut self.thinking, thinking).map(|part| self.add_thought(&part)));
        updates.extend((!missed.step.is_empty()).then(|| self.add_text(&missed.step)));
        for call in calls {
            let (id, status) =
                (call.call_id.as_str(), if call.waiting { ShownStatus::Pending } else { ShownStatus::Started });
            updates.extend(self.show_call(id, &call.tool, &Value::Null, status));
            if let Some(end) = call.end {
                let output = call.output.as_deref().unwrap_or_default();
                let result = ToolCallEnd { end, code: call.code, output, diff: call.diff.as_deref() };
                updates.extend(self.end_call(id, &result));
            }
        }
        updates
    }
}

/// The part of the reasoning that was not sent. That of a later step is sent whole.
fn missing_part(sent: &mut String, whole: &str) -> Option<String> {
    let missing = whole.strip_prefix(sent.as_str()).unwrap_or(whole).to_owned();
    whole.clone_into(sent);
    (!missing.is_empty()).then_some(missing)
}

/// The id of a message. `number` counts the messages of this kind in their run, from 1.
pub(crate) fn message_id(run: &RunId, kind: &str, number: u32) -> String {
    format!("{run}/{kind}/{number}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::editor::{EndedCall, PlanItem};

    fn translate(run: &mut RunUpdates, events: Value) -> Vec<EditorUpdate> {
        let events: Vec<EventKind> = serde_json::from_value(events).unwrap();
        events.iter().flat_map(|event| run.translate(event)).collect()
    }

    fn run() -> RunUpdates {
        RunUpdates::new(RunId::parse("r1").unwrap(), "/w".into())
    }

    #[test]
    fn a_call_is_announced_once_and_then_updated() {
        let (mut run, arguments) = (run(), json!({"command": "ls"}));
        let updates = translate(
            &mut run,
            json!([
                {"type": "tool.waiting", "callId": "c1", "tool": "shell", "arguments": arguments},
                {"type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell", "arguments": arguments,
                 "expiresAt": "2026-01-01T00:00:00Z"},
                {"type": "tool.started", "callId": "c1", "tool": "shell", "arguments": arguments},
                {"type": "tool.output", "callId": "c1", "stream": "stdout", "text": "a\n"},
            ]),
        );
        let [
            EditorUpdate::CallAnnounced { call, status: CallStatus::Pending },
            EditorUpdate::CallStatus { id: started, status: CallStatus::InProgress },
            EditorUpdate::CallOutput { id: printed, output },
        ] = &updates[..]
        else {
            panic!("{updates:#?}")
        };
        assert_eq!([&call.id, started, printed], ["r1/c1"; 3]);
        assert_eq!(output, "```\na\n```");
        assert!(run.is_call_running());
        let ended = json!([{"type": "tool.ended", "callId": "c1", "end": "ok", "code": 0, "output": "a", "ms": 1.0}]);
        let updates = translate(&mut run, ended);
        let [EditorUpdate::CallEnded(EndedCall { status: CallStatus::Completed, .. })] = &updates[..] else {
            panic!("{updates:#?}")
        };
        assert!(!run.is_call_running());
    }

    #[test]
    fn a_snapshot_sends_only_what_was_missed() {
        let mut run = run();
        translate(&mut run, json!([{"type": "step.started", "step": 1}, {"type": "text.delta", "text": "one "}]));
        let snapshot =
            |text: &str, calls: Value| json!([{"type": "run.snapshot", "text": text, "thinking": "", "calls": calls}]);
        let call = json!([{"callId": "c1", "tool": "shell", "end": "stopped", "output": "cut"}]);
        let updates = translate(&mut run, snapshot("one two", call));
        let [
            EditorUpdate::AddedText(text),
            EditorUpdate::CallAnnounced { call, .. },
            EditorUpdate::CallEnded(EndedCall { status: CallStatus::Cancelled, .. }),
        ] = &updates[..]
        else {
            panic!("{updates:#?}")
        };
        assert_eq!((text.message.as_str(), text.text.as_str()), ("r1/text/1", "two"));
        assert_eq!(call.title, "shell");
        let later = translate(&mut run, snapshot("three", json!([])));
        let [EditorUpdate::AddedText(text)] = &later[..] else { panic!("{later:#?}") };
        assert_eq!((text.message.as_str(), text.text.as_str()), ("r1/text/2", "three"));
    }

    #[test]
    fn a_snapshot_during_a_call_stays_in_its_step() {
        let mut run = run();
        let begun = json!([
            {"type": "step.started", "step": 1},
            {"type": "thinking.delta", "text": "hm"},
            {"type": "text.delta", "text": "I look"},
        ]);
        translate(&mut run, begun);
        // The message is complete, and its reasoning is no part of the snapshot.
        let during = json!([{"type": "run.snapshot", "text": "I look now.", "thinking": "", "calls": []}]);
        let later = json!([{
            "type": "run.snapshot", "earlierText": "I look now. Then", "text": "more", "thinking": "", "calls": [],
        }]);
        let texts: Vec<(String, String)> = [translate(&mut run, during), translate(&mut run, later)]
            .concat()
            .into_iter()
            .map(|update| match update {
                EditorUpdate::AddedText(text) => (text.message, text.text),
                other => panic!("{other:?}"),
            })
            .collect();
        let texts: Vec<_> = texts.iter().map(|(message, text)| (message.as_str(), text.as_str())).collect();
        assert_eq!(texts, [("r1/text/1", " now."), ("r1/text/1", " Then"), ("r1/text/2", "more")]);
    }

    #[test]
    fn the_todo_tool_sends_a_plan() {
        let arguments = json!({"items": [{"text": "Look", "status": "pending"}]});
        let updates = translate(
            &mut run(),
            json!([{"type": "tool.started", "callId": "c1", "tool": "todo", "arguments": arguments}]),
        );
        let EditorUpdate::Plan(items) = &updates[1] else { panic!("{updates:#?}") };
        assert!(matches!(&items[..], [PlanItem { text, .. }] if text == "Look"), "{items:#?}");
    }
}
