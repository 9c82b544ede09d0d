//! Events of a run. `seq` counts from 1 and rises. A gap is legal only before a `run.snapshot`, after a crash, and where an
//! event tells of a sub-run's approval that the reader may not see.

use serde::{Deserialize, Serialize};

use crate::approval::{ApprovalRow, Escalation, default_quorum};
use crate::ids::{AgentId, CallId, RunId, SessionKey};
use crate::receipt::{Receipt, Usage};
use crate::verdict::{Requester, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunEvent {
    pub run_id: RunId,
    pub session_key: SessionKey,
    /// The number of the event within the run, from 1.
    pub seq: u64,
    /// Time of the event, RFC 3339 with microseconds, UTC.
    pub at: String,
    /// The kind of event, with its data.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl RunEvent {
    /// The name of the event on the wire, such as `text.delta`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type")]
pub enum EventKind {
    /// The run was accepted and waits for its session or for a permit.
    #[serde(rename = "run.queued")]
    Queued { agent: AgentId },
    #[serde(rename = "run.started")]
    Started { agent: AgentId },
    /// A step begins: the next model request and its calls.
    #[serde(rename = "step.started")]
    StepStarted {
        /// The number of the step, from 1.
        step: u32,
    },
    /// Visible text was added.
    #[serde(rename = "text.delta")]
    TextDelta { text: String },
    /// Reasoning was added.
    #[serde(rename = "thinking.delta")]
    ThinkingDelta { text: String },
    /// A call of a message with several is about to start, or waits for others. Sent for all of them, in order, before
    /// the first one starts. `tool.started` or `tool.ended` follows.
    #[serde(rename = "tool.waiting")]
    #[serde(rename_all = "camelCase")]
    ToolWaiting {
        call_id: CallId,
        tool: String,
        /// The arguments as the model gave them.
        #[schema(value_type = Object)]
        arguments: serde_json::Value,
    },
    #[serde(rename = "tool.started")]
    #[serde(rename_all = "camelCase")]
    ToolStarted {
        call_id: CallId,
        tool: String,
        /// The arguments as the model gave them.
        #[schema(value_type = Object)]
        arguments: serde_json::Value,
    },
    /// A tool call printed something.
    #[serde(rename = "tool.output")]
    #[serde(rename_all = "camelCase")]
    ToolOutput {
        call_id: CallId,
        stream: ToolOutputStream,
        /// The added output, without escape sequences. A carriage return at its beginning takes back the unfinished
        /// line, as progress displays do; there is none elsewhere. Of a large amount only beginning and end are sent,
        /// with a line between them that says how much is left out.
        text: String,
    },
    #[serde(rename = "tool.ended")]
    #[serde(rename_all = "camelCase")]
    ToolEnded {
        call_id: CallId,
        end: CallEnd,
        /// The exit code, if the call was a command that exited.
        code: Option<i32>,
        /// The result as the model reads it. Of a long text only beginning and end are sent, with a line between them
        /// that says how much is left out; the history of the session has all of it.
        output: String,
        /// Unified diffs of the files that the call changed, shortened as the output is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        diff: Option<String>,
        /// The duration of the call in milliseconds.
        ms: f64,
    },
    /// A call waits for a person.
    #[serde(rename = "approval.requested")]
    #[serde(rename_all = "camelCase")]
    ApprovalRequested {
        id: String,
        call_id: CallId,
        tool: String,
        /// The arguments as the model gave them, without `escalate`.
        #[schema(value_type = Object)]
        arguments: serde_json::Value,
        /// Present if the call asks to run outside of the sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        escalation: Option<Box<Escalation>>,
        /// Time after which the call is denied if nobody has answered, RFC 3339.
        expires_at: String,
        /// Number of different principals that must allow the call.
        #[serde(default = "default_quorum")]
        quorum: u32,
    },
    /// One principal more has allowed a call that needs several.
    #[serde(rename = "approval.updated")]
    #[serde(rename_all = "camelCase")]
    ApprovalUpdated {
        id: String,
        /// Those who have allowed the call so far.
        allowed_by: Vec<Requester>,
        /// Number of different principals that must allow the call.
        quorum: u32,
    },
    /// An approval was answered by a person, or ended by a stop or by its time limit.
    #[serde(rename = "approval.resolved")]
    ApprovalResolved {
        id: String,
        /// `allow`, `deny`, `cancelled` or `timeout`.
        decision: String,
        /// The person who answered, if one did.
        by: Option<Requester>,
        /// Why the call was denied, if that person said it.
        #[serde(default)]
        reason: Option<String>,
    },
    /// A call of a run below this one, at any depth, waits for a person. Only readers that may see that approval get the
    /// event.
    #[serde(rename = "sub_run.approval_requested")]
    SubRunApprovalRequested {
        /// The approval as `GET /api/approvals` lists it. Its `runId` is that of the sub-run.
        approval: Box<ApprovalRow>,
    },
    /// An approval that this run has announced by `sub_run.approval_requested` was answered by a person, or ended by a
    /// stop or by its time limit.
    #[serde(rename = "sub_run.approval_resolved")]
    SubRunApprovalResolved {
        /// The approval; its `state` says how it ended.
        approval: Box<ApprovalRow>,
    },
    /// The state of the run so far, for a client that fell behind and missed events.
    #[serde(rename = "run.snapshot")]
    #[serde(rename_all = "camelCase")]
    Snapshot {
        /// Text of the steps before the current one, without separators.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        earlier_text: String,
        /// Text of the current step so far.
        text: String,
        /// Reasoning of the current step so far.
        thinking: String,
        /// Calls of this run so far.
        calls: Vec<SnapshotCall>,
        /// Calls of this run and of the runs below it that wait for a person, oldest first, as `GET /api/approvals` lists
        /// them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        approvals: Vec<ApprovalRow>,
    },
    /// The run is ending: no delta and no start of a tool follows.
    #[serde(rename = "run.ending")]
    Ending {
        /// The verdict, which never changes again.
        verdict: Verdict,
    },
    /// The run has ended. No event follows.
    #[serde(rename = "run.ended")]
    #[serde(rename_all = "camelCase")]
    Ended {
        verdict: Verdict,
        receipt: Box<Receipt>,
        /// Number of model steps that ran.
        steps: u32,
        /// The text of the answer, if the run completed.
        text: Option<String>,
    },
    /// An attempt of a model request failed and will be repeated.
    #[serde(rename = "model.retry")]
    #[serde(rename_all = "camelCase")]
    ModelRetry {
        /// The number of the failed attempt, from 1.
        attempt: u32,
        /// The maximum number of attempts.
        attempts: u32,
        /// Milliseconds until the next attempt.
        delay_ms: u64,
        /// The reason of the failure, for people.
        reason: String,
    },
    /// The provider has searched the web by itself.
    #[serde(rename = "model.search")]
    ModelSearch {
        /// What it has searched for.
        query: String,
    },
    /// A provider has failed before its answer began: from now on the run uses another model.
    #[serde(rename = "model.fallback")]
    ModelFallback {
        /// The model that failed, as `provider/model`.
        from: String,
        /// The model that takes over.
        to: String,
        /// The reason of the failure, for people.
        reason: String,
    },
    /// The conversation was too long: from now on a summary replaces its oldest turns.
    #[serde(rename = "context.compacted")]
    Compacted {
        /// The number of summarised turns.
        turns: u32,
        /// The summary, as the model will read it.
        summary: String,
    },
    /// The tokens of the run changed.
    #[serde(rename = "usage")]
    Usage {
        /// The tokens of the run so far.
        usage: Usage,
    },
}

impl EventKind {
    /// The name on the wire.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "run.queued",
            Self::Started { .. } => "run.started",
            Self::StepStarted { .. } => "step.started",
            Self::TextDelta { .. } => "text.delta",
            Self::ThinkingDelta { .. } => "thinking.delta",
            Self::ToolWaiting { .. } => "tool.waiting",
            Self::ToolStarted { .. } => "tool.started",
            Self::ToolOutput { .. } => "tool.output",
            Self::ToolEnded { .. } => "tool.ended",
            Self::ApprovalRequested { .. } => "approval.requested",
            Self::ApprovalUpdated { .. } => "approval.updated",
            Self::ApprovalResolved { .. } => "approval.resolved",
            Self::SubRunApprovalRequested { .. } => "sub_run.approval_requested",
            Self::SubRunApprovalResolved { .. } => "sub_run.approval_resolved",
            Self::Snapshot { .. } => "run.snapshot",
            Self::Ending { .. } => "run.ending",
            Self::Ended { .. } => "run.ended",
            Self::ModelRetry { .. } => "model.retry",
            Self::ModelSearch { .. } => "model.search",
            Self::ModelFallback { .. } => "model.fallback",
            Self::Compacted { .. } => "context.compacted",
            Self::Usage { .. } => "usage",
        }
    }

    /// True for events that a lagging client may miss: a snapshot repeats their content.
    #[must_use]
    pub fn is_delta(&self) -> bool {
        matches!(self, Self::TextDelta { .. } | Self::ThinkingDelta { .. } | Self::ToolOutput { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutputStream {
    Stdout,
    Stderr,
}

/// How a tool call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallEnd {
    /// The call returned a result.
    Ok,
    /// The call returned an error that the model can read.
    Error,
    /// A stop ended the call while it ran; side effects are possible.
    Stopped,
    /// A stop came before the call began; there are no side effects.
    NotStarted,
    /// The call was not allowed; there are no side effects.
    Denied,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCall {
    pub call_id: CallId,
    pub tool: String,
    /// True for a call of a message with several that has not started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting: bool,
    /// How the call ended; absent while it waits or runs.
    pub end: Option<CallEnd>,
    /// The exit code, if the call was a command that exited.
    pub code: Option<i32>,
    /// The duration in milliseconds; absent while the call runs.
    pub ms: Option<f64>,
    /// The result as the model reads it, shortened as in `tool.ended`; absent while the call runs.
    pub output: Option<String>,
    /// Unified diffs of the files that the call changed, shortened as the output is.
    pub diff: Option<String>,
}
