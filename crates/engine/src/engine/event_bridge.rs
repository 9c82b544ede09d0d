//! The events of one node for the clients of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use quell_kernel::lease::Epoch;
use quell_store::Membership;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::membership::Node;
use super::peer_agents::AgentActivity;
use super::peers::PeerRequest;
use super::{Engine, EngineNotice, SubscriberOverrun};
use crate::cluster::Cluster;

/// Events that are sent together, at most.
const MAX_BATCH: usize = 256;
/// Bytes of events that are sent together, unless one event is longer.
const MAX_LETTER_BYTES: usize = 256 * 1024;
/// How long events wait for others before they are sent together, when letters go through the database.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The same over the message bus.
const BUS_BATCH_DELAY: Duration = Duration::from_millis(5);

/// Until other nodes are told again that events were lost.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long a node may take to confirm that it sends its events.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// Events of another node: a JSON array.
pub(super) struct PeerEvents {
    pub(super) sender: Epoch,
    pub(super) events: Vec<u8>,
}

/// Whether the clients of other nodes want the events of this one, by epoch. They do until their node has told.
#[derive(Default)]
pub(super) struct InterestedPeers(Mutex<BTreeMap<Epoch, PeerInterest>>);

/// What a node has told in the announcement with this number.
#[derive(Debug, Clone, Copy)]
struct PeerInterest {
    wanted: bool,
    number: u64,
}

impl InterestedPeers {
    fn set(&self, peer: &Membership, told: PeerInterest) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = peers.entry(peer.epoch).or_insert(told);
        if told.number > known.number {
            *known = told;
        }
    }

    fn contains(&self, peer: &Membership) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&peer.epoch).is_none_or(|told| told.wanted)
    }

    fn any(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().any(|told| told.wanted)
    }

    pub(super) fn retain(&self, is_member: impl Fn(Epoch) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|epoch, _| is_member(*epoch));
    }
}

impl Engine {
    /// Waits until the other nodes send their events to this one, which they do while somebody subscribes here, for a
    /// second at most. Returns at once without a cluster.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_peer_events(&self) {
        let Some(node) = &self.inner().node else { return };
        let peers = node.cluster.live_peers();
        let mut confirmed = node.confirmed_interest.confirmed.subscribe();
        let by_all = |confirmed: &BTreeMap<Epoch, bool>| {
            peers.iter().all(|row| confirmed.get(&row.membership.epoch) == Some(&true))
        };
        // The sender lives as long as the node. When a silent node is settled, clients are disconnected and resume.
        let _ = timeout(CONFIRM_TIMEOUT, confirmed.wait_for(by_all)).await;
    }

    /// Notes whether clients of another node want the events of this one.
    pub(super) fn note_interest(&self, peer: &Membership, wanted: bool, number: u64) {
        if let Some(node) = &self.inner().node {
            node.interested_peers.set(peer, PeerInterest { wanted, number });
            self.inner().hub.set_wanted_elsewhere(node.interested_peers.any());
        }
    }

    /// Forgets nodes that are no members any more.
    pub(super) fn retain_interested_peers(&self, is_member: impl Fn(Epoch) -> bool) {
        if let Some(node) = &self.inner().node {
            node.interested_peers.retain(is_member);
            self.inner().hub.set_wanted_elsewhere(node.interested_peers.any());
        }
    }

    /// Tells another node what the agents do here, which it may not have heard.
    pub(super) fn send_agent_activity(&self, peer: &Membership) {
        let Some(node) = &self.inner().node else { return };
        for events in serialize_batch(&self.agent_notices()) {
            node.link.send_events(peer, events);
        }
    }

    /// Adds what only this node knows, for clients of other nodes.
    fn complete_for_other_nodes(&self, notice: EngineNotice) -> EngineNotice {
        match notice {
            EngineNotice::Session { key, reason, .. } => {
                let active_elsewhere = Some(self.active_run_ids_of_session(&key));
                EngineNotice::Session { key, reason, active_elsewhere }
            }
            other => other,
        }
    }

    /// Gives the events of another node to the clients of this one, in order.
    async fn publish_peer_events(&self, PeerEvents { sender, events }: &PeerEvents) {
        let notices = match serde_json::from_slice::<Vec<EngineNotice>>(events) {
            Ok(notices) => notices,
            Err(error) => {
                tracing::warn!(%error, "events of another node cannot be read; is it of another version?");
                return;
            }
        };
        for notice in notices {
            let owners = self.inner().sessions.owners();
            // Who may read it is in the database, if another node has created the session.
            let learned = match &notice {
                EngineNotice::Session { key, reason, .. } if reason != "message" => {
                    owners.refresh(&self.inner().store, key).await
                }
                _ => match notice.session() {
                    Some(key) => owners.learn(&self.inner().store, key).await,
                    None => Ok(()),
                },
            };
            if let (Err(error), Some(key)) = (learned, notice.session()) {
                tracing::debug!(session = %key, %error, "the owner of a session of another node is not known");
            }
            match notice {
                EngineNotice::Agent { agent, status, active } => {
                    self.note_peer_activity(*sender, &agent, AgentActivity { status, active });
                }
                notice => self.inner().hub.publish_foreign(&notice),
            }
        }
    }
}

