//! This daemon as a node of a cluster: its lease, the sessions that belong to it, and the other nodes as it knows them.
//!
//! The rules are `quell_kernel::lease`. What a node does when it renews, and when it loses its lease, is in
//! `engine/membership.rs`.

mod frame;
mod letter_exchange;
mod peer_link;
mod peer_stops;
mod renewal_facts;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use letter_exchange::{ExchangeTasks, LetterExchange};
pub use peer_link::{OutgoingFrames, PeerAnswer, PeerCall, PeerCallError, PeerHandler, PeerLink};
pub use peer_stops::{PeerStopAnswer, PeerStopWait, PeerStops, StoredStop};
use quell_bus::KeyFingerprints;
use quell_kernel::Moment;
use quell_kernel::daily_spend::PricedUsage;
use quell_kernel::lease::{Epoch, HeldLease, LeaseDuty, LeaseTiming};
use quell_protocol::{AgentId, NodeName, Principal, SessionKey, Usage};
use quell_scope::clock::Clock;
use quell_store::{ClaimOutcome, ClusterStore, Membership, NodeRow, StoreError};
pub use renewal_facts::RenewalFacts;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Clones share one membership.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    store: Arc<dyn ClusterStore>,
    clock: Clock,
    timing: LeaseTiming,
    lease: Mutex<HeldLease>,
    sessions: Mutex<HashMap<SessionKey, SessionHold>>,
    /// Changes when a session was given back.
    releases: watch::Sender<()>,
    nodes: watch::Sender<NodeList>,
    last_renewal: Mutex<Option<RenewalFacts>>,
    /// This node is connected to the message bus.
    is_on_bus: AtomicBool,
    /// Cancelled when this node has lost its lease: everything that it holds ends.
    lost: CancellationToken,
}

/// What a node tells with each renewal. Nodes of another version may tell less.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    pub active_runs: usize,
    pub max_in_flight: usize,
    pub processes: usize,
    /// It takes no new sessions.
    pub draining: bool,
    /// Its `lease_ms`; 0 if it does not tell.
    pub lease_ms: u64,
    /// The keys of its secret.
    pub keys: KeyFingerprints,
    /// It is connected to the message bus.
    pub on_bus: bool,
    /// The day of `spending`, in UTC.
    pub day: String,
    /// What its runs have used on that day and the database does not count yet, by agent.
    pub spending: BTreeMap<AgentId, Usage>,
    /// The same, by token.
    pub key_spending: BTreeMap<Principal, PricedUsage>,
}

impl NodeReport {
    /// The report of a node. That of another version may lack fields, or have others.
    pub fn of(row: &NodeRow) -> Self {
        serde_json::from_str(&row.report).unwrap_or_default()
    }
}

/// The memberships at a renewal.
#[derive(Debug, Clone, Default)]
struct NodeList {
    rows: Vec<NodeRow>,
    /// The epochs of those that are connected to the message bus.
    on_bus: HashSet<Epoch>,
    noted_at: Moment,
    /// The highest epoch that was ever in the list.
    highest_epoch: Epoch,
}

impl NodeList {
    fn is_at_work(&self, row: &NodeRow, now: Moment) -> bool {
        !row.fenced && row.expires_in > now.since(self.noted_at)
    }

    /// False for a membership that has ended. One that joined after the list was read has a higher epoch than all that
    /// were ever in it.
    fn may_be_at_work(&self, epoch: Epoch, now: Moment) -> bool {
        let known = self.rows.iter().find(|row| row.membership.epoch == epoch);
        known.map_or(epoch > self.highest_epoch, |row| self.is_at_work(row, now))
    }

