//! Show and answer the calls that wait for a person.

use std::sync::Arc;

use quell_kernel::approval::Approver;
use quell_protocol::approval::{AllowanceScope, ApprovalAnswer, ApprovalRow, ApprovalRule, Decision};
use quell_protocol::audit::Action;
use tokio::sync::watch;

use super::{AnswerError, ApprovalSettings, AuditAction, Caller, Engine};
use crate::approvals::GivenAnswer;

impl Engine {
    /// Calls that wait for a person, oldest first.
    pub fn pending_approvals(&self) -> Vec<ApprovalRow> {
        self.inner().services.approvals.pending()
    }

    /// A call that waits for a person, or was settled recently.
    pub fn find_approval(&self, id: &str) -> Option<ApprovalRow> {
        self.inner().services.approvals.find(id)
    }

    /// Follows a call that waits for a person; `None` if it does not wait. The last value is the settled row, also
    /// after a stop of the run.
    pub fn watch_approval(&self, id: &str) -> Option<watch::Receiver<ApprovalRow>> {
        self.inner().services.approvals.watch(id)
    }

    pub fn approval_settings(&self) -> ApprovalSettings {
        self.inner().config.approvals
    }

    /// Answers an approval in the name of `caller`.
    ///
    /// # Errors
    /// [`AnswerError`] if the approval is unknown, belongs to somebody else, or is settled; nothing has changed then.
    pub fn answer_approval(
        &self,
        caller: &Caller,
        id: &str,
        answer: ApprovalAnswer,
    ) -> Result<ApprovalRow, AnswerError> {
        let approver = Approver {
            principal: caller.principal.clone(),
            admin: caller.is_admin(),
            approve: caller.may_approve(),
            verified_person: caller.verified_person,
        };
        let (decision, scope) = (answer.decision, answer.scope.unwrap_or(AllowanceScope::Once));
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        let given = GivenAnswer { answer, surface: caller.surface, at };
        let row = self.inner().services.approvals.answer(id, &approver, given)?;
        tracing::info!(principal = %caller.principal, run = %row.run_id, tool = row.tool, ?decision, "approval answered");
        let action = match decision {
            Decision::Allow => Action::Approve,
            Decision::Deny => Action::Deny,
        };
        let missing = match row.missing_allowances() {
            missing if decision == Decision::Allow && missing > 0 => format!("; {missing} more needed"),
            _ => String::new(),
        };
        let remembered = match scope {
            AllowanceScope::Once => "",
            AllowanceScope::Session => "; for the session",
            AllowanceScope::Pattern => "; for a pattern",
        };
        let detail = format!("{}{remembered}{missing}", call_detail(&row));
        self.audit(caller, AuditAction::on_target(action, "approval", id).with_detail(detail));
        Ok(row)
    }

    /// The remembered allowances that the caller may see: those for its own runs, and for an approver all.
    pub fn visible_approval_rules(&self, caller: &Caller) -> Vec<ApprovalRule> {
        let mut rules = self.inner().services.approvals.rules();
        rules.retain(|rule| is_visible(rule, caller));
        rules
    }

    /// Deletes a remembered allowance: its calls wait for a person again. False if the caller sees none of that id.
    pub fn forget_approval_rule(&self, caller: &Caller, id: &str) -> bool {
        let approvals = &self.inner().services.approvals;
        let Some(rule) = approvals.rules().into_iter().find(|rule| rule.id == id && is_visible(rule, caller)) else {
            return false;
        };
        let is_forgotten = approvals.forget_rule(id);
        if is_forgotten {
            let detail = format!("agent: {}; tool: {}; of {}", rule.agent, rule.tool, rule.principal);
            let action = AuditAction::on_target(Action::ForgetApprovalRule, "approval_rule", id);
            self.audit(caller, action.with_detail(detail));
        }
        is_forgotten
    }

    /// Writes an audit entry for each call that a remembered allowance lets run. An allowance ends with the token that
    /// gave it.
    pub(super) fn audit_remembered_allowances(&self) {
        let engine = Arc::downgrade(&self.0);
        self.inner().services.approvals.set_rule_use_callback(move |rule, row| {
            let Some(engine) = engine.upgrade().map(Self) else { return false };
            if engine.access().has_token_ended(&rule.allowed_by.principal) {
                return false;
            }
            let action = AuditAction::on_target(Action::Approve, "approval_rule", &rule.id);
            engine.audit_requester(&rule.allowed_by, action.with_detail(call_detail(row)));
            true
        });
    }
}

fn is_visible(rule: &ApprovalRule, caller: &Caller) -> bool {
    caller.may_approve() || rule.principal == caller.principal
}

/// The call of an approval, for the audit list.
fn call_detail(row: &ApprovalRow) -> String {
    let place = if row.escalation.is_some() { "; outside of the sandbox" } else { "" };
    format!("run: {}; tool: {}; of {}{place}", row.run_id, row.tool, row.principal)
}
