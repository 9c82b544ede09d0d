//! Request and response bodies of the HTTP API. Unknown fields are refused, so that a misspelt option is never ignored.

mod history;
mod tokens;

use serde::{Deserialize, Serialize};

use crate::background::ProcessRow;
use crate::ids::{AgentId, NodeName, Principal, RunId, SessionKey};
use crate::receipt::{Instant, Receipt, Resource, Usage};
use crate::verdict::{Surface, Verdict};
pub use history::{HistoryCall, HistoryMessage};
pub use tokens::{
    AccessLevel, Grants, NewToken, StandardApi, TokenRequest, TokenRestrictions, TokenRotationRequest, TokenRow,
    TokenScope, TokenScopes, TokenUsage, TokenUsageSum,
};

/// Policy for a new message while a run of its session is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// Wait until the earlier runs of the session have ended.
    #[default]
    Queue,
    /// Hand the text to the active run at its next step.
    Steer,
    /// Abort the active run, then start a run for this message.
    Interrupt,
    Reject,
}

/// Body of `POST /api/sessions/{key}/runs`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SendRequest {
    #[schema(min_length = 1)]
    pub text: String,
    /// The agent that answers. Default: the agent that the session key names, else the default agent.
    pub agent: Option<AgentId>,
    /// Becomes the id of the run. A repeat with the same content is answered with the current state of that run.
    pub idempotency_key: Option<RunId>,
    /// Policy while a run of the session is active. Default: `queue`.
    pub on_busy: Option<OnBusy>,
    /// Time limit of the whole run in milliseconds, counted from its acceptance. If it is absent or 0, the configured
    /// limit applies.
    pub timeout_ms: Option<u64>,
    /// If true, stop text is not recognised and goes to the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub literal: bool,
    /// Files of the message, for its run. At most 10, with at most 12 MiB together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<SendAttachment>,
}

/// A file of a message.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SendAttachment {
    pub name: Option<String>,
    /// Such as `image/png`. Pictures are recognised by their content, and what is declared as one must be one.
    pub media_type: Option<String>,
    /// Base64, also as a `data:` URL.
    pub content: String,
}

/// Answer to an accepted message.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SendAnswer {
    /// The run; for a steered message, the active run.
    pub run_id: RunId,
    pub session_key: SessionKey,
    /// `queued`, `running`, `ending`, `ended` or `steered`.
    pub state: String,
    /// Id of the message itself, if it was steered.
    pub message_id: Option<RunId>,
}

/// Effect of a stop: the answer to a stop text and to a stop of a session, and a part of other answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopAnswer {
    /// True if this call was the first to end something: a run or a background command.
    pub aborted: bool,
    /// Runs that this call stopped, queued ones included.
    pub run_ids: Vec<RunId>,
    /// Runs that the stop covers but that were already ending, because of an earlier stop or by themselves. Absent if
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ending: Vec<RunId>,
    /// Queued messages that this call withdrew, with their texts.
    #[serde(default)]
    pub withdrawn: Vec<Withdrawn>,
    /// Background commands that the stop covers and that had not ended. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessRow>,
    /// The ids of the schedules that this call paused: those that the stopped runs and sessions made, or all if
    /// everything was stopped and is held. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_schedules: Vec<String>,
    /// True if the database has not stored the pauses of schedules within a second. They are in force, and are stored as
    /// soon as it answers; a daemon that ends before that forgets them. Absent if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unstored_pauses: bool,
    /// Nodes of the cluster that could not be asked and may hold something that the stop covers. Absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<UnreachedNode>,
    /// Nodes of the cluster that ended before they answered: what they held is over. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled_nodes: Vec<NodeName>,
}

impl StopAnswer {
    /// A sentence about the nodes that could not be asked, for people; `None` if there are none.
    #[must_use]
    pub fn unreached_text(&self) -> Option<String> {
        let until = self.unreached.iter().map(|node| node.lease_ends_in_ms).max()?;
        let names: Vec<&str> = self.unreached.iter().map(|node| node.node.as_str()).collect();
        let who = if let [name] = names.as_slice() {
            format!("the node {name} does")
        } else {
            format!("the nodes {} do", names.join(", "))
        };
        let stored = if self.unreached.iter().all(|node| node.stored) {
            "the stop is stored for it"
        } else {
            "the stop could not be stored, so send it again"
        };
        Some(format!("{who} not answer; {stored}, and what runs there ends within {} s", until.div_ceil(1000)))
    }

