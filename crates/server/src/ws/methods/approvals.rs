//! `approvals.list`, `approvals.resolve` and the methods of the gateway that do the same.

use quell_engine::engine::AnswerError;
use quell_kernel::approval_rules::standing_allowance;
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

/// The gateway's words for a decision, and `allow`, Quell's own. Without a `scope`, "always" is the narrowest allowance
/// for later calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
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
    let answer = read_answer(client, &params)?;
    let (decision, scope, pattern) = (answer.decision, answer.scope, answer.pattern.clone());
    let row: ApprovalRow = client.engine().answer_approval(&client.peer.caller, &params.id, answer)?;
    let decision_word = match (decision, scope) {
        (Decision::Deny, _) => "deny",
        (Decision::Allow, None | Some(AllowanceScope::Once)) => "allow-once",
        (Decision::Allow, Some(AllowanceScope::Session | AllowanceScope::Pattern)) => "allow-always",
    };
    Ok(json!({"ok": true, "approval": row, "decision": decision_word, "scope": scope, "pattern": pattern}))
}

fn read_answer(client: &WsClient, params: &ResolveParams) -> Result<ApprovalAnswer, RpcError> {
    if params.decision == DecisionWord::AllowAlways && params.scope.is_none() {
        // It ends the same way if another client answers in between: this answer is refused.
        let row = client.engine().find_approval(&params.id).ok_or_else(|| AnswerError::Unknown(params.id.clone()))?;
        return standing_allowance((&row).into()).ok_or_else(|| no_standing_allowance(&row));
    }
    let decision = match params.decision {
        DecisionWord::Allow | DecisionWord::AllowOnce | DecisionWord::AllowAlways => Decision::Allow,
        DecisionWord::Deny => Decision::Deny,
    };
    let ResolveParams { scope, pattern, reason, fields, .. } = params;
    Ok(ApprovalAnswer {
        decision,
        scope: *scope,
        pattern: pattern.clone(),
        reason: reason.clone(),
        fields: fields.clone(),
    })
}

fn no_standing_allowance(row: &ApprovalRow) -> RpcError {
    let message = "allow-always is unavailable for this call, because it cannot be limited to this command or path; use \
                   allow-once, or name a scope";
    RpcError::invalid(message).with_details(json!({
        "code": "APPROVAL_SCOPE_INVALID", "allowedDecisions": payloads::allowed_decisions(row.into()),
    }))
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
        // The gateway's clients read the code as `reason`.
        Self::invalid(error.to_string()).with_details(json!({"code": code, "reason": code}))
    }
}
