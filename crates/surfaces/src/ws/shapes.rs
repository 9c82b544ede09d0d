//! JSON shapes of the gateway protocol that several methods and events share.

use quell_engine::clock::Clock;
use quell_kernel::turn::REFUSED;
use quell_protocol::api::{HistoryMessage, RunResult, RunView, SessionRow};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{RunId, Verdict};
use serde_json::{Value, json};

use super::frame::Refusal;

/// Now, in milliseconds since 1970.
pub(super) fn now_ms(clock: Clock) -> i64 {
    let now: Result<jiff::Timestamp, _> = clock.rfc3339(clock.now()).parse();
    now.map_or(0, jiff::Timestamp::as_millisecond)
}

pub(super) fn ms_of(rfc3339: &str) -> Value {
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

/// Where a row stands in a transcript: the number of its turn, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) turn: i64,
    pub(super) index: usize,
}

/// Rows of one turn that have numbers of their own.
const TURN_ROWS: i64 = 1_000_000;

impl Place {
    /// Reads what [`std::fmt::Display`] writes.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        let read = text
            .split_once('.')
            .and_then(|(turn, index)| Some(Self { turn: turn.parse().ok()?, index: index.parse().ok()? }));
        read.filter(|place| place.turn >= 0)
            .ok_or_else(|| Refusal::invalid("cursor must be a nextCursor of chat.history"))
    }

    /// The number that the turns after this place's own have at least.
    pub(super) fn turn_and_later(self) -> i64 {
        self.turn.saturating_add(1)
    }

    /// A number that rises with the places. A turn with a million rows would have some twice.
    fn seq(self) -> i64 {
        let index = i64::try_from(self.index).unwrap_or(i64::MAX).min(TURN_ROWS - 1);
        self.turn.saturating_mul(TURN_ROWS).saturating_add(index)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.turn, self.index)
    }
}

fn row_id(run: &RunId, place: Place) -> Value {
    json!({"id": format!("{run}:{}", place.index), "seq": place.seq(), "runId": run})
}

/// What people said to a run whose turn is not in the history yet, as a history row.
pub(super) fn said(run: &RunView, place: Place) -> Value {
    let content = json!([{"type": "text", "text": run.text}]);
    let at = run.started_at.as_deref().unwrap_or(&run.accepted_at);
    json!({"role": "user", "content": content, "timestamp": ms_of(at), "__openclaw": row_id(&run.run_id, place)})
}

/// One history row.
pub(super) fn message(message: &HistoryMessage, place: Place) -> Value {
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
        "__openclaw": message.run_id.as_ref().map(|run| row_id(run, place)),
    });
    if let Some(id) = &message.call_id {
        row["toolCallId"] = json!(id);
    }
    if message.partial {
        row["partial"] = json!(true);
    }
    if message.partial || message.kept {
        row["openclawAbort"] = json!({"aborted": true, "origin": "rpc", "runId": message.run_id});
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

/// A model that agents work with.
pub(super) fn model(model: &str) -> Value {
    let (provider, name) = model.split_once('/').unwrap_or(("", model));
    json!({"id": name, "name": name, "provider": provider})
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