    /// A sentence about pauses of schedules that are not stored, for people; `None` if all are.
    #[must_use]
    pub fn unstored_pauses_text(&self) -> Option<&'static str> {
        self.unstored_pauses.then_some(
            "the database does not answer: the pauses of schedules are in force and are stored as soon as it does; if the \
             daemon ends before that, they fire after its restart, so stop again then",
        )
    }

    /// A sentence about the nodes that ended before they answered, for people; `None` if there are none.
    #[must_use]
    pub fn settled_text(&self) -> Option<String> {
        let names: Vec<&str> = self.settled_nodes.iter().map(|node| node.as_str()).collect();
        let who = match names.as_slice() {
            [] => return None,
            [name] => format!("the node {name}"),
            names => format!("the nodes {}", names.join(", ")),
        };
        Some(format!("{who} ended before the stop was answered: what ran there is over"))
    }
}

/// A node of the cluster that a stop could not ask. When its lease has ended, it holds nothing any more, and another
/// node ends its runs as `daemon_stopped`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnreachedNode {
    pub node: NodeName,
    /// True if the stop is stored: the node carries it out before it renews its lease.
    pub stored: bool,
    pub lease_ends_in_ms: u64,
    /// RFC 3339, by the clock of the node that answers.
    pub lease_ends_by: String,
}

/// A queued message that a stop withdrew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Withdrawn {
    /// The run that the message would have become.
    pub run_id: RunId,
    /// The text, so that a client can put it back into the composer.
    pub text: String,
}

/// Body of `POST /api/runs/{id}/stop`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopRunRequest {
    /// If given, the run is stopped only if it belongs to this session.
    pub session_key: Option<SessionKey>,
    /// Force at once, without the grace of a gentle stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Reason of the stop, for the receipt.
    pub reason: Option<String>,
}

/// Body of `POST /api/sessions/{key}/stop`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopSessionRequest {
    /// Force at once, without the grace of a gentle stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Do not withdraw queued messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_queued: bool,
    /// Do not end background processes of earlier runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_background: bool,
    /// Reason of the stop, for the receipt.
    pub reason: Option<String>,
}

/// Body of `POST /api/stop`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopAllRequest {
    /// Force at once, without the grace of a gentle stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Also refuse new runs until the hold is lifted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Reason of the stop, for the receipts.
    pub reason: Option<String>,
}

/// The answer of all hold routes. The body of `PUT /api/hold` has `held` and `reason` alone.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// True while new runs are refused.
    #[serde(default)]
    pub held: bool,
    pub reason: Option<String>,
    /// Start of the hold, RFC 3339.
    pub since: Option<String>,
    /// The principal who set the hold.
    pub by: Option<Principal>,
    /// Rises with each stored change. A hold that is stored late does not replace a newer word.
    #[serde(default)]
    pub revision: u64,
    /// True if the hold is in force and the database has not stored it; it is stored as soon as possible. Absent if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unstored: bool,
}

/// Answer of `POST /api/agent/{agentId}/abort`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentAbortAnswer {
    /// Always true.
    pub ok: bool,
    pub agent_id: AgentId,
    /// True if at least one run was stopped.
    pub aborted: bool,
    /// The runs that this call stopped.
    pub run_ids: Vec<RunId>,
    /// `not_waiting_llm` if no run was stopped.
    pub reason: Option<String>,
    /// The ids of the schedules that this call paused: those that the stopped runs made. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_schedules: Vec<String>,
    /// Nodes of the cluster that could not be asked. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<UnreachedNode>,
}

/// Compute status of an agent or a run. An agent with several runs has the first of: waiting for the model, processing,
/// stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComputeStatus {
    /// There is no run.
    Idle,
    /// A model request is active, a wait before its retry included.
    WaitingLlm,
    /// A run does anything else.
    Processing,
    /// A run has been stopped and is ending.
    Stopping,
}

impl ComputeStatus {
    /// Of two parts of an agent's work, the status of both together.
    #[must_use]
    pub fn busier(self, other: Self) -> Self {
        let busyness = |status| match status {
            Self::Idle => 0,
            Self::Stopping => 1,
            Self::Processing => 2,
            Self::WaitingLlm => 3,
        };
        if busyness(other) > busyness(self) { other } else { self }
    }
}

/// A run, as `GET /api/runs/{id}` returns it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    pub run_id: RunId,
    pub session_key: SessionKey,
    pub agent: AgentId,
    /// `queued`, `running`, `ending` or `ended`.
    pub state: String,
    /// `waiting_llm` or `processing` while the run is running.
    pub phase: Option<ComputeStatus>,
    /// The principal who sent the message.
    pub principal: Principal,
    /// The surface through which the message came.
    pub surface: Surface,
    /// The run that started this sub-run.
    pub parent: Option<RunId>,
    /// Origin of the run, if it was imported.
    pub imported: Option<Provenance>,
    pub text: String,
    /// Time of acceptance, RFC 3339.
    pub accepted_at: String,
    /// Start of the work, RFC 3339.
    pub started_at: Option<String>,
    /// Time at which the registry aborts the run with the reason `timeout`, if no other limit has ended it before. RFC
    /// 3339.
    pub expires_at: Option<String>,
    /// End of the run, RFC 3339.
    pub ended_at: Option<String>,
    /// Model steps so far.
    pub steps: u32,
    /// Tokens so far.
    pub usage: Usage,
    /// Number of the last event.
    pub seq: u64,
    /// Commands and servers of the run that are alive now. A command counts as one together with its descendants.
    pub processes: u32,
    /// The verdict, once the run is ending.
    pub verdict: Option<Verdict>,
    /// The receipt, once the run has ended.
    pub receipt: Option<Receipt>,
    /// The final text of a completed run; of any other run, the text that the interrupted step had streamed.
    pub output: Option<String>,
    /// The result in the form for embedders, once the run has ended.
    pub result: Option<RunResult>,
    /// Resources that the run has held so far. Present only for a single run that has not ended; afterwards they are in
    /// the receipt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Resource>,
    /// Time at which the stop was requested. Present only while `held` is.
    pub requested_at: Option<Instant>,
    /// Time at which all resources had been told to end. Present only while `held` is.
    pub delivered_at: Option<Instant>,
}

