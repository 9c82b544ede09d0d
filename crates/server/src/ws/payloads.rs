//! JSON payloads that several methods and events share.

use quell_kernel::approval_rules::{WaitingCallKind, standing_allowance};
use quell_kernel::image::{MarkedText, split_markers};
use quell_kernel::turn::CODE_REFUSED;
use quell_protocol::api::{HistoryMessage, RunResult, RunView, SessionRow};
use quell_protocol::approval::{AllowanceScope, ApprovalRow, Escalation};
use quell_protocol::{AgentId, CallId, RunId, SessionKey, Verdict};
use quell_scope::clock::Clock;
use serde_json::{Value, json};

use super::frame::RpcError;

/// The current time in milliseconds since 1970.
pub(super) fn now_ms(clock: Clock) -> i64 {
    let now: Result<jiff::Timestamp, _> = clock.rfc3339(clock.now()).parse();
    now.map_or(0, jiff::Timestamp::as_millisecond)
}

pub(super) fn rfc3339_to_ms(rfc3339: &str) -> Value {
    let parsed: Result<jiff::Timestamp, _> = rfc3339.parse();
    parsed.map_or(Value::Null, |at| json!(at.as_millisecond()))
}

pub(super) fn assistant_message(text: &str) -> Value {
    json!({"role": "assistant", "content": [{"type": "text", "text": text}]})
}

/// Adds a failure to an event. `errorKind` is one of five words, because clients check it against the protocol's
/// schema. `errorDetail` has Quell's own code, which also tells apart the failures that share the kind `unknown`, such
/// as unsupported pictures.
pub(super) fn add_failure(event: &mut Value, code: &str, message: &str) {
    event["errorMessage"] = json!(message);
    event["errorKind"] = json!(error_kind(code));
    event["errorDetail"] = json!({"providerRuntimeFailureKind": code});
}

fn error_kind(code: &str) -> &'static str {
    match code {
        CODE_REFUSED => "refusal",
        "timed_out" => "timeout",
        "rate_limit" => "rate_limit",
        "context_overflow" => "context_length",
        _ => "unknown",
    }
}

/// A call that waits for a person.
pub(super) struct WaitingCall<'a> {
    pub(super) id: &'a str,
    pub(super) call_id: &'a CallId,
    pub(super) tool: &'a str,
    pub(super) arguments: &'a Value,
    pub(super) escalation: Option<&'a Escalation>,
    pub(super) agent: Option<&'a AgentId>,
    pub(super) session: &'a SessionKey,
    pub(super) run: &'a RunId,
    pub(super) requested_at: &'a str,
    pub(super) expires_at: &'a str,
    pub(super) is_question: bool,
    pub(super) quorum: u32,
}

/// The decisions that a waiting call offers.
pub(super) fn allowed_decisions(call: WaitingCallKind<'_>) -> &'static [&'static str] {
    match standing_allowance(call) {
        Some(_) => &["allow-once", "allow-always", "deny"],
        None => &["allow-once", "deny"],
    }
}

impl WaitingCall<'_> {
    fn kind(&self) -> WaitingCallKind<'_> {
        WaitingCallKind {
            tool: self.tool,
            arguments: self.arguments,
            is_escalated: self.escalation.is_some(),
            is_question: self.is_question,
            quorum: self.quorum,
        }
    }

    /// The form in which the gateway lists those of plugins.
    pub(super) fn to_payload(&self) -> Value {
        let place = self.escalation.map_or_else(String::new, |escalation| {
            format!(" outside of the sandbox, because: {}. Now {}", escalation.reason, escalation.rule)
        });
        let who = self.agent.map_or("An agent", |agent| agent.as_str());
        let always = standing_allowance(self.kind()).and_then(|answer| answer.scope).map_or("", |scope| match scope {
            AllowanceScope::Pattern => ". To allow it always covers exactly this, in every session.",
            AllowanceScope::Session => ". To allow it always covers all calls of this tool in this session.",
            AllowanceScope::Once => "",
        });
        json!({
            "id": self.id,
            "request": {
                "pluginId": "quell",
                "title": format!("{who} wants to run {}", self.tool),
                "description": format!("{}{place}{always}", self.arguments),
                "severity": "warning",
                "toolName": self.tool,
                "toolCallId": self.call_id,
                "agentId": self.agent,
                "sessionKey": self.session,
                "runId": self.run,
                "allowedDecisions": allowed_decisions(self.kind()),
            },
            "createdAtMs": rfc3339_to_ms(self.requested_at),
            "expiresAtMs": rfc3339_to_ms(self.expires_at),
        })
    }
}