    fn replace_rows(&mut self, rows: Vec<NodeRow>, now: Moment) {
        let on_bus = rows.iter().filter(|row| NodeReport::of(row).on_bus).map(|row| row.membership.epoch).collect();
        let highest_epoch = rows.iter().map(|row| row.membership.epoch).fold(self.highest_epoch, Epoch::max);
        *self = Self { rows, on_bus, noted_at: now, highest_epoch };
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionHold {
    Owned,
    /// It is being given back.
    Releasing,
}

impl Cluster {
    /// A node that has just joined. It may begin nothing before its first renewal.
    pub fn new(store: Arc<dyn ClusterStore>, clock: Clock, timing: LeaseTiming) -> Self {
        let lease = HeldLease::granted(store.membership().epoch, Moment::default());
        Self(Arc::new(ClusterInner {
            store,
            clock,
            timing,
            lease: Mutex::new(lease),
            sessions: Mutex::default(),
            releases: watch::Sender::new(()),
            nodes: watch::Sender::new(NodeList::default()),
            last_renewal: Mutex::default(),
            is_on_bus: AtomicBool::new(false),
            lost: CancellationToken::new(),
        }))
    }

    pub(crate) fn set_on_bus(&self, is_on_bus: bool) {
        self.0.is_on_bus.store(is_on_bus, Ordering::Relaxed);
    }

    /// True if this node is connected to the message bus.
    pub fn is_on_bus(&self) -> bool {
        self.0.is_on_bus.load(Ordering::Relaxed)
    }

    /// True if another node was connected to the message bus at its last renewal.
    pub fn is_peer_on_bus(&self, membership: &Membership) -> bool {
        self.0.nodes.borrow().on_bus.contains(&membership.epoch)
    }

    pub fn membership(&self) -> &Membership {
        self.0.store.membership()
    }

    pub fn node(&self) -> &NodeName {
        &self.membership().node
    }

    pub fn timing(&self) -> LeaseTiming {
        self.0.timing
    }

    pub fn store(&self) -> &Arc<dyn ClusterStore> {
        &self.0.store
    }

    /// The memberships at the last renewal.
    pub fn nodes(&self) -> Vec<NodeRow> {
        self.0.nodes.borrow().rows.clone()
    }

    /// The memberships as the database has them now; as of the last renewal, if it does not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn read_nodes(&self) -> Vec<NodeRow> {
        if let Ok(rows) = self.0.store.list_nodes().await {
            return rows;
        }
        self.known_nodes()
    }

    /// The memberships at the last renewal, with the time since then.
    pub fn known_nodes(&self) -> Vec<NodeRow> {
        let known = self.0.nodes.borrow().clone();
        let age = self.0.clock.now().since(known.noted_at);
        let grow_older = |row: NodeRow| NodeRow {
            silent_for: row.silent_for + age,
            expires_in: row.expires_in.saturating_sub(age),
            ..row
        };
        known.rows.into_iter().map(grow_older).collect()
    }

    /// Until the lease of this node ends, as far as it knows.
    pub fn lease_remaining(&self) -> std::time::Duration {
        self.lease().ends_at(self.0.timing).since(self.0.clock.now())
    }

    /// `None` before the first renewal.
    pub fn last_renewal(&self) -> Option<RenewalFacts> {
        *self.0.last_renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note_renewal_facts(&self, facts: RenewalFacts) {
        *self.0.last_renewal.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
    }

    /// Waits for the next renewal.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_renewal(&self) {
        // The sender lives as long as this.
        let _ = self.0.nodes.subscribe().changed().await;
    }

    /// Waits until the runs of a membership are sealed and its sessions are free.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_until_settled(&self, membership: &Membership) {
        let mut nodes = self.0.nodes.subscribe();
        let is_settled = |nodes: &NodeList| nodes.rows.iter().all(|row| row.membership != *membership);
        // The sender lives as long as this.
        let _ = nodes.wait_for(is_settled).await;
    }

