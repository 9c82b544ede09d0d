//! Show and answer the calls that wait for a person.

use quell_kernel::approval::Approver;
use quell_protocol::approval::{ApprovalRow, Decision};
use quell_protocol::audit::Action;

use super::{AnswerError, AuditAction, Caller, Engine};

impl Engine {
    /// Calls that wait for a person, oldest first.
    pub fn pending_approvals(&self) -> Vec<ApprovalRow> {
        self.inner().services.approvals.pending()
    }

    /// Answers an approval in the name of `caller`.
    ///
    /// # Errors
    /// [`AnswerError`] if the approval is unknown, belongs to somebody else, or is settled; nothing has changed then.
    pub fn answer_approval(&self, caller: &Caller, id: &str, decision: Decision) -> Result<ApprovalRow, AnswerError> {
        let approver =
            Approver { principal: caller.principal.clone(), admin: caller.is_admin(), approve: caller.may_approve() };
        let row = self.inner().services.approvals.answer(id, &approver, caller.surface, decision)?;
        tracing::info!(principal = %caller.principal, run = %row.run_id, tool = row.tool, ?decision, "approval answered");
        let action = match decision {
            Decision::Allow => Action::Approve,
            Decision::Deny => Action::Deny,
        };
        let audit_action = AuditAction::on_target(action, "approval", id);
        self.audit(
            caller,
            audit_action.with_detail(format!("run: {}; tool: {}; of {}", row.run_id, row.tool, row.principal)),
        );
        Ok(row)
    }
}
