//! Events of a run. `seq` counts from 1 and rises; a hole stands only before a `run.snapshot`.

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, CallId, RunId, SessionKey};
use crate::receipt::{Receipt, Usage};
use crate::verdict::{By, Verdict};

/// One event of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunEvent {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_key: SessionKey,
    /// Number within the run, from 1.
    pub seq: u64,
    /// RFC 3339 with microseconds, UTC.
    pub at: String,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl RunEvent {
    /// The event's name on the wire, such as `text.delta`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }
}

/// What can happen to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type")]
pub enum EventKind {
    /// Accepted; waits for its session or for a permit.
    #[serde(rename = "run.queued")]
    Queued {
        /// The agent that will run.
        agent: AgentId,
    },
    /// Work has begun.
    #[serde(rename = "run.started")]
    Started {
        /// The agent that runs.
        agent: AgentId,
    },
    /// A model call begins.
    #[serde(rename = "step.started")]
    StepStarted {
        /// From 1.
        step: u32,
    },
    /// Visible text.
    #[serde(rename = "text.delta")]
    TextDelta {
        /// What was added.
        text: String,
    },
    /// Reasoning text.
    #[serde(rename = "thinking.delta")]
    ThinkingDelta {
        /// What was added.
        text: String,
    },
    /// A tool call begins.
    #[serde(rename = "tool.started")]
    #[serde(rename_all = "camelCase")]
    ToolStarted {
        /// The call.
        call_id: CallId,
        /// The tool's name.
        tool: String,
        /// Arguments as the model gave them.
        #[schema(value_type = Object)]
        arguments: serde_json::Value,
    },
    /// A tool call printed something.
    #[serde(rename = "tool.output")]
    #[serde(rename_all = "camelCase")]
    ToolOutput {
        /// The call.
        call_id: CallId,
        /// Which stream.
        stream: ToolOutputStream,
        /// What was added, without escape sequences. A carriage return at its beginning takes back the line that is open, as
        /// progress does; there is no other. Of much at once both ends, with a line between them that says how much is left out.
        text: String,
    },
    /// A tool call is over.
    #[serde(rename = "tool.ended")]
    #[serde(rename_all = "camelCase")]
    ToolEnded {
        /// The call.
        call_id: CallId,
        /// How it ended.
        end: CallEnd,
        /// Exit code, where the call was a command that exited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        /// What the model will read. Of a long text both ends, with a line between them that says how much is left out; the
        /// session's history has all of it.
        output: String,
        /// Milliseconds it took.
        ms: f64,
    },
    /// A call waits for a person.
    #[serde(rename = "approval.requested")]
    #[serde(rename_all = "camelCase")]
    ApprovalRequested {
        /// The approval.
        id: String,
        /// The call that waits.
        call_id: CallId,
        /// The tool's name.
        tool: String,
        /// Arguments as the model gave them.
        #[schema(value_type = Object)]
        arguments: serde_json::Value,
        /// RFC 3339: when silence becomes a denial.
        expires_at: String,
    },
    /// A person, a stop or the time answered an approval.
    #[serde(rename = "approval.resolved")]
    ApprovalResolved {
        /// The approval.
        id: String,
        /// `allow`, `deny`, `cancelled` or `timeout`.
        decision: String,
        /// Who answered, where a person did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<By>,
    },
    /// What a client that fell behind has missed: everything so far.
    #[serde(rename = "run.snapshot")]
    Snapshot {
        /// Text of the current step so far.
        text: String,
        /// Reasoning of the current step so far.
        thinking: String,
        /// Calls of this run so far.
        calls: Vec<SnapshotCall>,
    },
    /// The stream is over: no delta and no tool start follows.
    #[serde(rename = "run.ending")]
    Ending {
        /// The verdict, which never changes again.
        verdict: Verdict,
    },
    /// Nothing follows.
    #[serde(rename = "run.ended")]
    #[serde(rename_all = "camelCase")]
    Ended {
        /// The verdict.
        verdict: Verdict,
        /// The receipt.
        receipt: Box<Receipt>,
        /// Model steps that ran.
        steps: u32,
        /// The answer's text, when completed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// An attempt of a model call failed, and there will be another one.
    #[serde(rename = "model.retry")]
    #[serde(rename_all = "camelCase")]
    ModelRetry {
        /// The attempt that failed, from 1.
        attempt: u32,
        /// Attempts that there are at most.
        attempts: u32,
        /// Milliseconds until the next one.
        delay_ms: u64,
        /// Why it failed, for people.
        reason: String,
    },
    /// The conversation was too long: a summary stands in for its oldest turns from now on.
    #[serde(rename = "context.compacted")]
    Compacted {
        /// How many turns were summarised.
        turns: u32,
        /// The summary, as the model will read it.
        summary: String,
    },
    /// Tokens so far.
    #[serde(rename = "usage")]
    Usage {
        /// The run's tokens so far.
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
            Self::ToolStarted { .. } => "tool.started",
            Self::ToolOutput { .. } => "tool.output",
            Self::ToolEnded { .. } => "tool.ended",
            Self::ApprovalRequested { .. } => "approval.requested",
            Self::ApprovalResolved { .. } => "approval.resolved",
            Self::Snapshot { .. } => "run.snapshot",
            Self::Ending { .. } => "run.ending",
            Self::Ended { .. } => "run.ended",
            Self::ModelRetry { .. } => "model.retry",
            Self::Compacted { .. } => "context.compacted",
            Self::Usage { .. } => "usage",
        }
    }

    /// True for what a lagging client may miss: it is repeated, in sum, by a snapshot.
    #[must_use]
    pub fn is_delta(&self) -> bool {
        matches!(self, Self::TextDelta { .. } | Self::ThinkingDelta { .. } | Self::ToolOutput { .. })
    }
}

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a tool call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallEnd {
    /// It returned a result.
    Ok,
    /// It returned an error that the model can read.
    Error,
    /// A stop ended it while it ran; side effects are possible.
    Stopped,
    /// A stop came before it began; nothing happened.
    NotStarted,
    /// It was not allowed; nothing happened.
    Denied,
}

/// A call in a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCall {
    /// The call.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// How it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<CallEnd>,
    /// Exit code, where the call was a command that exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Milliseconds it took; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// What the model will read, cut as in `tool.ended`; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}