    /// Waits until another node was at work at the last renewal: it may have joined after that.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_until_known(&self, membership: &Membership) {
        let mut nodes = self.0.nodes.subscribe();
        // The sender lives as long as this.
        let _ = nodes.wait_for(|nodes| nodes.rows.iter().any(|row| row.membership == *membership)).await;
    }

    /// By the clock that all leases of this node are counted with.
    pub fn now(&self) -> Moment {
        self.0.clock.now()
    }

    /// The wall time after this duration, RFC 3339.
    pub fn wall_time_in(&self, duration: std::time::Duration) -> String {
        self.0.clock.rfc3339(self.0.clock.now().plus(duration))
    }

    /// The other nodes that are at work.
    pub fn live_peers(&self) -> Vec<NodeRow> {
        let (own, now) = (self.membership(), self.0.clock.now());
        let nodes = self.0.nodes.borrow();
        let is_live = |row: &&NodeRow| row.membership != *own && nodes.is_at_work(row, now);
        nodes.rows.iter().filter(is_live).cloned().collect()
    }

    /// The memberships that have ended, as far as this node knows, and whose runs are not sealed yet.
    pub fn unsettled_memberships(&self) -> Vec<Membership> {
        let now = self.0.clock.now();
        let nodes = self.0.nodes.borrow();
        let ended = nodes.rows.iter().filter(|row| !nodes.is_at_work(row, now));
        ended.map(|row| row.membership.clone()).collect()
    }

    pub fn is_live_peer(&self, membership: &Membership) -> bool {
        self.live_peers().iter().any(|row| row.membership == *membership)
    }

    /// False for a membership that has ended: what it still sends counts for nothing, and it answers nothing. True for
    /// one that may have joined after the last renewal.
    pub fn may_be_at_work(&self, epoch: Epoch) -> bool {
        self.0.nodes.borrow().may_be_at_work(epoch, self.0.clock.now())
    }

    pub fn set_nodes(&self, rows: Vec<NodeRow>) {
        let now = self.0.clock.now();
        self.0.nodes.send_modify(|nodes| nodes.replace_rows(rows, now));
    }

    /// Cancelled when this node has lost its lease.
    pub fn lost(&self) -> &CancellationToken {
        &self.0.lost
    }

    pub fn duty(&self) -> LeaseDuty {
        self.lease().duty(self.0.clock.now(), self.0.timing)
    }

    /// When the work of this node ends unless the lease is renewed before.
    pub fn work_ends_at(&self) -> Moment {
        self.lease().work_ends_at(self.0.timing)
    }

    pub fn permits_work(&self) -> bool {
        !self.0.lost.is_cancelled() && self.lease().permits_work(self.0.clock.now(), self.0.timing)
    }

    pub fn note_request(&self, at: Moment) {
        self.lease().request_sent(at);
    }

    /// Notes a renewal that was sent at `sent`. Returns how long after `sent` the wardens may let processes live.
    pub fn note_renewal(&self, sent: Moment) -> std::time::Duration {
        let mut lease = self.lease();
        lease.renewed(sent, self.0.clock.now(), self.0.timing);
        lease.processes_end_at(self.0.timing).since(sent)
    }

    /// The first grant: sent before the lease was granted by the database.
    pub fn begin_lease(&self, sent: Moment) {
        *self.lease() = HeldLease::granted(self.membership().epoch, sent);
    }

    fn lease(&self) -> MutexGuard<'_, HeldLease> {
        self.0.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionKey, SessionHold>> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn owns_session(&self, key: &SessionKey) -> bool {
        self.sessions().get(key) == Some(&SessionHold::Owned)
    }

    pub fn owned_sessions(&self) -> Vec<SessionKey> {
        self.sessions().keys().cloned().collect()
    }

    /// Makes a session one of this node, unless it belongs to another one.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Dropped, the session may belong to this node; it is given back with the next ones that are not used.
    pub async fn claim_session(&self, key: &SessionKey) -> Result<ClaimOutcome, StoreError> {
        let mut releases = self.0.releases.subscribe();
        loop {
            let held = self.sessions().get(key).copied();
            match held {
                Some(SessionHold::Owned) => return Ok(ClaimOutcome::Claimed),
                // The sender lives as long as this.
                Some(SessionHold::Releasing) => {
                    let _ = releases.changed().await;
                }
                None => break,
            }
        }
        let outcome = self.0.store.claim_session(key.clone()).await?;
        if outcome == ClaimOutcome::Claimed {
            self.sessions().entry(key.clone()).or_insert(SessionHold::Owned);
        }
        Ok(outcome)
    }

    /// Forgets that a session belongs to this node, because the database says otherwise.
    pub fn forget_session(&self, key: &SessionKey) {
        self.sessions().remove(key);
    }

    /// Gives back a session of which nothing is alive.
    ///
    /// # Cancel safety
    /// Must not be dropped: the session could not be claimed any more.
    pub async fn release_session(&self, key: &SessionKey) {
        match self.sessions().entry(key.clone()).or_insert(SessionHold::Owned) {
            hold @ SessionHold::Owned => *hold = SessionHold::Releasing,
            SessionHold::Releasing => return,
        }
        if let Err(error) = self.0.store.release_session(key.clone()).await {
            tracing::debug!(session = %key, %error, "a session was not given back; it is claimed again when it is used");
        }
        self.sessions().remove(key);
        self.0.releases.send_replace(());
    }

    /// The node that a session belongs to, if that is another one.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn other_owner(&self, key: &SessionKey) -> Result<Option<Membership>, StoreError> {
        if self.owns_session(key) {
            return Ok(None);
        }
        let owner = self.0.store.session_node(key.clone()).await?;
        Ok(owner.filter(|owner| owner != self.membership()))
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({} {})", self.node(), self.membership().epoch)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The row of a node that is at work for another second.
    fn row_of(epoch: Epoch) -> NodeRow {
        let node = NodeName::parse(format!("node-{epoch}")).unwrap();
        NodeRow {
            membership: Membership { node, epoch },
            version: String::new(),
            joined_at: String::new(),
            silent_for: Duration::ZERO,
            expires_in: Duration::from_secs(1),
            fenced: false,
            sessions: 0,
            report: String::new(),
        }
    }

    #[test]
    fn a_node_that_has_left_is_not_at_work_even_if_it_joined_last() {
        let (mut nodes, now) = (NodeList::default(), Moment::default());
        nodes.replace_rows(vec![row_of(1), row_of(2)], now);
        assert!(nodes.may_be_at_work(2, now), "it is in the list");
        nodes.replace_rows(vec![row_of(1)], now);
        assert!(!nodes.may_be_at_work(2, now), "it was in the list before");
        assert!(nodes.may_be_at_work(3, now), "it was never in a list, so it may have just joined");
        assert!(!nodes.may_be_at_work(1, now.plus(Duration::from_secs(1))), "its lease has ended");
    }
}
