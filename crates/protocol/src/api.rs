//! Bodies of the HTTP API, shared by the doors and the visitor. Unknown fields are refused, so that a misspelt option never
//! silently does nothing.

mod history;
mod tokens;

use serde::{Deserialize, Serialize};

use crate::background::ProcessRow;
use crate::ids::{AgentId, Principal, RunId, SessionKey};
use crate::receipt::{Instant, Receipt, Resource, Usage};
use crate::verdict::{Surface, Verdict};
pub use history::{HistoryCall, HistoryMessage};
pub use tokens::{Grants, NewToken, Scope, TokenRequest, TokenRow, TokenScope, TokenScopes};

/// What a new message does while a run is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// Wait for its turn.
    #[default]
    Queue,
    /// Hand the text to the running run at its next step.
    Steer,
    /// Abort the active run, then start.
    Interrupt,
    /// Refuse.
    Reject,
}

/// Body of `POST /api/sessions/{key}/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SendRequest {
    /// The message.
    #[schema(min_length = 1)]
    pub text: String,
    /// The agent; else the one the session key names, else the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// Becomes the run id; a repeat with the same content answers the run's current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<RunId>,
    /// Policy while a run is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_busy: Option<OnBusy>,
    /// Time for the whole run in milliseconds, from its acceptance; without it, or with 0, the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Turns stop text off: the words are sent to the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub literal: bool,
}

/// Answer to an accepted message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SendAnswer {
    /// The run; for a steered message the active one.
    pub run_id: RunId,
    /// Its session.
    pub session_key: SessionKey,
    /// `queued`, `running`, `ending`, `ended` or `steered`.
    pub state: String,
    /// The message's own id when it was steered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<RunId>,
}

/// What a stop did: the answer to a stop text and to a stop of a session, and a part of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopAnswer {
    /// True when this call was the first to end something: a run, or a background command.
    pub aborted: bool,
    /// Runs that this call stopped, queued ones included.
    pub run_ids: Vec<RunId>,
    /// Runs that the stop covers and that were ending already, of an earlier stop or of themselves; absent when there were
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ending: Vec<RunId>,
    /// Queued messages that this call withdrew, with their texts.
    #[serde(default)]
    pub withdrawn: Vec<Withdrawn>,
    /// Background commands that the stop covers and that were not over; absent when there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessRow>,
}

/// A queued message that a stop withdrew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Withdrawn {
    /// The run it would have been.
    pub run_id: RunId,
    /// Its text, so that it can go back into the composer.
    pub text: String,
}

/// Body of `POST /api/runs/{id}/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopRunRequest {
    /// Checked against the run when given (row A10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<SessionKey>,
    /// Skip the grace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Why, for the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /api/sessions/{key}/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopSessionRequest {
    /// Skip the grace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Leave queued messages where they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_queued: bool,
    /// Leave background processes of earlier runs alive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_background: bool,
    /// Why, for the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /api/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopAllRequest {
    /// Skip the grace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Also refuse new runs until lifted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Why, for the receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `PUT /api/hold`, and the answer of all hold routes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// True while new runs are refused.
    #[serde(default)]
    pub held: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Who set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Principal>,
}

/// State of an agent call abort (row B4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentAbortAnswer {
    /// Always true.
    pub ok: bool,
    /// The agent.
    pub agent_id: AgentId,
    /// True when at least one run was really stopped.
    pub aborted: bool,
    /// The runs stopped.
    pub run_ids: Vec<RunId>,
    /// `not_waiting_llm` when nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an agent's runs are doing (row B3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComputeStatus {
    /// No run.
    Idle,
    /// A model request is out.
    WaitingLlm,
    /// The rest of a run.
    Processing,
    /// A stop settles.
    Stopping,
}

