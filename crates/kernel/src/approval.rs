//! Approval state machine, and the check of who may decide a pending tool call. The first answer, time-out or stop is
//! final.

use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};
use quell_protocol::{Principal, Requester};
use serde::{Deserialize, Serialize};

/// Policy for the calls of a tool. The order is by strictness: a later variant is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// Run the call.
    #[default]
    Auto,
    /// Wait for a person.
    Ask,
    Deny,
}

/// A person or program that answers an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approver {
    pub principal: Principal,
    /// Has the access level `admin`.
    pub admin: bool,
    /// Has the grant `approve`.
    pub approve: bool,
}

/// Reason why an approver may not give an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecisionForbidden {
    #[error("allowing a call needs the scope approve; the sender of the message may deny it")]
    MissingApproveScope,
    /// The session of the run has a model or an MCP endpoint of its own. The owner of the session controls that model
    /// and could allow its own calls.
    #[error("the run uses a model or an MCP endpoint that its session configured; only an admin may allow its calls")]
    OwnModelNeedsAdmin,
}

/// Checks whether an approver may give this answer. The principal whose run asks cannot allow the call without the
/// grant `approve`.
pub fn authorize_decision(approver: &Approver, row: &ApprovalRow, decision: Decision) -> Result<(), DecisionForbidden> {
    match decision {
        _ if approver.admin => Ok(()),
        // A call that does not run is harmless, and the owner may stop the whole run anyway.
        Decision::Deny if approver.approve || approver.principal == row.principal => Ok(()),
        Decision::Allow if approver.approve && row.own_model => Err(DecisionForbidden::OwnModelNeedsAdmin),
        Decision::Allow if approver.approve => Ok(()),
        Decision::Allow | Decision::Deny => Err(DecisionForbidden::MissingApproveScope),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalInput {
    Allow(Requester),
    Deny(Requester),
    /// The time limit passed without an answer, which counts as a denial.
    TimedOut,
    Cancel,
}

/// Computes the next state; none if the approval was already settled.
#[must_use]
pub fn settle_approval(state: &ApprovalState, input: ApprovalInput) -> Option<ApprovalState> {
    match state {
        ApprovalState::Pending => Some(match input {
            ApprovalInput::Allow(by) => ApprovalState::Allowed { by },
            ApprovalInput::Deny(by) => ApprovalState::Denied { by },
            ApprovalInput::TimedOut => ApprovalState::TimedOut,
            ApprovalInput::Cancel => ApprovalState::Cancelled,
        }),
        ApprovalState::Allowed { .. }
        | ApprovalState::Denied { .. }
        | ApprovalState::TimedOut
        | ApprovalState::Cancelled => None,
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::{AgentId, CallId, RunId, SessionKey, Surface};

    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::parse(name).expect("a principal")
    }

    fn row(own_model: bool) -> ApprovalRow {
        ApprovalRow {
            id: "a".to_owned(),
            run_id: RunId::parse("r").expect("a run"),
            session_key: SessionKey::parse("s").expect("a session"),
            agent: AgentId::parse("main").expect("an agent"),
            principal: principal("ann"),
            call_id: CallId::parse("c").expect("a call"),
            tool: "shell".to_owned(),
            arguments: serde_json::Value::Null,
            requested_at: String::new(),
            expires_at: String::new(),
            own_model,
            state: ApprovalState::Pending,
        }
    }

    #[test]
    fn approving_needs_the_scope_and_own_models_an_admin() {
        let approver_with = |name, admin, approve| Approver { principal: principal(name), admin, approve };
        let (writer, approver, admin) =
            (approver_with("ann", false, false), approver_with("ann", false, true), approver_with("root", true, false));
        let other = approver_with("bob", false, false);
        for own_model in [false, true] {
            let (row, allow, deny) = (row(own_model), Decision::Allow, Decision::Deny);
            assert_eq!(authorize_decision(&writer, &row, allow), Err(DecisionForbidden::MissingApproveScope));
            assert_eq!(authorize_decision(&writer, &row, deny), Ok(()));
            assert_eq!(authorize_decision(&other, &row, deny), Err(DecisionForbidden::MissingApproveScope));
            assert_eq!(authorize_decision(&admin, &row, allow), Ok(()));
            assert_eq!(authorize_decision(&approver, &row, deny), Ok(()));
            let expected = if own_model { Err(DecisionForbidden::OwnModelNeedsAdmin) } else { Ok(()) };
            assert_eq!(authorize_decision(&approver, &row, allow), expected);
            assert_eq!(authorize_decision(&approver_with("bob", false, true), &row, allow), expected, "any approver");
        }
    }

    fn inputs() -> [ApprovalInput; 4] {
        let by = || Requester { principal: principal("ann"), surface: Surface::Http };
        [ApprovalInput::Allow(by()), ApprovalInput::Deny(by()), ApprovalInput::TimedOut, ApprovalInput::Cancel]
    }

    #[test]
    fn the_first_word_stands_and_every_later_one_is_refused() {
        let mut words = Vec::new();
        for first in inputs() {
            let settled = settle_approval(&ApprovalState::Pending, first).expect("it was pending");
            words.push(settled.decision_str());
            for later in inputs() {
                assert_eq!(settle_approval(&settled, later), None);
            }
        }
        assert_eq!(words, ["allow", "deny", "timeout", "cancelled"]);
    }
}
