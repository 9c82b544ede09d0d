//! Approvals: calls that wait for a person.

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, CallId, Principal, RunId, SessionKey};
use crate::verdict::By;

/// Where an approval stands. The first word about it stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ApprovalState {
    /// It waits for a person.
    Pending,
    /// A person let the call run.
    Allowed {
        /// Who.
        by: By,
    },
    /// A person forbade it.
    Denied {
        /// Who.
        by: By,
    },
    /// Nobody answered in time: the call did not run.
    TimedOut,
    /// A stop came first: the call did not run.
    Cancelled,
}

impl ApprovalState {
    /// The decision as `approval.resolved` tells it; `pending` while there is none.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allowed { .. } => "allow",
            Self::Denied { .. } => "deny",
            Self::TimedOut => "timeout",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An approval as the doors show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRow {
    /// Its id.
    pub id: String,
    /// The run whose call waits.
    pub run_id: RunId,
    /// Its session.
    pub session_key: SessionKey,
    /// The agent that runs.
    pub agent: AgentId,
    /// Whose run it is. That one may deny; to allow takes the scope `approve`.
    pub principal: Principal,
    /// The call.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// Arguments as the model gave them.
    #[schema(value_type = Object)]
    pub arguments: serde_json::Value,
    /// RFC 3339.
    pub requested_at: String,
    /// RFC 3339: when silence becomes a denial.
    pub expires_at: String,
    /// True when the run, or one above it, has a model or an MCP endpoint that its session brought along: only an admin allows its
    /// calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_model: bool,
    /// Where it stands.
    #[serde(flatten)]
    pub state: ApprovalState,
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call runs.
    Allow,
    /// It does not.
    Deny,
}

/// Body of an answer to an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalAnswer {
    /// The decision.
    pub decision: Decision,
}
