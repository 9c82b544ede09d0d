//! The calls that make, delete and draw agents.

use quell_protocol::AgentId;
use quell_protocol::api::AgentRow;
use quell_protocol::society::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use reqwest::Method;

use super::calls::{Effort, ListOf};
use super::{Link, LinkError, Span};

impl Link {
    /// One agent with what it has spent today.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn agent(&self, agent: &AgentId) -> Result<AgentView, LinkError> {
        self.get(&["api", "agents", agent.as_str()]).await
    }

    /// The agents as the trees that they form.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn agent_tree(&self) -> ListOf<AgentNode> {
        self.list(&["api", "agents", "tree"], &[]).await
    }

    /// Makes an agent.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the agent made.
    pub async fn create_agent(&self, agent: &NewAgent) -> Result<AgentRow, LinkError> {
        self.post(&["api", "agents"], &[], agent, Effort::ONCE).await
    }

    /// Deletes an agent with all below it, unless one of them has runs that are not over.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the agents deleted.
    pub async fn delete_agent(&self, agent: &AgentId) -> Result<AgentsDeleted, LinkError> {
        self.ask(self.request(Method::DELETE, &["api", "agents", agent.as_str()], &[])?, Span::Ordinary).await
    }

    /// Stops all runs of an agent and of all below it, waits for their ends, and deletes the agents.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it takes nothing back: the daemon goes on.
    pub async fn delete_agent_by_force(&self, agent: &AgentId) -> Result<AgentsDeleted, LinkError> {
        let path = ["api", "agents", agent.as_str()];
        self.ask(self.request(Method::DELETE, &path, &[("force", "1")])?, Span::Open).await
    }
}
