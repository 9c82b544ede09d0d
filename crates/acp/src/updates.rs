//! The events of a run as updates of the session.

use std::collections::HashMap;
use std::path::PathBuf;

use quell_protocol::RunId;
use quell_protocol::event::{EventKind, SnapshotCall};
use serde_json::Value;

use crate::tool_calls::{CallStart, ToolCallEnd, add_output, output_update, wire_call_id};
use crate::wire::{ContentChunk, SessionUpdate, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields};

/// What the editor knows of a run so far.
pub(crate) struct RunUpdates {
    run: RunId,
    workdir: PathBuf,
    /// Text and reasoning of the current step.
    text: String,
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
        Self { run, workdir, text: String::new(), thinking: String::new(), calls: HashMap::new() }
    }

    /// The updates that an event means, in order. Approvals and the end are not among them.
    pub(crate) fn translate(&mut self, event: &EventKind) -> Vec<SessionUpdate> {
        match event {
            EventKind::StepStarted { .. } => {
                self.text.clear();
                self.thinking.clear();
                Vec::new()
            }
            EventKind::TextDelta { text } => {
                self.text.push_str(text);
                vec![message_chunk(text)]
            }
            EventKind::ThinkingDelta { text } => {
                self.thinking.push_str(text);
                vec![thought_chunk(text)]
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
                vec![SessionUpdate::ToolCallUpdate(output_update(&wire_call_id(&self.run, call_id.as_str()), shown))]
            }
            EventKind::ToolEnded { call_id, end, code, output, diff, ms: _ } => {
                let result = ToolCallEnd { end: *end, code: *code, output, diff: diff.as_deref() };
                self.end_call(call_id.as_str(), &result)
            }
            EventKind::Snapshot { text, thinking, calls, .. } => self.catch_up(text, thinking, calls),
            EventKind::ModelRetry { attempt, attempts, delay_ms, reason } => vec![thought_chunk(&format!(
                "\nAttempt {attempt} of {attempts} to ask the model failed: {reason}. The next one follows in {delay_ms} ms.\n"
            ))],
            EventKind::ModelFallback { from, to, reason } => {
                vec![thought_chunk(&format!("\nThe model {from} failed: {reason}. {to} takes over.\n"))]
            }
            EventKind::ModelSearch { query } => vec![thought_chunk(&format!("\nSearched the web for {query}.\n"))],
            EventKind::Compacted { turns, .. } => {
                vec![thought_chunk(&format!("\nA summary replaces the oldest {turns} turns of the conversation.\n"))]
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

    fn show_call(&mut self, id: &str, tool: &str, arguments: &Value, status: ShownStatus) -> Vec<SessionUpdate> {
        let wire_id = wire_call_id(&self.run, id);
        let start = CallStart { id: &wire_id, tool, arguments, workdir: &self.workdir };
        let wire_status =
            if status == ShownStatus::Started { ToolCallStatus::InProgress } else { ToolCallStatus::Pending };
        let mut updates = match self.calls.get_mut(id) {
            None => {
                self.calls.insert(id.to_owned(), ShownCall { status, ..ShownCall::default() });
                vec![SessionUpdate::ToolCall(start.announce(wire_status))]
            }
            Some(shown) if shown.status == ShownStatus::Pending && status == ShownStatus::Started => {
                shown.status = status;
                let fields = ToolCallUpdateFields::new().status(wire_status);
                vec![SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(wire_id.clone(), fields))]
            }
            Some(_) => Vec::new(),
        };
        if status == ShownStatus::Started {
            updates.extend(start.plan().map(SessionUpdate::Plan));
        }
        updates
    }

    fn end_call(&mut self, id: &str, result: &ToolCallEnd<'_>) -> Vec<SessionUpdate> {
        let shown = self.calls.entry(id.to_owned()).or_default();
        if shown.status == ShownStatus::Ended {
            return Vec::new();
        }
        shown.status = ShownStatus::Ended;
        shown.output = String::new();
        vec![SessionUpdate::ToolCallUpdate(result.update(&wire_call_id(&self.run, id), &self.workdir))]
    }

    /// Sends what was missed: a reader that falls behind gets the state instead of events.
    fn catch_up(&mut self, text: &str, thinking: &str, calls: &[SnapshotCall]) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        updates.extend(missing_part(&mut self.thinking, thinking).map(|part| thought_chunk(&part)));
        updates.extend(missing_part(&mut self.text, text).map(|part| message_chunk(&part)));
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

/// The part of a text that was not sent. A text of a later step is sent whole.
fn missing_part(sent: &mut String, whole: &str) -> Option<String> {
    let missing = whole.strip_prefix(sent.as_str()).unwrap_or(whole).to_owned();
    whole.clone_into(sent);
    (!missing.is_empty()).then_some(missing)
}

pub(crate) fn message_chunk(text: &str) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(ContentChunk::new(text.to_owned().into()))
}

pub(crate) fn thought_chunk(text: &str) -> SessionUpdate {
    SessionUpdate::AgentThoughtChunk(ContentChunk::new(text.to_owned().into()))
}

pub(crate) fn user_chunk(text: &str) -> SessionUpdate {
    SessionUpdate::UserMessageChunk(ContentChunk::new(text.to_owned().into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn translate(run: &mut RunUpdates, events: Value) -> Vec<Value> {
        let events: Vec<EventKind> = serde_json::from_value(events).unwrap();
        let updates = events.iter().flat_map(|event| run.translate(event)).collect::<Vec<_>>();
        updates.iter().map(|update| serde_json::to_value(update).unwrap()).collect()
    }

    fn run() -> RunUpdates {
        RunUpdates::new(RunId::parse("r1").unwrap(), "/w".into())
    }

    #[test]
    fn a_call_is_announced_once_and_then_updated() {
        let arguments = json!({"command": "ls"});
        let updates = translate(
            &mut run(),
            json!([
                {"type": "tool.waiting", "callId": "c1", "tool": "shell", "arguments": arguments},
                {"type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell", "arguments": arguments,
                 "expiresAt": "2026-01-01T00:00:00Z"},
                {"type": "tool.started", "callId": "c1", "tool": "shell", "arguments": arguments},
                {"type": "tool.output", "callId": "c1", "stream": "stdout", "text": "a\n"},
                {"type": "tool.ended", "callId": "c1", "end": "ok", "code": 0, "output": "a", "ms": 1.0},
            ]),
        );
        let kinds: Vec<_> = updates.iter().map(|update| (&update["sessionUpdate"], &update["status"])).collect();
        let (call, update) = (json!("tool_call"), json!("tool_call_update"));
        let wanted = [
            // `pending` is the default and is left out.
            (&call, &Value::Null),
            (&update, &json!("in_progress")),
            (&update, &Value::Null),
            (&update, &json!("completed")),
        ];
        assert_eq!(kinds, wanted, "{updates:#?}");
        assert!(updates.iter().all(|update| update["toolCallId"] == "r1/c1"), "{updates:#?}");
    }

    #[test]
    fn a_snapshot_sends_only_what_was_missed() {
        let mut run = run();
        translate(&mut run, json!([{"type": "step.started", "step": 1}, {"type": "text.delta", "text": "one "}]));
        let updates = translate(
            &mut run,
            json!([{"type": "run.snapshot", "text": "one two", "thinking": "", "calls": [
                {"callId": "c1", "tool": "shell", "end": "stopped", "output": "cut"},
            ]}]),
        );
        assert_eq!(updates[0]["content"]["text"], "two");
        assert_eq!((&updates[1]["sessionUpdate"], &updates[1]["title"]), (&json!("tool_call"), &json!("shell")));
        assert_eq!(updates[2]["status"], "failed");
        assert_eq!(updates.len(), 3);
    }

    #[test]
    fn the_todo_tool_sends_a_plan() {
        let arguments = json!({"items": [{"text": "Look", "status": "pending"}]});
        let updates = translate(
            &mut run(),
            json!([{"type": "tool.started", "callId": "c1", "tool": "todo", "arguments": arguments}]),
        );
        assert_eq!(updates[1]["sessionUpdate"], "plan");
        assert_eq!(updates[1]["entries"][0]["content"], "Look");
    }
}
