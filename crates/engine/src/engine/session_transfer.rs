//! Move a session of which nothing is alive to the node that needs it: the messages of a chat are answered by the node
//! that listens to its network.

use std::time::Duration;

use quell_protocol::{NodeName, SessionKey};
use quell_store::{Membership, StoreError};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Engine;
use super::peers::PeerRequest;

/// How long a message waits for its session.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// Between two requests to the node that has the session.
const RETRY_INTERVAL: Duration = Duration::from_millis(300);
/// The other node cleans up the session before it answers.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum SessionTransferError {
    /// The session was in use on another node all the time.
    #[error("the session {session:?} is in use on the node {node}")]
    InUse { session: SessionKey, node: NodeName },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Makes a session one of this node. Asks the node that has it to give it back, and waits until nothing of it is in
    /// use there, or until that node is settled if it is dead. Does nothing without a cluster.
    ///
    /// # Errors
    /// [`SessionTransferError`]: the session belongs to the other node as before.
    ///
    /// # Cancel safety
    /// Safe: at most the session is one of this node.
    pub async fn acquire_session(&self, key: &SessionKey) -> Result<(), SessionTransferError> {
        let Some(cluster) = self.cluster() else { return Ok(()) };
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            match self.inner().sessions.claim_for_node(key).await {
                Ok(()) => return Ok(()),
                Err(StoreError::OtherNode(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(owner) = cluster.other_owner(key).await? else { continue };
            if Instant::now() >= deadline {
                return Err(SessionTransferError::InUse { session: key.clone(), node: owner.node });
            }
            if !cluster.is_live_peer(&owner) {
                // At the deadline it is claimed a last time.
                let _ = timeout_at(deadline, cluster.wait_for_renewal()).await;
            } else if !self.ask_for_session(&owner, key).await {
                sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// True if the other node has given the session back.
    async fn ask_for_session(&self, owner: &Membership, key: &SessionKey) -> bool {
        let request = PeerRequest::ReleaseSession { session: key.clone() };
        let Some(mut call) = self.call_peer(owner, &request, &[]) else { return false };
        match timeout(RELEASE_TIMEOUT, call.next()).await {
            Ok(Some(Ok(message))) => serde_json::from_slice(&message).unwrap_or(false),
            // It is asked again, or settled if it is dead.
            Ok(Some(Err(_)) | None) | Err(_) => false,
        }
    }

    /// Gives a session back that another node needs, unless something of it is in use. Returns whether it was given back.
    ///
    /// # Cancel safety
    /// Must not be dropped, as [`crate::cluster::Cluster::release_session`].
    pub(super) async fn give_back_session(&self, key: &SessionKey) -> bool {
        let Some(cluster) = self.cluster() else { return false };
        if !cluster.owns_session(key) {
            // It may belong to this node in the database all the same, after an answer that was lost.
            return !self.has_work_of_session(key) && cluster.store().release_session(key.clone()).await.is_ok();
        }
        if self.has_work_of_session(key) {
            return false;
        }
        // Nobody can create the session here until it is given back.
        let _block = self.inner().sessions.end_session(key).await;
        if self.has_work_of_session(key) {
            return false;
        }
        cluster.release_session(key).await;
        tracing::debug!(session = %key, "a session was given back for another node");
        true
    }

    /// True while a session has a run that is not over, a turn that is not recorded, or a live background process.
    fn has_work_of_session(&self, key: &SessionKey) -> bool {
        let inner = self.inner();
        !inner.runs.runs_of_session(key).is_empty()
            || inner.runs.unrecorded_sessions().contains(key)
            || inner.services.background.has_work_of_session(key)
    }
}
