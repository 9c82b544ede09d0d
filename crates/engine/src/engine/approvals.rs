//! Show and answer the calls that wait for a person.

use quell_kernel::approval::Approver;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, Decision};
use quell_protocol::audit::Action;
use tokio::sync::watch;

use super::{AnswerError, ApprovalSettings, AuditAction, Caller, Engine};

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
        let decision = answer.decision;
        let row = self.inner().services.approvals.answer(id, &approver, caller.surface, answer)?;
        tracing::info!(principal = %caller.principal, run = %row.run_id, tool = row.tool, ?decision, "approval answered");
        let action = match decision {
            Decision::Allow => Action::Approve,
            Decision::Deny => Action::Deny,
        };
        let missing = match row.missing_allowances() {
            missing if decision == Decision::Allow && missing > 0 => format!("; {missing} more needed"),
            _ => String::new(),
        };
        let detail = format!("run: {}; tool: {}; of {}{missing}", row.run_id, row.tool, row.principal);
        self.audit(caller, AuditAction::on_target(action, "approval", id).with_detail(detail));
        Ok(row)
    }
}
