//! `approvals.list`, `approvals.resolve` and their `plugin.approval.*` aliases.

use quell_engine::engine::AnswerError;
use quell_protocol::api::AccessLevel;
use quell_protocol::approval::{AllowanceScope, ApprovalAnswer, ApprovalRow, Decision};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::frame::{APPROVAL_NOT_FOUND, APPROVAL_NOT_YOURS, RpcError};
use super::super::payloads;
use super::{RpcResult, WsClient, parse_params};

/// Requires the right to decide approvals or the scope to read.
fn require_view(client: &WsClient) -> Result<(), RpcError> {
    if client.peer.caller.may_approve() { Ok(()) } else { client.peer.require_scope(AccessLevel::Read) }
}

pub(super) fn list(client: &WsClient) -> RpcResult {
    require_view(client)?;
    Ok(json!({"approvals": client.engine().visible_approvals(&client.peer.caller)}))
}

/// `plugin.approval.list` returns a bare array.
pub(super) fn plugin_list(client: &WsClient) -> RpcResult {
    require_view(client)?;
    Ok(client.engine().visible_approvals(&client.peer.caller).iter().map(payloads::approval_row).collect())
}

#[derive(Debug, Deserialize)]
struct ResolveParams {
    id: String,
    decision: DecisionWord,
    #[serde(default)]
    scope: Option<AllowanceScope>,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    fields: Option<Map<String, Value>>,
}

/// The gateway's words for a decision. No answer gives a permission for all calls, so `allow-always` allows one call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DecisionWord {
    Allow,
    AllowOnce,
    AllowAlways,
    Deny,
}

pub(super) fn resolve(client: &WsClient, value: Value) -> RpcResult {
    client.peer.require_approver()?;
    let params: ResolveParams = parse_params(value)?;
    // What covers later calls is said by `scope`. "always" allows this one call, and the response says so.
    let decision = match params.decision {
        DecisionWord::Allow | DecisionWord::AllowOnce | DecisionWord::AllowAlways => Decision::Allow,
        DecisionWord::Deny => Decision::Deny,
    };
    let ResolveParams { scope, pattern, reason, fields, .. } = params;
    let answer = ApprovalAnswer { decision, scope, pattern, reason, fields };
    let row: ApprovalRow = client.engine().answer_approval(&client.peer.caller, &params.id, answer)?;
    let decision_word = if decision == Decision::Allow { "allow-once" } else { "deny" };
    Ok(json!({"ok": true, "approval": row, "decision": decision_word}))
}

impl From<AnswerError> for RpcError {
    fn from(error: AnswerError) -> Self {
        let code = match &error {
            AnswerError::Unknown(_) => APPROVAL_NOT_FOUND,
            AnswerError::NotAllowed(..) => APPROVAL_NOT_YOURS,
            AnswerError::AlreadySettled(_) => "APPROVAL_ALREADY_RESOLVED",
            AnswerError::AlreadyCounted(_) => "APPROVAL_ALREADY_COUNTED",
            AnswerError::ReasonTooLong => "APPROVAL_REASON_TOO_LONG",
            AnswerError::WrongScope(_) => "APPROVAL_SCOPE_INVALID",
            AnswerError::WrongFields(_) => "APPROVAL_FIELDS_INVALID",
        };
        Self::invalid(error.to_string()).with_details(json!({"code": code}))
    }
}
