//! Token usage per agent and UTC day, counted in the transaction that ends a run.

use quell_protocol::{AgentId, Usage};

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
}

pub trait SpendStore: Send + Sync {
    /// Adds usage of an agent outside of its runs.
    fn add(&self, agent: AgentId, day: String, usage: Usage) -> StoreFuture<'_, ()>;

    /// Returns the usage of each agent on a day, ordered by agent.
    fn on_day(&self, day: String) -> StoreFuture<'_, Vec<(AgentId, Usage)>>;
}