/// Publishes the events of other nodes until the engine closes.
pub(super) async fn publish_foreign_events(engine: Engine, mut events: mpsc::Receiver<PeerEvents>) {
    loop {
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            batch = events.recv() => match batch {
                Some(batch) => engine.publish_peer_events(&batch).await,
                None => return,
            },
        }
    }
}

impl Node {
    /// The nodes whose clients want the events of this one, or are to be told that some were lost.
    fn interested_in(&self, to_be_told: &BTreeSet<Epoch>) -> Vec<Membership> {
        let peers = self.cluster.live_peers().into_iter().map(|row| row.membership);
        peers.filter(|peer| self.interested_peers.contains(peer) || to_be_told.contains(&peer.epoch)).collect()
    }
}

/// Sends the events of this node to the others whose clients want them, until the engine closes.
pub(super) async fn bridge_events(engine: Engine) {
    let Some(node) = &engine.inner().node else { return };
    let mut notices = engine.inner().hub.subscribe_own();
    // Nodes that are still to be told that events were lost.
    let mut to_be_told: BTreeSet<Epoch> = BTreeSet::new();
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            notice = notices.next() => match notice {
                Ok(notice) => batch.push(notice),
                Err(SubscriberOverrun) => {
                    tracing::warn!("events for clients of other nodes were lost: the clients are disconnected and resume");
                    notices = engine.inner().hub.subscribe_own();
                    to_be_told.extend(node.cluster.live_peers().iter().map(|row| row.membership.epoch));
                }
            },
            () = tokio::time::sleep(RETRY_DELAY), if !to_be_told.is_empty() => {}
            () = engine.inner().closing.cancelled() => return,
        }
        if !node.interested_in(&to_be_told).is_empty() {
            // One letter for many events: a run has an event for each piece of its answer.
            let delay = if node.cluster.is_on_bus() { BUS_BATCH_DELAY } else { BATCH_DELAY };
            tokio::time::sleep(delay).await;
        }
        while batch.len() < MAX_BATCH
            && let Ok(Some(notice)) = notices.try_next()
        {
            batch.push(notice);
        }
        // Read after the events: who is interested later gets none of them twice, and misses none that come after.
        let interested = node.interested_in(&to_be_told);
        to_be_told.retain(|epoch| interested.iter().any(|peer| peer.epoch == *epoch));
        batch.retain(EngineNotice::is_for_other_nodes);
        let batch: Vec<EngineNotice> =
            batch.into_iter().map(|notice| engine.complete_for_other_nodes(notice)).collect();
        let letters = serialize_batch(&batch);
        for peer in interested {
            if to_be_told.contains(&peer.epoch) && node.link.send_lost_events(&peer) {
                to_be_told.remove(&peer.epoch);
            }
            if !letters.iter().all(|events| node.link.send_events(&peer, events.clone())) {
                tracing::warn!(node = %peer.node, "events for the clients of another node were dropped: too many wait");
                to_be_told.insert(peer.epoch);
            }
        }
    }
}

