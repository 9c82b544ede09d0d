//! Routes that show, create and delete agents.

use quell_protocol::AgentId;
use quell_protocol::agents::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use quell_protocol::api::AgentRow;
use reqwest::Method;

use super::endpoints::{ClientRequestOptions, ListResult};
use super::{ClientError, ClientRequestTimeout, DaemonClient};

impl DaemonClient {
    /// Gets one agent with its spending of today.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_agent(&self, agent: &AgentId) -> Result<AgentView, ClientError> {
        self.get_json(&["api", "agents", agent.as_str()]).await
    }

    /// Gets the agents as trees.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_agent_tree(&self) -> ListResult<AgentNode> {
        self.list_items(&["api", "agents", "tree"], &[]).await
    }

    /// # Cancel safety
    /// If dropped, the agent may or may not have been created.
    pub async fn create_agent(&self, agent: &NewAgent) -> Result<AgentRow, ClientError> {
        self.post_json(&["api", "agents"], &[], agent, ClientRequestOptions::ONCE).await
    }

    /// Deletes an agent with all its descendants, unless one of them has runs that have not ended.
    ///
    /// # Cancel safety
    /// If dropped, the agents may or may not have been deleted.
    pub async fn delete_agent(&self, agent: &AgentId) -> Result<AgentsDeleted, ClientError> {
        self.fetch_json(
            self.build_request(Method::DELETE, &["api", "agents", agent.as_str()], &[])?,
            ClientRequestTimeout::Default,
        )
        .await
    }

    /// Stops all runs of an agent and of its descendants, waits for their ends, and deletes the agents.
    ///
    /// # Cancel safety
    /// Dropping it does not withdraw the request; the daemon completes it.
    pub async fn stop_and_delete_agent(&self, agent: &AgentId) -> Result<AgentsDeleted, ClientError> {
        let path = ["api", "agents", agent.as_str()];
        self.fetch_json(self.build_request(Method::DELETE, &path, &[("force", "1")])?, ClientRequestTimeout::Unlimited)
            .await
    }
}
