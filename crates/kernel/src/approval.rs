//! The life of an approval: a call waits for a person; the first answer, time-out or stop settles it for good.

use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};
use quell_protocol::{By, Principal};
use serde::{Deserialize, Serialize};

/// Whether a tool's calls wait for a person; the later is the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// They run.
    #[default]
    Auto,
    /// Each waits.
    Ask,
    /// None runs.
    Deny,
}

/// Who answers for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approver {
    /// Its name.
    pub principal: Principal,
    /// True when it may do everything.
    pub admin: bool,
    /// True when it may decide approvals.
    pub approve: bool,
}

/// Why somebody may not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MayNot {
    /// It has no scope for that.
    #[error("to allow a call takes the scope approve; whoever sent the message may deny it")]
    Decide,
    /// What asks is a model that the session brought along: whoever did that would allow its own calls.
    #[error("the run has a model or an MCP endpoint that its session brought along; only an admin may allow its calls")]
    AllowOwnModel,
}

/// Whether somebody may give this answer. What asked never approves.
///
/// # Errors
/// [`MayNot`].
pub fn may_answer(who: &Approver, row: &ApprovalRow, decision: Decision) -> Result<(), MayNot> {
    match decision {
        _ if who.admin => Ok(()),
        // A call that does not run harms nobody, and its owner may stop the whole run.
        Decision::Deny if who.approve || who.principal == row.principal => Ok(()),
        Decision::Allow if who.approve && row.own_model => Err(MayNot::AllowOwnModel),
        Decision::Allow if who.approve => Ok(()),
        Decision::Allow | Decision::Deny => Err(MayNot::Decide),
    }
}

/// What can happen to an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalInput {
    /// A person lets the call run.
    Allow(By),
    /// A person forbids it.
    Deny(By),
    /// Nobody answered in time: a denial that says so.
    TimedOut,
    /// The run was stopped.
    Cancel,
}

/// One transition; none when the approval was settled before and stays as it is.
#[must_use]
pub fn settle(state: &ApprovalState, input: ApprovalInput) -> Option<ApprovalState> {
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
    fn who_writes_does_not_approve_and_own_models_take_an_admin() {
        let who = |name, admin, approve| Approver { principal: principal(name), admin, approve };
        let (writer, approver, admin) = (who("ann", false, false), who("ann", false, true), who("root", true, false));
        let other = who("bob", false, false);
        for own_model in [false, true] {
            let (row, allow, deny) = (row(own_model), Decision::Allow, Decision::Deny);
            assert_eq!(may_answer(&writer, &row, allow), Err(MayNot::Decide));
            assert_eq!(may_answer(&writer, &row, deny), Ok(()));
            assert_eq!(may_answer(&other, &row, deny), Err(MayNot::Decide));
            assert_eq!(may_answer(&admin, &row, allow), Ok(()));
            assert_eq!(may_answer(&approver, &row, deny), Ok(()));
            let expected = if own_model { Err(MayNot::AllowOwnModel) } else { Ok(()) };
            assert_eq!(may_answer(&approver, &row, allow), expected);
            assert_eq!(may_answer(&who("bob", false, true), &row, allow), expected, "whoever it is");
        }
    }

    fn inputs() -> [ApprovalInput; 4] {
        let by = || By { principal: principal("ann"), surface: Surface::Http };
        [ApprovalInput::Allow(by()), ApprovalInput::Deny(by()), ApprovalInput::TimedOut, ApprovalInput::Cancel]
    }

    #[test]
    fn the_first_word_stands_and_every_later_one_is_refused() {
        let mut words = Vec::new();
        for first in inputs() {
            let settled = settle(&ApprovalState::Pending, first).expect("it was pending");
            words.push(settled.word());
            for later in inputs() {
                assert_eq!(settle(&settled, later), None);
            }
        }
        assert_eq!(words, ["allow", "deny", "timeout", "cancelled"]);
    }
}
