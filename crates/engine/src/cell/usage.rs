//! What a run has used so far: what was counted, and the estimate of the call that is under way.

use quell_kernel::spend::plus;
use quell_protocol::Usage;

use super::Facts;

impl Facts {
    pub(super) fn usage_so_far(&self) -> Usage {
        plus(self.usage, self.step_usage)
    }

    /// What the step's provider did not count stays as an estimate (row X8).
    pub(super) fn settle_step_usage(&mut self) {
        self.usage = self.usage_so_far();
        self.step_usage = Usage::default();
    }
}
