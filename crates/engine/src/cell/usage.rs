//! What a run has used so far: what was counted, and the estimate of the call that is under way. And who is paid for it.

use quell_kernel::spend::plus;
use quell_protocol::Usage;
use quell_protocol::society::Price;

use super::Facts;

/// Who is paid for the tokens of a run.
#[derive(Debug, Clone)]
pub struct Bill {
    /// The provider of its model; `own` where the session brought its model or an endpoint along.
    pub provider: String,
    /// What tokens cost its agent, where that is configured.
    pub price: Option<Price>,
}

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
