//! Events that gateway clients expect besides `chat` and `agent`: `plugin.approval.*` and `session.message`.

use quell_kernel::turn::is_stand_in_request;
use quell_protocol::{EventKind, RunEvent, Verdict};
use serde_json::{Value, json};

use super::methods::WsClient;
use super::outbox::DropPolicy;
use super::payloads;

/// Sends a call that waits for a person, and that it waits no more, as the gateway does for those of plugins.
pub(super) fn send_approval_event(client: &WsClient, event: &RunEvent) {
    match &event.kind {
        EventKind::ApprovalRequested { id, call_id, tool, arguments, escalation, expires_at, quorum } => {
            // A call on another node of the cluster is not known here. A question there then refuses "always".
            let row = client.engine().find_approval(id);
            let live_run = client.engine().live_run(&event.run_id);
            let waiting = payloads::WaitingCall {
                id,
                call_id,
                tool,
                arguments,
                escalation: escalation.as_deref(),
                agent: live_run.as_ref().map(|live_run| &live_run.run.agent),
                session: &event.session_key,
                run: &event.run_id,
                requested_at: row.as_ref().map_or(&event.at, |row| &row.requested_at),
                expires_at,
                is_question: row.as_ref().is_some_and(|row| row.question.is_some()),
                quorum: *quorum,
            };
            client.outbox.push_event("plugin.approval.requested", &waiting.to_payload(), DropPolicy::MustDeliver);
        }
        EventKind::ApprovalResolved { id, decision, by, .. } => {
            let name = match decision.as_str() {
                "allow" | "deny" => "plugin.approval.resolved",
                // Nobody has decided: it ran out, or its run was stopped.
                _ => "plugin.approval.removed",
            };
            let word = if decision == "allow" { "allow-once" } else { decision.as_str() };
            let payload = json!({
                "id": id, "decision": word, "resolvedBy": by.as_ref().map(|by| by.principal.to_string()),
                "sessionKey": event.session_key, "runId": event.run_id, "ts": payloads::rfc3339_to_ms(&event.at),
            });
            client.outbox.push_event(name, &payload, DropPolicy::MustDeliver);
        }
        _ => {}
    }
}

/// Sends a message to the subscribers of its session: the prompt when its run starts, the answer when it completes.
pub(super) fn send_session_message(client: &WsClient, event: &RunEvent) {
    if !client.subscriptions.wants_messages(&event.session_key) {
        return;
    }
    let row = match &event.kind {
        EventKind::Started { .. } => {
            // The text of a run on another node is not known here.
            let Some(live_run) = client.engine().live_run(&event.run_id) else { return };
            if is_stand_in_request(&live_run.run.text) {
                return;
            }
            payloads::live_message_row(&event.run_id, "user", &live_run.run.text, &event.at)
        }
        EventKind::Ended { verdict: Verdict::Completed, text: Some(text), .. } => {
            payloads::live_message_row(&event.run_id, "assistant", text, &event.at)
        }
        _ => return,
    };
    let key = &event.session_key;
    let payload: Value = json!({
        "sessionKey": key, "key": key, "sessionId": key, "runId": event.run_id, "message": row,
        "updatedAt": payloads::rfc3339_to_ms(&event.at),
    });
    client.outbox.push_event("session.message", &payload, DropPolicy::MustDeliver);
}
