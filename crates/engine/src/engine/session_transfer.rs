//! Move a session of which nothing is alive to the node that needs it: the messages of a chat are answered by the node
//! that listens to its network.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::registry::{QueuedPolicy, StopRequester, StopScope};
use quell_protocol::{NodeName, SessionKey};
use quell_store::{Membership, StoreError};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::peers::PeerRequest;
use crate::cluster::Cluster;

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
    /// A stop that covers what waits for the session.
    #[error("it was stopped before the session was free")]
    Stopped,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What waits for sessions of other nodes. A stop ends the waits that it covers.
#[derive(Default)]
pub(super) struct PendingSessions(Mutex<HashMap<SessionKey, Vec<CancellationToken>>>);

impl PendingSessions {
    fn begin(&self, key: &SessionKey) -> CancellationToken {
        let wait = CancellationToken::new();
        self.lock().entry(key.clone()).or_default().push(wait.clone());
        wait
    }

    fn end(&self, key: &SessionKey, ended: &CancellationToken) {
        // Nobody else uses this token: it is recognised by being cancelled.
        ended.cancel();
        let mut waits = self.lock();
        if let Some(of_session) = waits.get_mut(key) {
            of_session.retain(|wait| !wait.is_cancelled());
            if of_session.is_empty() {
                waits.remove(key);
            }
        }
    }

    /// Not async, as [`Engine::stop`]. What waits came from a chat network; besides the chat itself, only who may stop
    /// everything can withdraw it.
    pub(super) fn stop(&self, scope: &StopScope, requester: &StopRequester) {
        let covers = |key: &SessionKey| match scope {
            StopScope::Session { key: stopped, queued: QueuedPolicy::Withdraw, .. } => stopped == key,
            StopScope::Conversation { session, .. } => session == key,
            StopScope::Everything => true,
            StopScope::Session { queued: QueuedPolicy::Keep, .. }
            | StopScope::Run { .. }
            | StopScope::Agent { .. }
            | StopScope::Agents { .. }
            | StopScope::Channel { .. } => false,
        };
        let is_chat = matches!(scope, StopScope::Conversation { .. });
        if !is_chat && !requester.admin {
            return;
        }
        self.lock()
            .iter()
            .filter(|(key, _)| covers(key))
            .flat_map(|(_, waits)| waits)
            .for_each(CancellationToken::cancel);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Vec<CancellationToken>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a wait when it ends, however it does.
struct PendingSession<'a> {
    waits: &'a PendingSessions,
    key: &'a SessionKey,
    stopped: CancellationToken,
}

impl Drop for PendingSession<'_> {
    fn drop(&mut self) {
        self.waits.end(self.key, &self.stopped);
    }
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
        let Some(node) = &self.inner().node else { return Ok(()) };
        let wait = PendingSession { waits: &node.pending_sessions, key, stopped: node.pending_sessions.begin(key) };
        tokio::select! {
            acquired = self.acquire_unless_stopped(node.cluster(), key) => acquired,
            () = wait.stopped.cancelled() => Err(SessionTransferError::Stopped),
        }
    }

    /// Withdraws what waits here for a session of another node, as far as a stop covers it.
    pub(super) fn stop_pending_sessions(&self, scope: &StopScope, requester: &StopRequester) {
        if let Some(node) = &self.inner().node {
            node.pending_sessions.stop(scope, requester);
        }
    }

    async fn acquire_unless_stopped(&self, cluster: &Cluster, key: &SessionKey) -> Result<(), SessionTransferError> {
        let deadline = Instant::now() + MAX_WAIT;
        let mut was_given_back = false;
        loop {
            match self.inner().sessions.claim_for_node(key).await {
                Ok(()) => return Ok(()),
                Err(StoreError::OtherNode(_)) => {}
                Err(error) => return Err(error.into()),
            }
            if was_given_back {
                // Somebody else has it, or the database has not set it free.
                sleep(RETRY_INTERVAL).await;
            }
            let Some(owner) = cluster.other_owner(key).await? else { continue };
            if Instant::now() >= deadline {
                return Err(SessionTransferError::InUse { session: key.clone(), node: owner.node });
            }
            if !cluster.is_live_peer(&owner) {
                // At the deadline it is claimed a last time.
                let _ = timeout_at(deadline, cluster.wait_for_renewal()).await;
            } else {
                was_given_back = self.ask_for_session(&owner, key).await;
                if !was_given_back {
                    sleep(RETRY_INTERVAL).await;
                }
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

#[cfg(test)]
mod tests {
    use quell_kernel::registry::BackgroundPolicy;
    use quell_protocol::Principal;

    use super::*;

    #[test]
    fn a_stop_withdraws_what_waits_for_its_session_and_for_no_other() {
        let (waits, key) = (PendingSessions::default(), SessionKey::parse("s").unwrap());
        let admin = StopRequester { principal: Principal::parse("admin").unwrap(), admin: true };
        let ann = StopRequester { principal: Principal::parse("ann").unwrap(), admin: false };
        let session = |key: &str, queued| StopScope::Session {
            key: SessionKey::parse(key).unwrap(),
            queued,
            background: BackgroundPolicy::Stop,
        };
        let wait = waits.begin(&key);
        waits.stop(&session("t", QueuedPolicy::Withdraw), &admin);
        waits.stop(&session("s", QueuedPolicy::Keep), &admin);
        waits.stop(&session("s", QueuedPolicy::Withdraw), &ann);
        assert!(!wait.is_cancelled());
        waits.stop(&session("s", QueuedPolicy::Withdraw), &admin);
        assert!(wait.is_cancelled());
        let next = waits.begin(&key);
        waits.end(&key, &wait);
        assert!(!next.is_cancelled());
        waits.stop(&StopScope::Everything, &admin);
        assert!(next.is_cancelled());
        waits.end(&key, &next);
        assert!(waits.lock().is_empty());
    }
}