/// JSON arrays of these events, each with at most [`MAX_LETTER_BYTES`] or one event.
fn serialize_batch(batch: &[EngineNotice]) -> Vec<Vec<u8>> {
    let mut letters: Vec<Vec<u8>> = Vec::new();
    for notice in batch {
        let event = serde_json::to_vec(notice).unwrap_or_default();
        match letters.last_mut().filter(|letter| letter.len() + event.len() < MAX_LETTER_BYTES) {
            Some(letter) => {
                letter.push(b',');
                letter.extend(event);
            }
            None => letters.push([b"[".as_slice(), &event].concat()),
        }
    }
    letters.iter_mut().for_each(|letter| letter.push(b']'));
    letters
}

/// Tells the other nodes whether clients of this one want their events, as soon as that changes, until they have
/// confirmed it.
pub(super) async fn announce_interest(engine: Engine) {
    let Some(node) = &engine.inner().node else { return };
    let mut readers = engine.inner().hub.watch_readers();
    loop {
        let wanted = *readers.borrow_and_update() > 0;
        let is_opposite = |readers: &usize| (*readers > 0) != wanted;
        let is_confirmed = tokio::select! {
            is_confirmed = node.confirmed_interest.announce(&engine, wanted) => is_confirmed,
            () = engine.inner().closing.cancelled() => return,
            // The sender lives as long as the hub.
            _ = readers.wait_for(is_opposite) => continue,
        };
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            _ = readers.wait_for(is_opposite) => {}
            () = node.cluster.wait_for_renewal() => {}
            () = tokio::time::sleep(CONFIRM_TIMEOUT), if !is_confirmed => {}
        }
    }
}

/// Which nodes have confirmed that they send their events to this one, or do not, by epoch.
pub(super) struct ConfirmedInterest {
    confirmed: watch::Sender<BTreeMap<Epoch, bool>>,
    /// Of the last announcement. One with a lower number that arrives later is ignored.
    last_number: AtomicU64,
}

impl Default for ConfirmedInterest {
    fn default() -> Self {
        Self { confirmed: watch::Sender::new(BTreeMap::new()), last_number: AtomicU64::new(0) }
    }
}

impl ConfirmedInterest {
    /// Tells those that have not confirmed it. Returns whether all have.
    ///
    /// # Cancel safety
    /// Safe: what was not confirmed is told again.
    async fn announce(&self, engine: &Engine, wanted: bool) -> bool {
        let peers = engine.cluster().map(Cluster::live_peers).unwrap_or_default();
        // Who is told the opposite has confirmed nothing any more: it may be told, and its answer be lost.
        self.confirmed.send_modify(|confirmed| {
            confirmed.retain(|epoch, known| *known == wanted && peers.iter().any(|row| row.membership.epoch == *epoch));
        });
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let to_be_told = |peer: &Membership| !self.confirmed.borrow().contains_key(&peer.epoch);
        let tell = |peer: Membership| async move {
            let mut call = engine.call_peer(&peer, &PeerRequest::SendEvents { wanted, number }, &[])?;
            matches!(timeout(CONFIRM_TIMEOUT, call.next()).await, Ok(None)).then(|| {
                self.confirmed.send_modify(|confirmed| {
                    confirmed.insert(peer.epoch, wanted);
                });
            })
        };
        let told = join_all(peers.into_iter().map(|row| row.membership).filter(to_be_told).map(tell)).await;
        told.iter().all(Option::is_some)
    }
}
