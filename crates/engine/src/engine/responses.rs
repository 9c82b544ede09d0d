//! What the Responses API needs besides runs: its stored responses, and tasks that outlive a request.

use quell_store::{Membership, ResponseStore, StoreError};

use super::Engine;

impl Engine {
    /// The stored responses and conversations.
    pub fn responses(&self) -> &dyn ResponseStore {
        self.inner().store.responses()
    }

    /// The other node that makes a response; `None` if this one does, if that node is not at work, or if the response has
    /// ended.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_response_node(&self, id: &str) -> Result<Option<Membership>, StoreError> {
        let Some(cluster) = self.cluster() else { return Ok(None) };
        let node = cluster.store().response_node(id.to_owned()).await?;
        Ok(node.filter(|node| cluster.live_peers().iter().any(|peer| peer.membership == *node)))
    }

    /// Runs a task that a shutdown waits for. It must end when its run ends.
    pub fn spawn_until_run_ends(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner().runs.spawn(task);
    }
}
