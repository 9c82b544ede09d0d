//! Bodies of approvals: calls that wait for a person.

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, CallId, Principal, RunId, SessionKey};
use crate::verdict::Requester;

/// State of an approval. Once it is not pending it never changes again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ApprovalState {
    /// The call waits for a person.
    Pending,
    /// A person allowed the call.
    Allowed {
        /// The person, and the surface of the answer.
        by: Requester,
    },
    /// A person denied the call.
    Denied {
        /// The person, and the surface of the answer.
        by: Requester,
    },
    /// No answer came in time. The call did not run.
    TimedOut,
    /// The run was stopped before an answer came. The call did not run.
    Cancelled,
}

impl ApprovalState {
    /// The decision as `approval.resolved` carries it; `pending` while there is none.
    #[must_use]
    pub fn decision_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allowed { .. } => "allow",
            Self::Denied { .. } => "deny",
            Self::TimedOut => "timeout",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An approval, as the API returns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRow {
    pub id: String,
    /// The run whose call waits.
    pub run_id: RunId,
    pub session_key: SessionKey,
    pub agent: AgentId,
    /// The principal of the run. This principal may deny the call; to allow it takes the scope `approve`.
    pub principal: Principal,
    pub call_id: CallId,
    pub tool: String,
    /// The arguments as the model gave them.
    #[schema(value_type = Object)]
    pub arguments: serde_json::Value,
    /// Time of the request, RFC 3339.
    pub requested_at: String,
    /// Time after which the call is denied if nobody has answered, RFC 3339.
    pub expires_at: String,
    /// True if the session of this run, or of a run above it, has a model or an MCP endpoint of its own. Only an admin
    /// may then allow the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_model: bool,
    #[serde(flatten)]
    pub state: ApprovalState,
}

/// A person's answer to an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Deny,
}

/// Body of `POST /api/approvals/{id}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalAnswer {
    pub decision: Decision,
}
