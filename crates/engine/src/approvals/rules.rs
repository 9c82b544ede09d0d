//! Remembered allowances: kept with the table of approvals, in memory, until they are deleted or the daemon ends.

use quell_kernel::approval_rules::rule_covers;
use quell_protocol::approval::{ApprovalRow, ApprovalRule};
use quell_protocol::{Principal, SessionKey};

use super::{ApprovalTable, Approvals};

/// Maximum number of remembered allowances. The oldest gives way, and its calls wait for a person again.
const MAX_RULES: usize = 1000;

/// Called when a remembered allowance is about to answer for a call. False: the right of its giver has ended.
pub(super) type RuleUseCallback = Box<dyn Fn(&ApprovalRule, &ApprovalRow) -> bool + Send + Sync>;

impl ApprovalTable {
    pub(super) fn remember(&mut self, rule: ApprovalRule) {
        if self.rules.len() == MAX_RULES {
            self.rules.pop_front();
        }
        self.rules.push_back(rule);
    }
}

impl Approvals {
    /// Sets the function that is told of each use of a remembered allowance, and answers false to delete the allowance
    /// instead. Only the first one is kept.
    pub fn set_rule_use_callback(
        &self,
        callback: impl Fn(&ApprovalRule, &ApprovalRow) -> bool + Send + Sync + 'static,
    ) {
        // A second one is refused, as documented.
        let _ = self.rule_use_callback.set(Box::new(callback));
    }

    /// Finds the remembered allowance that answers for a call, and reports its use. Deletes those that cover the call
    /// and whose giver has no right any more.
    pub fn apply_rule(&self, row: &ApprovalRow) -> Option<ApprovalRule> {
        loop {
            let rule = self.lock_table().rules.iter().find(|rule| rule_covers(rule, row)).cloned()?;
            if self.rule_use_callback.get().is_none_or(|callback| callback(&rule, row)) {
                return Some(rule);
            }
            self.forget_rule(&rule.id);
        }
    }

    /// The remembered allowances, oldest first.
    pub fn rules(&self) -> Vec<ApprovalRule> {
        self.lock_table().rules.iter().cloned().collect()
    }

    /// Deletes a remembered allowance. False if there is none of that id.
    pub fn forget_rule(&self, id: &str) -> bool {
        self.forget_rules(|rule| rule.id == id)
    }

    /// Deletes the allowances that were given for a session.
    pub fn forget_session(&self, session: &SessionKey) {
        self.forget_rules(|rule| rule.session_key.as_ref() == Some(session));
    }

    /// Deletes the allowances that a principal gave.
    pub fn forget_rules_by(&self, principal: &Principal) {
        self.forget_rules(|rule| rule.allowed_by.principal == *principal);
    }

    fn forget_rules(&self, is_forgotten: impl Fn(&ApprovalRule) -> bool) -> bool {
        let mut table = self.lock_table();
        let before = table.rules.len();
        table.rules.retain(|rule| !is_forgotten(rule));
        table.rules.len() < before
    }
}
