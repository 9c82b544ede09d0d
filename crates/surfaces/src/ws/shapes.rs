//! JSON shapes of the gateway protocol that several methods and events share.

use quell_engine::clock::Clock;
use quell_kernel::turn::REFUSED;
use quell_protocol::api::{HistoryMessage, RunResult, RunView, SessionRow};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{AgentId, Verdict};
use serde_json::{Value, json};

/// Now, in milliseconds since 1970.
pub(super) fn now_ms(clock: Clock) -> i64 {
    let now: Result<jiff::Timestamp, _> = clock.rfc3339(clock.now()).parse();
    now.map_or(0, jiff::Timestamp::as_millisecond)
}

fn ms_of(rfc3339: &str) -> Value {
    let parsed: Result<jiff::Timestamp, _> = rfc3339.parse();
    parsed.map_or(Value::Null, |at| json!(at.as_millisecond()))
}

/// An assistant message.
pub(super) fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": [{"type": "text", "text": text}]})
}

/// A failure with this code, on top of what an event says. `errorKind` is one of five words, for clients check it against the
/// protocol's schema; what has none of them, such as pictures that a model does not take, is told apart by `errorDetail`.
pub(super) fn failure(event: &mut Value, code: &str, message: &str) {
    event["errorMessage"] = json!(message);
    event["errorKind"] = json!(error_kind(code));
    event["errorDetail"] = json!({"providerRuntimeFailureKind": code});
}

fn error_kind(code: &str) -> &'static str {
    match code {
        REFUSED => "refusal",
        "timed_out" => "timeout",
        "rate_limit" => "rate_limit",
        "context_overflow" => "context_length",
        _ => "unknown",
    }
}

/// A call that waits for a person, as the gateway lists those of plugins.
pub(super) fn approval(row: &ApprovalRow) -> Value {
    json!({
        "id": row.id,
        "request": {
            "pluginId": "quell",
            "title": format!("{} wants to run {}", row.agent, row.tool),
            "description": row.arguments.to_string(),
            "severity": "warning",
            "toolName": row.tool,
            "toolCallId": row.call_id,
            "agentId": row.agent,
            "sessionKey": row.session_key,
            "runId": row.run_id,
        },
        "createdAtMs": ms_of(&row.requested_at),
        "expiresAtMs": ms_of(&row.expires_at),
    })
}

/// One history row.
pub(super) fn message(message: &HistoryMessage, seq: usize) -> Value {
    let role = if message.role == "tool" { "toolResult" } else { message.role.as_str() };
    let mut content = Vec::new();
    if !message.text.is_empty() {
        content.push(json!({"type": "text", "text": message.text}));
    }
    for call in &message.calls {
        content.push(json!({"type": "toolCall", "id": call.id, "name": call.tool, "arguments": call.arguments}));
    }
    let mut row = json!({
        "role": role,
        "content": content,
        "timestamp": ms_of(&message.at),
        "__openclaw": {"id": format!("{}:{seq}", message.run_id.as_ref().map_or("reset", |id| id.as_str())), "seq": seq, "runId": message.run_id},
    });
    if let Some(id) = &message.call_id {
        row["toolCallId"] = json!(id);
    }
    if message.partial {
        row["partial"] = json!(true);
    }
    row
}

/// One session row.
pub(super) fn session(row: &SessionRow, last: Option<&RunView>) -> Value {
    let status = match last {
        Some(run) if run.state == "queued" => "queued",
        Some(run) if run.state != "ended" => "running",
        Some(run) => match &run.verdict {
            Some(Verdict::Failed { .. }) => "failed",
            Some(Verdict::Aborted { reason, .. }) if reason.as_str() == "timeout" => "timeout",
            Some(Verdict::Aborted { .. }) => "killed",
            Some(Verdict::Completed) | None => "done",
        },
        None => "done",
    };
    json!({
        "key": row.key,
        "sessionId": row.key,
        "kind": "direct",
        "agentId": row.agent,
        "status": status,
        "hasActiveRun": !row.active_runs.is_empty(),
        "activeRunIds": row.active_runs,
        "updatedAt": ms_of(&row.last_used_at),
        "lastRunId": last.map(|run| &run.run_id),
    })
}

/// Defaults that several answers carry.
pub(super) fn defaults(model: &str) -> Value {
    let (provider, name) = model.split_once('/').unwrap_or(("", model));
    json!({"modelProvider": provider, "model": name, "contextTokens": null})
}

/// Model ids of the configured agents.
pub(super) fn model(model: &str, agent: &AgentId) -> Value {
    let (provider, name) = model.split_once('/').unwrap_or(("", model));
    json!({"id": name, "name": name, "provider": provider, "agentId": agent})
}

/// How a run that is over stands in `agent.wait` and in a repeated `chat.send`.
pub(super) fn outcome(run: &RunView) -> Value {
    let mut answer = json!({"runId": run.run_id, "endedAt": run.ended_at.as_deref().map(ms_of)});
    match &run.verdict {
        Some(Verdict::Completed) => answer["status"] = json!("ok"),
        Some(Verdict::Failed { message, .. }) => {
            answer["status"] = json!("error");
            answer["summary"] = json!(message);
        }
        Some(Verdict::Aborted { reason, .. }) => {
            answer["status"] = json!("timeout");
            answer["summary"] = json!("aborted");
            answer["stopReason"] = json!(reason);
        }
        None => answer["status"] = json!("in_flight"),
    }
    if let Some(verdict) = &run.verdict {
        let RunResult { success, cancelled, error, loop_count } = RunResult::of(verdict, run.steps);
        answer["success"] = json!(success);
        answer["cancelled"] = json!(cancelled);
        answer["error"] = json!(error);
        answer["loopCount"] = json!(loop_count);
    }
    answer
}

#[cfg(test)]
mod tests {
    use quell_kernel::turn::VISION;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(REFUSED, "refusal")]
    #[case("timed_out", "timeout")]
    #[case("rate_limit", "rate_limit")]
    #[case("context_overflow", "context_length")]
    #[case(VISION, "unknown")]
    #[case("store", "unknown")]
    fn a_failure_has_one_of_the_five_kinds_of_the_protocol_and_its_own_code(#[case] code: &str, #[case] kind: &str) {
        let mut event = json!({"state": "error"});
        failure(&mut event, code, "why");
        let detail = json!({"providerRuntimeFailureKind": code});
        assert_eq!(event, json!({"state": "error", "errorMessage": "why", "errorKind": kind, "errorDetail": detail}));
    }
}