/// Origin of imported data. This daemon did not produce the data and cannot vouch for it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// Time of the import, RFC 3339.
    pub at: String,
    /// The principal who imported the data.
    pub by: Option<Principal>,
    /// The principal who owned the data, as the archive claims.
    pub claims: Option<String>,
}

/// Result of a run in the form for embedders, as in `send --json` and `agent.wait`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// True if the run completed.
    pub success: bool,
    /// True if the run was stopped; false if it had used up a limit.
    pub cancelled: bool,
    /// The limit that was used up: `steps`, `tokens`, or `day` for a daily limit.
    pub limit: Option<String>,
    /// `Execution paused` if the run was stopped, the name of the limit if one was reached, the text of the failure if
    /// it failed.
    pub error: Option<String>,
    /// Number of steps that ran.
    pub loop_count: u32,
}

impl RunResult {
    #[must_use]
    pub fn of(verdict: &Verdict, steps: u32) -> Self {
        let limit = match verdict {
            Verdict::Aborted { reason, .. } => reason.used_up_limit(),
            Verdict::Completed | Verdict::Failed { .. } => None,
        };
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
            cancelled: matches!(verdict, Verdict::Aborted { .. }) && limit.is_none(),
            limit: limit.map(str::to_owned),
            error,
            loop_count: steps,
        }
    }
}

/// A session, as `GET /api/sessions` lists it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRow {
    pub key: SessionKey,
    /// `ready` or `active`.
    pub state: String,
    /// The agent of the last run.
    pub agent: Option<AgentId>,
    /// Time of creation, RFC 3339.
    pub created_at: String,
    /// Time of the last use, RFC 3339.
    pub last_used_at: String,
    /// Runs that have not ended.
    pub active_runs: Vec<RunId>,
    /// Number of sealed turns.
    pub turns: u64,
    /// Origin of the session, if it was imported.
    pub imported: Option<Provenance>,
    /// The principal that created or imported it, where known.
    pub owner: Option<Principal>,
    /// True if every token may read it and send to it, according to its scopes.
    #[serde(default)]
    pub shared: bool,
    /// The workdir of its own, if it has one in place of its agent's.
    pub workdir: Option<String>,
}

/// Body of `PUT /api/sessions/{key}/sharing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SharingRequest {
    /// True: every token may read the session and send to it, according to its scopes. False: only its owner may.
    pub shared: bool,
}

/// An agent, as `GET /api/agents` lists it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRow {
    pub id: AgentId,
    /// `provider/model`; the first one of a list of models.
    pub model: String,
    /// All models, in the order in which they take over when a provider fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The parent in the tree of agents.
    pub parent: Option<AgentId>,
    /// The children in the tree of agents.
    pub children: Vec<AgentId>,
    pub role: Option<String>,
    /// Compute status over all runs of the agent.
    pub compute_status: ComputeStatus,
    /// Runs of the agent that have not ended.
    pub active_runs: Vec<RunId>,
    /// True for the agent that runs when a message names none.
    pub default: bool,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Give this value as `cursor` to get the next page. Absent on the last page.
    pub next_cursor: Option<String>,
}

/// Answer of `POST /api/runs/{id}/stop` that does not wait for the end of the run.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TicketView {
    pub run_id: RunId,
    /// `ending` or `ended`.
    pub state: String,
    /// Effect of the stop. `aborted` is also true if only a descendant was still alive.
    #[serde(flatten)]
    pub stop: StopAnswer,
    pub verdict: Verdict,
    /// The receipt, once the run has ended.
    pub receipt: Option<Receipt>,
}

/// Answer of `POST /api/stop`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopAllAnswer {
    #[serde(flatten)]
    pub stop: StopAnswer,
    /// True if new runs are refused now.
    pub held: bool,
    /// Reason why the hold could not be stored; it then lasts until the daemon ends. Absent if it was stored.
    pub hold_problem: Option<String>,
}
