//! The history of a session as updates, for an editor that loads it.

use std::path::Path;

use quell_protocol::api::HistoryMessage;
use quell_protocol::event::CallEnd;

use crate::tool_calls::{CallStart, ToolCallEnd, wire_call_id};
use crate::updates::{message_chunk, thought_chunk, user_chunk};
use crate::wire::{SessionUpdate, ToolCallStatus};

/// The whole history, oldest first.
pub(crate) fn replay_history(history: &[HistoryMessage], workdir: &Path) -> Vec<SessionUpdate> {
    history.iter().flat_map(|message| replay_message(message, workdir)).collect()
}

fn replay_message(message: &HistoryMessage, workdir: &Path) -> Vec<SessionUpdate> {
    let wire_id = |call: &str| message.run_id.as_ref().map_or_else(|| call.to_owned(), |run| wire_call_id(run, call));
    match message.role.as_str() {
        "user" => vec![user_chunk(&message.text)],
        "assistant" => {
            let mut updates = Vec::new();
            if !message.thinking.is_empty() {
                updates.push(thought_chunk(&message.thinking));
            }
            if !message.text.is_empty() {
                updates.push(message_chunk(&message.text));
            }
            for call in &message.calls {
                let id = wire_id(&call.id);
                let start = CallStart { id: &id, tool: &call.tool, arguments: &call.arguments, workdir };
                updates.push(SessionUpdate::ToolCall(start.announce(ToolCallStatus::InProgress)));
                updates.extend(start.plan().map(SessionUpdate::Plan));
            }
            updates
        }
        "tool" => {
            let Some(id) = &message.call_id else { return Vec::new() };
            let end = message.end.unwrap_or(CallEnd::Ok);
            let diff = message.diff.as_deref();
            let result = ToolCallEnd { end, code: message.code, output: &message.text, diff };
            vec![SessionUpdate::ToolCallUpdate(result.update(&wire_id(id), workdir))]
        }
        "reset" => vec![message_chunk("\n(The conversation begins anew here.)\n")],
        // Notes tell the model about stops.
        _ => vec![thought_chunk(&message.text)],
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::api::HistoryCall;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_turn_is_replayed_in_its_order() {
        let message = |role: &str, text: &str| HistoryMessage::new(None, role, text, "2026-01-01T00:00:00Z");
        let call = HistoryCall { id: "c1".into(), tool: "shell".into(), arguments: json!({"command": "ls"}) };
        let history = [
            message("user", "list"),
            HistoryMessage { calls: vec![call], thinking: "hm".into(), ..message("assistant", "I look.") },
            HistoryMessage { call_id: Some("c1".into()), end: Some(CallEnd::Stopped), ..message("tool", "cut") },
            message("note", "The user stopped the request."),
        ];
        let updates = replay_history(&history, Path::new("/w"));
        let kinds: Vec<String> = updates
            .iter()
            .map(|update| serde_json::to_value(update).unwrap()["sessionUpdate"].as_str().unwrap().to_owned())
            .collect();
        let wanted = [
            "user_message_chunk",
            "agent_thought_chunk",
            "agent_message_chunk",
            "tool_call",
            "tool_call_update",
            "agent_thought_chunk",
        ];
        assert_eq!(kinds, wanted);
    }
}
