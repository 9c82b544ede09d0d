//! Approval state machine, and the check of who may decide a pending tool call. The last answer that is needed, a
//! time-out or a stop is final.

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

/// Whether a principal may allow the calls of its own runs with a token alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnCallRule {
    /// Only if the answer verifiably comes from a person.
    #[default]
    PersonOnly,
    /// As the calls of any other run. The operator configures this.
    Allowed,
}

/// A person or program that answers an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approver {
    pub principal: Principal,
    /// Has the access level `admin`.
    pub admin: bool,
    /// Has the grant `approve`.
    pub approve: bool,
    /// The answer verifiably comes from a person, not only from a holder of the token: a process of an agent may have
    /// read a token.
    pub verified_person: bool,
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
    /// The run belongs to the approver's own principal, and nothing shows that a person answers.
    #[error(
        "the run belongs to the same token, and what asks may not allow its own calls; answer with `quell approvals` \
         or `quell chat` on the daemon's machine, in a page signed in by the link of `quell page`, or with the token \
         of somebody else (`[approvals] by_own_principal = true` lifts this rule)"
    )]
    OwnCall,
}

/// Checks whether an approver may give this answer. The principal of a run allows its calls only as a person, unless
/// the operator says otherwise. A sub-run has the principal of the run that started it, so the rule covers the runs
/// above it, too.
pub fn authorize_decision(
    approver: &Approver,
    row: &ApprovalRow,
    decision: Decision,
    rule: OwnCallRule,
) -> Result<(), DecisionForbidden> {
    let (may_approve, is_own) = (approver.admin || approver.approve, approver.principal == row.principal);
    match decision {
        // A call that does not run is harmless, and the owner may stop the whole run anyway.
        Decision::Deny if may_approve || is_own => Ok(()),
        Decision::Deny => Err(DecisionForbidden::MissingApproveScope),
        // A question is for the user. A token alone may be read by a process of the agent, which must not answer it.
        Decision::Allow
            if is_own && row.question.is_some() && (approver.verified_person || rule == OwnCallRule::Allowed) =>
        {
            Ok(())
        }
        Decision::Allow if !may_approve => Err(DecisionForbidden::MissingApproveScope),
        Decision::Allow if row.own_model && !approver.admin => Err(DecisionForbidden::OwnModelNeedsAdmin),
        Decision::Allow if is_own && !approver.verified_person && rule == OwnCallRule::PersonOnly => {
            Err(DecisionForbidden::OwnCall)
        }
        Decision::Allow => Ok(()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalInput {
    Allow(Requester),
    Deny {
        by: Requester,
        /// Told to the model.
        reason: Option<String>,
    },
    /// The time limit passed without an answer, which counts as a denial.
    TimedOut,
    Cancel,
}

/// What an input does to an approval.
#[derive(Debug, Clone, PartialEq)]
pub enum ApprovalStep {
    /// Final from now on.
    Settled(ApprovalRow),
    /// One principal more has allowed the call; others are still needed.
    Counted(ApprovalRow),
    /// This principal has allowed the call before, and others are still needed. Nothing changes.
    CountedBefore,
    /// The approval was final before. Nothing changes.
    SettledBefore,
}

/// Computes the effect of an input. One denial denies; `row.quorum` different principals allow.
#[must_use]
pub fn apply_to_approval(row: &ApprovalRow, input: ApprovalInput) -> ApprovalStep {
    match row.state {
        ApprovalState::Pending => {}
        ApprovalState::Allowed { .. }
        | ApprovalState::Denied { .. }
        | ApprovalState::TimedOut
        | ApprovalState::Cancelled => return ApprovalStep::SettledBefore,
    }
    let state = match input {
        ApprovalInput::Allow(by) => return count_allowance(row, by),
        ApprovalInput::Deny { by, reason } => ApprovalState::Denied { by, reason },
        ApprovalInput::TimedOut => ApprovalState::TimedOut,
        ApprovalInput::Cancel => ApprovalState::Cancelled,
    };
    ApprovalStep::Settled(ApprovalRow { state, ..row.clone() })
}

fn count_allowance(row: &ApprovalRow, by: Requester) -> ApprovalStep {
    if row.allowed_by.iter().any(|earlier| earlier.principal == by.principal) {
        return ApprovalStep::CountedBefore;
    }
    let mut counted = row.clone();
    counted.allowed_by.push(by.clone());
    if counted.missing_allowances() > 0 {
        return ApprovalStep::Counted(counted);
    }
    ApprovalStep::Settled(ApprovalRow { state: ApprovalState::Allowed { by }, ..counted })
}

#[cfg(test)]
mod tests {
    use quell_protocol::question::ServerQuestion;
    use quell_protocol::{AgentId, CallId, RunId, SessionKey, Surface};

    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::parse(name).expect("a principal")
    }

    /// An approval of a run of `ann`.
    fn row(own_model: bool, quorum: u32) -> ApprovalRow {
        ApprovalRow {
            id: "a".to_owned(),
            run_id: RunId::parse("r").expect("a run"),
            session_key: SessionKey::parse("s").expect("a session"),
            agent: AgentId::parse("main").expect("an agent"),
            principal: principal("ann"),
            call_id: CallId::parse("c").expect("a call"),
            tool: "shell".to_owned(),
            arguments: serde_json::Value::Null,
            escalation: None,
            question: None,
            answer_fields: None,
            requested_at: String::new(),
            expires_at: String::new(),
            own_model,
            quorum,
            allowed_by: Vec::new(),
            state: ApprovalState::Pending,
        }
    }

    /// The rule in other words: for every approver, kind of run and rule of the operator.
    #[test]
    fn only_another_principal_or_a_person_allows_a_call() {
        let flags = [false, true];
        let mut cases = Vec::new();
        for name in ["ann", "bob"] {
            for admin in flags {
                for approve in flags {
                    for verified_person in flags {
                        cases.push(Approver { principal: principal(name), admin, approve, verified_person });
                    }
                }
            }
        }
        for approver in cases {
            for own_model in flags {
                for rule in [OwnCallRule::PersonOnly, OwnCallRule::Allowed] {
                    let row = row(own_model, 1);
                    let is_own = approver.principal == row.principal;
                    let has_right = approver.admin || approver.approve;
                    let denied = authorize_decision(&approver, &row, Decision::Deny, rule);
                    assert_eq!(denied.is_ok(), has_right || is_own, "{approver:?}");
                    let expected = if !has_right {
                        Err(DecisionForbidden::MissingApproveScope)
                    } else if own_model && !approver.admin {
                        Err(DecisionForbidden::OwnModelNeedsAdmin)
                    } else if is_own && !approver.verified_person && rule != OwnCallRule::Allowed {
                        Err(DecisionForbidden::OwnCall)
                    } else {
                        Ok(())
                    };
                    let allowed = authorize_decision(&approver, &row, Decision::Allow, rule);
                    assert_eq!(allowed, expected, "{approver:?} {own_model} {rule:?}");
                }
            }
        }
    }

    #[test]
    fn a_question_is_answered_by_the_user_as_a_person() {
        let question = ServerQuestion { server: "s".to_owned(), message: "m".to_owned(), fields: Vec::new() };
        let row = ApprovalRow { question: Some(Box::new(question)), ..row(false, 1) };
        let check = |name: &str, verified_person, rule| {
            let approver = Approver { principal: principal(name), admin: false, approve: false, verified_person };
            authorize_decision(&approver, &row, Decision::Allow, rule)
        };
        assert_eq!(check("ann", true, OwnCallRule::PersonOnly), Ok(()));
        assert_eq!(check("ann", false, OwnCallRule::Allowed), Ok(()));
        assert_eq!(check("ann", false, OwnCallRule::PersonOnly), Err(DecisionForbidden::MissingApproveScope));
        assert_eq!(check("bob", true, OwnCallRule::Allowed), Err(DecisionForbidden::MissingApproveScope));
    }

    fn by(name: &str, surface: Surface) -> Requester {
        Requester { principal: principal(name), surface }
    }

    fn settled(step: ApprovalStep) -> ApprovalRow {
        let ApprovalStep::Settled(row) = step else { panic!("{step:?}") };
        row
    }

    fn inputs() -> [ApprovalInput; 4] {
        let by = || by("ann", Surface::Http);
        let deny = ApprovalInput::Deny { by: by(), reason: Some("not now".to_owned()) };
        [ApprovalInput::Allow(by()), deny, ApprovalInput::TimedOut, ApprovalInput::Cancel]
    }

    #[test]
    fn the_first_final_answer_stands_and_every_later_one_is_refused() {
        let mut words = Vec::new();
        for first in inputs() {
            let row = settled(apply_to_approval(&row(false, 1), first));
            words.push(row.state.decision_str());
            for later in inputs() {
                assert_eq!(apply_to_approval(&row, later), ApprovalStep::SettledBefore);
            }
        }
        assert_eq!(words, ["allow", "deny", "timeout", "cancelled"]);
    }

    #[test]
    fn a_quorum_counts_different_principals_and_one_denial_ends_it() {
        let first = apply_to_approval(&row(false, 3), ApprovalInput::Allow(by("bob", Surface::Http)));
        let ApprovalStep::Counted(row) = first else { panic!("{first:?}") };
        assert_eq!(row.missing_allowances(), 2);
        let again = apply_to_approval(&row, ApprovalInput::Allow(by("bob", Surface::Page)));
        assert_eq!(again, ApprovalStep::CountedBefore, "another surface is not another person");
        let second = apply_to_approval(&row, ApprovalInput::Allow(by("cy", Surface::Cli)));
        let ApprovalStep::Counted(row) = second else { panic!("{second:?}") };
        let deny = ApprovalInput::Deny { by: by("bob", Surface::Http), reason: None };
        assert_eq!(settled(apply_to_approval(&row, deny)).state.decision_str(), "deny", "also after an allowance");
        assert_eq!(settled(apply_to_approval(&row, ApprovalInput::TimedOut)).state, ApprovalState::TimedOut);
        let allowed = settled(apply_to_approval(&row, ApprovalInput::Allow(by("dee", Surface::Ws))));
        assert_eq!(allowed.state, ApprovalState::Allowed { by: by("dee", Surface::Ws) });
        let names: Vec<&str> = allowed.allowed_by.iter().map(|by| by.principal.as_str()).collect();
        assert_eq!((names, allowed.missing_allowances()), (vec!["bob", "cy", "dee"], 0));
    }
}
