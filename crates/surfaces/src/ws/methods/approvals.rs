//! Calls that wait for a person, under the gateway's names and under Quell's own.

use quell_engine::dispatch::AnswerError;
use quell_protocol::api::Scope;
use quell_protocol::approval::{ApprovalRow, Decision};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::shapes;
use super::{Answer, Call, params};

/// Looking or answering is enough to see what waits.
fn may_look(call: &Call<'_>) -> Result<(), Refusal> {
    if call.peer.caller.may_approve() { Ok(()) } else { call.peer.needs(Scope::Read) }
}

/// `approvals.list`.
pub(super) fn list(call: &Call<'_>) -> Answer {
    may_look(call)?;
    Ok(json!({"approvals": call.door.engine().approvals()}))
}

/// `plugin.approval.list`: a bare array.
pub(super) fn plugin_list(call: &Call<'_>) -> Answer {
    may_look(call)?;
    Ok(call.door.engine().approvals().iter().map(shapes::approval).collect())
}

#[derive(Debug, Deserialize)]
struct Resolve {
    id: String,
    decision: Word,
}

/// The gateway's words for a decision; Quell remembers none, so "always" is once.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Allow,
    AllowOnce,
    AllowAlways,
    Deny,
}

/// `approvals.resolve` and `plugin.approval.resolve`.
pub(super) fn resolve(call: &Call<'_>, value: Value) -> Answer {
    call.peer.needs_to_answer()?;
    let asked: Resolve = params(value)?;
    // There is no lasting permission here but the configuration's: "always" is taken for this one call, and the answer says so.
    let decision = match asked.decision {
        Word::Allow | Word::AllowOnce | Word::AllowAlways => Decision::Allow,
        Word::Deny => Decision::Deny,
    };
    let row: ApprovalRow = call.door.engine().answer_approval(&call.peer.caller, &asked.id, decision)?;
    let taken = if decision == Decision::Allow { "allow-once" } else { "deny" };
    Ok(json!({"ok": true, "approval": row, "decision": taken}))
}

impl From<AnswerError> for Refusal {
    fn from(error: AnswerError) -> Self {
        let code = match &error {
            AnswerError::Unknown(_) => "APPROVAL_NOT_FOUND",
            AnswerError::NotYours(..) => "APPROVAL_NOT_YOURS",
            AnswerError::Settled(_) => "APPROVAL_ALREADY_RESOLVED",
        };
        Self::invalid(error.to_string()).with_details(json!({"code": code}))
    }
}
