//! Agents that were created at run time.

use quell_protocol::{AgentId, Principal};

use crate::StoreFuture;

/// An agent that was created at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAgent {
    pub id: AgentId,
    /// JSON.
    pub config: String,
    /// RFC 3339.
    pub created_at: String,
    pub created_by: Principal,
}

pub trait AgentStore: Send + Sync {
    /// Stores a new agent. Fails if its id is in use.
    fn create(&self, agent: StoredAgent) -> StoreFuture<'_, ()>;

    /// Lists all stored agents, ordered by id.
    fn list(&self) -> StoreFuture<'_, Vec<StoredAgent>>;

    /// Deletes agents and their notes in one transaction, so that a later agent with the same id does not inherit the
    /// notes. Ignores unknown ids.
    fn delete(&self, ids: Vec<AgentId>) -> StoreFuture<'_, ()>;
}