/// A pending approval, in the same form.
pub(super) fn approval_row(row: &ApprovalRow) -> Value {
    let waiting = WaitingCall {
        id: &row.id,
        call_id: &row.call_id,
        tool: &row.tool,
        arguments: &row.arguments,
        escalation: row.escalation.as_ref(),
        agent: Some(&row.agent),
        session: &row.session_key,
        run: &row.run_id,
        requested_at: &row.requested_at,
        expires_at: &row.expires_at,
        is_question: row.question.is_some(),
        quorum: row.quorum,
    };
    waiting.to_payload()
}

/// Position of a row in a transcript: the number of its turn, and its index in the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TranscriptPosition {
    pub(super) turn: i64,
    pub(super) index: usize,
}

/// Maximum number of rows of one turn with distinct sequence numbers.
const MAX_TURN_ROWS: i64 = 1_000_000;

impl TranscriptPosition {
    /// Parses the output of [`std::fmt::Display`].
    pub(super) fn parse(text: &str) -> Result<Self, RpcError> {
        let read = text
            .split_once('.')
            .and_then(|(turn, index)| Some(Self { turn: turn.parse().ok()?, index: index.parse().ok()? }));
        read.filter(|position| position.turn >= 0)
            .ok_or_else(|| RpcError::invalid("cursor must be a nextCursor of chat.history"))
    }

    /// Lower bound of the numbers of all later turns.
    pub(super) fn exclusive_turn_bound(self) -> i64 {
        self.turn.saturating_add(1)
    }

    /// A number that grows with the position, distinct for the first million rows of a turn.
    fn seq(self) -> i64 {
        let index = i64::try_from(self.index).unwrap_or(i64::MAX).min(MAX_TURN_ROWS - 1);
        self.turn.saturating_mul(MAX_TURN_ROWS).saturating_add(index)
    }
}

impl std::fmt::Display for TranscriptPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.turn, self.index)
    }
}

fn row_id(run: &RunId, position: TranscriptPosition) -> Value {
    json!({"id": format!("{run}:{}", position.index), "seq": position.seq(), "runId": run})
}

/// The id of the row with the prompt of a run.
pub(super) fn first_row_id(run: &RunId) -> String {
    format!("{run}:0")
}

/// A message that waits in the queue of its session.
pub(super) fn pending_input(run: &RunView) -> Value {
    let mut message = live_message_row(&run.run_id, "user", &run.text, &run.accepted_at);
    message["__openclaw"]["id"] = json!(first_row_id(&run.run_id));
    json!({
        "id": run.run_id, "runId": run.run_id, "state": "queued", "text": run.text, "message": message,
        "acceptedAt": rfc3339_to_ms(&run.accepted_at),
    })
}

/// By this key a client recognises the row of a message that it has sent, or whose end it has seen.
fn message_key(run: &RunId, role: &str) -> String {
    format!("{run}:{role}")
}

/// A row of `session.message`, whose place in the transcript is not known yet.
pub(super) fn live_message_row(run: &RunId, role: &str, text: &str, at: &str) -> Value {
    json!({
        "role": role, "content": [{"type": "text", "text": text}], "timestamp": rfc3339_to_ms(at),
        "__openclaw": {"runId": run, "idempotencyKey": message_key(run, role)},
    })
}

/// A history row with the prompt of a run whose turn is not stored yet.
pub(super) fn prompt_row(run: &RunView, position: TranscriptPosition) -> Value {
    let content = json!([{"type": "text", "text": run.text}]);
    let at = run.started_at.as_deref().unwrap_or(&run.accepted_at);
    let mut row = json!({"role": "user", "content": content, "timestamp": rfc3339_to_ms(at), "__openclaw": row_id(&run.run_id, position)});
    row["__openclaw"]["idempotencyKey"] = json!(message_key(&run.run_id, "user"));
    row
}

