//! Token usage per agent and UTC day, and per token of the API, counted in the transaction that ends a run.

use quell_kernel::daily_spend::{CostNanos, PricedUsage};
use quell_protocol::{AgentId, Principal, Usage};

use crate::StoreFuture;

/// Token usage of an ended run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpend {
    pub agent: AgentId,
    /// The UTC day that the usage counts for, `YYYY-MM-DD`.
    pub day: String,
    /// The total of the run.
    pub usage: Usage,
    /// The part of `usage` that was counted before. Used for a deleted run only: for others the database has the
    /// figure.
    pub already_counted: Usage,
    /// The token whose holder started the run; `None` for a person in a chat.
    pub key: Option<Principal>,
    /// The cost of the run, for its key.
    pub cost: CostNanos,
    /// The part of `cost` that was counted before. Used as `already_counted`.
    pub cost_already_counted: CostNanos,
}

impl RunSpend {
    /// All that the run has used.
    #[must_use]
    pub fn total(&self) -> PricedUsage {
        PricedUsage { usage: self.usage, cost_nanos: self.cost }
    }

    /// The part that was counted before.
    #[must_use]
    pub fn counted_before(&self) -> PricedUsage {
        PricedUsage { usage: self.already_counted, cost_nanos: self.cost_already_counted }
    }
}

pub trait SpendStore: Send + Sync {
    /// Adds usage of an agent outside of its runs.
    fn add(&self, agent: AgentId, day: String, usage: Usage) -> StoreFuture<'_, ()>;

    /// Returns the usage of each agent on a day, ordered by agent.
    fn on_day(&self, day: String) -> StoreFuture<'_, Vec<(AgentId, Usage)>>;

    /// Returns the usage of each token from one day to another, both included, ordered by token.
    fn by_key(&self, first_day: String, last_day: String) -> StoreFuture<'_, Vec<(Principal, PricedUsage)>>;
}
