//! The history of a session as updates, for an editor that opens it again.

use std::collections::HashMap;
use std::path::Path;

use quell_protocol::RunId;
use quell_protocol::api::HistoryMessage;
use quell_protocol::event::CallEnd;

use crate::editor::{CallStatus, EditorUpdate, MessageRole, MessageText};
use crate::tool_calls::{CallStart, ToolCallEnd, wire_call_id};
use crate::updates::{TEXT, THINKING, USER_MESSAGE, message_id};

/// The whole history, oldest first.
pub(crate) fn replay_history(history: &[HistoryMessage], workdir: &Path) -> Vec<EditorUpdate> {
    let mut numbers = MessageNumbers::default();
    history.iter().enumerate().flat_map(|(at, message)| replay_message(message, at, &mut numbers, workdir)).collect()
}

/// How many messages of each kind a run has so far: its stream counts its steps in the same way.
#[derive(Default)]
struct MessageNumbers<'a>(HashMap<(&'a RunId, &'a str), u32>);

fn replay_message<'a>(
    message: &'a HistoryMessage,
    at: usize,
    numbers: &mut MessageNumbers<'a>,
    workdir: &Path,
) -> Vec<EditorUpdate> {
    let number = message.run_id.as_ref().map_or(0, |run| {
        let number = numbers.0.entry((run, message.role.as_str())).or_default();
        *number += 1;
        *number
    });
    let whole = |role, kind: &str, text: &str| {
        let id = match &message.run_id {
            Some(run) => message_id(run, kind, number),
            None => format!("history/{kind}/{at}"),
        };
        EditorUpdate::WholeText(MessageText { role, message: id, text: text.to_owned() })
    };
    let wire_id = |call: &str| message.run_id.as_ref().map_or_else(|| call.to_owned(), |run| wire_call_id(run, call));
    match message.role.as_str() {
        "user" => vec![whole(MessageRole::User, USER_MESSAGE, &message.text)],
        "assistant" => {
            let mut updates = Vec::new();
            if !message.thinking.is_empty() {
                updates.push(whole(MessageRole::Thought, THINKING, &message.thinking));
            }
            if !message.text.is_empty() {
                updates.push(whole(MessageRole::Agent, TEXT, &message.text));
            }
            for call in &message.calls {
                let id = wire_id(&call.id);
                let start = CallStart { id: &id, tool: &call.tool, arguments: &call.arguments, workdir };
                let (call, status) = (start.describe(), CallStatus::InProgress);
                updates.push(EditorUpdate::CallAnnounced { call, status });
                updates.extend(start.plan().map(EditorUpdate::Plan));
            }
            updates
        }
        "tool" => {
            let Some(id) = &message.call_id else { return Vec::new() };
            let end = message.end.unwrap_or(CallEnd::Ok);
            let diff = message.diff.as_deref();
            let result = ToolCallEnd { end, code: message.code, output: &message.text, diff };
            vec![EditorUpdate::CallEnded(result.result(wire_id(id), workdir))]
        }
        "reset" => vec![whole(MessageRole::Agent, TEXT, "\n(The conversation begins anew here.)\n")],
        // Notes tell the model about stops.
        role => vec![whole(MessageRole::Thought, role, &message.text)],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use quell_protocol::api::HistoryCall;
    use serde_json::json;

    use super::*;

    fn message(role: &str, text: &str) -> HistoryMessage {
        let run_id = (role != "reset").then(|| RunId::parse("r1").unwrap());
        HistoryMessage { run_id, ..HistoryMessage::new(None, role, text, "2026-01-01T00:00:00Z") }
    }

    #[test]
    fn a_turn_is_replayed_in_its_order_with_the_ids_of_its_stream() {
        let call = HistoryCall { id: "c1".into(), tool: "shell".into(), arguments: json!({"command": "ls"}) };
        let history = [
            message("user", "list"),
            HistoryMessage { calls: vec![call], thinking: "hm".into(), ..message("assistant", "I look.") },
            HistoryMessage { call_id: Some("c1".into()), end: Some(CallEnd::Stopped), ..message("tool", "cut") },
            message("assistant", "Done."),
            message("note", "The user stopped the request."),
            message("reset", ""),
        ];
        let updates = replay_history(&history, Path::new("/w"));
        let ids: Vec<&str> = updates
            .iter()
            .map(|update| match update {
                EditorUpdate::WholeText(text) => &*text.message,
                EditorUpdate::CallAnnounced { call, status: CallStatus::InProgress } => &call.id,
                EditorUpdate::CallEnded(result) if result.status == CallStatus::Cancelled => &result.id,
                other => panic!("{other:?}"),
            })
            .collect();
        let stream = ["r1/user/1", "r1/thinking/1", "r1/text/1", "r1/c1", "r1/c1", "r1/text/2"];
        assert_eq!(ids[..stream.len()], stream);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len() - 1, "only the call repeats its id: {ids:?}");
    }
}
