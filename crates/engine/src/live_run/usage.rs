//! Token usage of a run, counted and estimated, and its billing.

use quell_kernel::daily_spend::add_usage;
use quell_protocol::Usage;
use quell_protocol::agents::Price;

use super::LiveRunState;

/// The provider that bills the tokens of a run.
#[derive(Debug, Clone)]
pub struct BillingInfo {
    /// The provider of its model; `own` if the session brought its own model or endpoint.
    pub provider: String,
    pub price: Option<Price>,
}

impl LiveRunState {
    pub(super) fn current_usage(&self) -> Usage {
        add_usage(self.usage, self.step_usage)
    }

    /// Keeps the estimate of a step whose usage the provider did not count.
    pub(super) fn settle_step_usage(&mut self) {
        self.usage = self.current_usage();
        self.step_usage = Usage::default();
    }
}