/// A run, as `GET /api/runs/{id}` answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_key: SessionKey,
    /// Its agent.
    pub agent: AgentId,
    /// `queued`, `running`, `ending` or `ended`.
    pub state: String,
    /// `waiting_llm` or `processing` while running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ComputeStatus>,
    /// Who sent it.
    pub principal: Principal,
    /// Through which door.
    pub surface: Surface,
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Where it came from, if it did not happen here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Provenance>,
    /// The message.
    pub text: String,
    /// RFC 3339.
    pub accepted_at: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// RFC 3339; when the registry's backstop ends it (row A5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Model steps so far.
    pub steps: u32,
    /// Tokens so far.
    pub usage: Usage,
    /// Last event number.
    pub seq: u64,
    /// Commands and servers of the run that are alive now; one with its descendants counts as one.
    pub processes: u32,
    /// Once ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Once ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// Final text of a completed run; what had streamed of the interrupted step otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The result in the words of an embedder (row E3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// What it has held so far, of one run that is asked for and not over; afterwards the receipt has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Resource>,
    /// When its stop was asked for, as `held`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Instant>,
    /// When everything that it held had been told to end, as `held`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Instant>,
}

/// What was read from an archive: nobody here has seen it happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// RFC 3339.
    pub at: String,
    /// Who imported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Principal>,
    /// Whose it was, as the archive claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<String>,
}

/// Result of a run in the words of row E3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// True when completed.
    pub success: bool,
    /// True when stopped.
    pub cancelled: bool,
    /// `Execution paused` when stopped; the failure's text when failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Steps that ran.
    pub loop_count: u32,
}

impl RunResult {
    /// The result that goes with a verdict after `steps` steps.
    #[must_use]
    pub fn of(verdict: &Verdict, steps: u32) -> Self {
        let error = match verdict {
            Verdict::Completed => None,
            Verdict::Failed { message, .. } => Some(message.clone()),
            Verdict::Aborted { reason: crate::StopReason::Steps, .. } => Some("Step limit reached".into()),
            Verdict::Aborted { reason: crate::StopReason::Tokens, .. } => Some("Token limit reached".into()),
            Verdict::Aborted { reason: crate::StopReason::DailyLimit, .. } => Some("Daily limit reached".into()),
            Verdict::Aborted { .. } => Some("Execution paused".into()),
        };
        Self {
            success: matches!(verdict, Verdict::Completed),
            cancelled: matches!(verdict, Verdict::Aborted { .. }),
            error,
            loop_count: steps,
        }
    }
}

/// A session, as `GET /api/sessions` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRow {
    /// The key.
    pub key: SessionKey,
    /// `ready` or `active`.
    pub state: String,
    /// The agent of its last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub last_used_at: String,
    /// Runs that are not over.
    pub active_runs: Vec<RunId>,
    /// Sealed turns.
    pub turns: u64,
    /// Where it came from, if it did not begin here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Provenance>,
}

/// An agent, as `GET /api/agents` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRow {
    /// Its id.
    pub id: AgentId,
    /// `provider/model`.
    pub model: String,
    /// Its parent in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<AgentId>,
    /// Its children in the tree.
    pub children: Vec<AgentId>,
    /// Its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What its runs are doing.
    pub compute_status: ComputeStatus,
    /// Its runs that are not over.
    pub active_runs: Vec<RunId>,
    /// True for the agent that runs when none is named.
    pub default: bool,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Give this as `cursor` to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Answer of `POST /api/runs/{id}/stop` that does not wait: the ticket's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TicketView {
    /// The run.
    pub run_id: RunId,
    /// `ending` or `ended`.
    pub state: String,
    /// What the stop did. `aborted` is also true when only a descendant was still alive.
    #[serde(flatten)]
    pub stop: StopAnswer,
    /// The run's verdict.
    pub verdict: Verdict,
    /// Once ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

/// Answer of `POST /api/stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopAllAnswer {
    /// What the stop did.
    #[serde(flatten)]
    pub stop: StopAnswer,
    /// Whether new runs are refused now.
    pub held: bool,
    /// Why the hold that was asked for could not be stored; it holds until the daemon ends, then. Absent when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_problem: Option<String>,
}