/// The text of a message. Pictures of a user are named, without their data.
fn text_blocks(message: &HistoryMessage) -> Vec<Value> {
    let text_block = |text: &str| json!({"type": "text", "text": text});
    if message.role != "user" {
        return Some(&message.text).filter(|text| !text.is_empty()).map(|text| text_block(text)).into_iter().collect();
    }
    let block = |piece: MarkedText<'_>| match piece {
        MarkedText::Text(text) => Some(text.trim_end_matches('\n')).filter(|text| !text.is_empty()).map(text_block),
        MarkedText::Image(_) => Some(json!({"type": "image", "omitted": true})),
    };
    split_markers(&message.text).into_iter().filter_map(block).collect()
}

pub(super) fn message_row(message: &HistoryMessage, position: TranscriptPosition) -> Value {
    let role = if message.role == "tool" { "toolResult" } else { message.role.as_str() };
    let mut content = text_blocks(message);
    for call in &message.calls {
        content.push(json!({"type": "toolCall", "id": call.id, "name": call.tool, "arguments": call.arguments}));
    }
    let mut row = json!({
        "role": role,
        "content": content,
        "timestamp": rfc3339_to_ms(&message.at),
        "__openclaw": message.run_id.as_ref().map(|run| row_id(run, position)),
    });
    if let Some(run) = message.run_id.as_ref().filter(|_| message.role == "user") {
        row["__openclaw"]["idempotencyKey"] = json!(message_key(run, "user"));
    }
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

/// A session as OpenClaw's clients expect it: their words for the status, here of the `last` run of the session, and
/// `direct` for a conversation that belongs to no group.
pub(super) fn session_row(row: &SessionRow, last: Option<&RunView>) -> Value {
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
        "updatedAt": rfc3339_to_ms(&row.last_used_at),
        "lastRunId": last.map(|run| &run.run_id),
    })
}

/// Adds the fields of one object to another one.
pub(super) fn add_fields(object: &mut Value, fields: &Value) {
    if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
        object.extend(fields.clone());
    }
}

/// The model defaults, in the form that several responses share.
pub(super) fn model_defaults(model: &str) -> Value {
    let (provider, name) = model.split_once('/').unwrap_or(("", model));
    json!({"modelProvider": provider, "model": name, "contextTokens": null})
}

/// The model of an agent, as gateway clients read it.
pub(super) fn primary_model(model: &str) -> Value {
    json!({"primary": model})
}

pub(super) fn model_row(model: &str) -> Value {
    let (provider, name) = model.split_once('/').unwrap_or(("", model));
    json!({"id": name, "name": name, "provider": provider})
}

/// The outcome of a run as `agent.wait` and a repeated `chat.send` return it.
pub(super) fn run_outcome(run: &RunView) -> Value {
    let mut answer = json!({"runId": run.run_id, "endedAt": run.ended_at.as_deref().map(rfc3339_to_ms)});
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
        let RunResult { success, cancelled, limit, error, loop_count } = RunResult::of(verdict, run.steps);
        answer["success"] = json!(success);
        answer["cancelled"] = json!(cancelled);
        if let Some(limit) = limit {
            answer["limit"] = json!(limit);
        }
        answer["error"] = json!(error);
        answer["loopCount"] = json!(loop_count);
    }
    answer
}

#[cfg(test)]
mod tests {
    use quell_kernel::turn::CODE_VISION;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(CODE_REFUSED, "refusal")]
    #[case("timed_out", "timeout")]
    #[case("rate_limit", "rate_limit")]
    #[case("context_overflow", "context_length")]
    #[case(CODE_VISION, "unknown")]
    #[case("store", "unknown")]
    fn a_failure_has_one_of_the_five_kinds_of_the_protocol_and_its_own_code(#[case] code: &str, #[case] kind: &str) {
        let mut event = json!({"state": "error"});
        add_failure(&mut event, code, "why");
        let detail = json!({"providerRuntimeFailureKind": code});
        assert_eq!(event, json!({"state": "error", "errorMessage": "why", "errorKind": kind, "errorDetail": detail}));
    }
}
