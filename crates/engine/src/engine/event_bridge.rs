//! The events of one node for the clients of the others.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quell_store::Membership;
use tokio::sync::mpsc;

use super::{Engine, EngineNotice};

/// Events that are sent together, at most.
const MAX_BATCH: usize = 256;
/// Bytes of events that are sent together, unless one event is longer.
const MAX_LETTER_BYTES: usize = 256 * 1024;
/// How long events wait for others before they are sent together, when letters go through the database.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The same over the message bus.
const BUS_BATCH_DELAY: Duration = Duration::from_millis(5);

/// The nodes whose clients want the events of this one.
#[derive(Default)]
pub(super) struct InterestedPeers(Mutex<BTreeSet<u64>>);

impl InterestedPeers {
    pub(super) fn set(&self, peer: &Membership, wanted: bool) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted {
            peers.insert(peer.epoch);
        } else {
            peers.remove(&peer.epoch);
        }
    }

    fn contains(&self, peer: &Membership) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer.epoch)
    }

    pub(super) fn retain(&self, is_member: impl Fn(u64) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|epoch| is_member(*epoch));
    }
}

impl Engine {
    /// Notes whether clients of another node want the events of this one.
    pub(super) fn note_interest(&self, peer: &Membership, wanted: bool) {
        if let Some(node) = &self.inner().node {
            node.interested_peers.set(peer, wanted);
        }
    }

    /// Gives the events of another node to the clients of this one, in order.
    async fn publish_peer_events(&self, events: &[u8]) {
        let notices = match serde_json::from_slice::<Vec<EngineNotice>>(events) {
            Ok(notices) => notices,
            Err(error) => {
                tracing::warn!(%error, "events of another node cannot be read; is it of another version?");
                return;
            }
        };
        for notice in &notices {
            let owners = self.inner().sessions.owners();
            // Who may read it is in the database, if another node has created the session.
            let learned = match notice {
                EngineNotice::Session { key, reason } if reason != "message" => {
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
            self.inner().hub.publish_foreign(notice);
        }
    }
}

/// Publishes the events of other nodes until the engine closes.
pub(super) async fn publish_foreign_events(engine: Engine, mut events: mpsc::Receiver<Vec<u8>>) {
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

/// Sends the events of this node to the others whose clients want them, until the engine closes.
pub(super) async fn bridge_events(engine: Engine) {
    let Some(node) = &engine.inner().node else { return };
    let mut notices = engine.inner().hub.subscribe_own();
    // Nodes that are still to be told that events were lost.
    let mut to_be_told: BTreeSet<u64> = BTreeSet::new();
    loop {
        let first = tokio::select! {
            notice = notices.next() => notice,
            () = engine.inner().closing.cancelled() => return,
        };
        let mut batch: Vec<EngineNotice> = first.into_iter().collect();
        if batch.is_empty() {
            tracing::warn!("events for clients of other nodes were lost: the clients are disconnected and resume");
            notices = engine.inner().hub.subscribe_own();
            to_be_told.extend(node.cluster.live_peers().iter().map(|row| row.membership.epoch));
        }
        let peers: Vec<Membership> = node.cluster.live_peers().into_iter().map(|row| row.membership).collect();
        let interested: Vec<Membership> =
            peers.into_iter().filter(|peer| node.interested_peers.contains(peer)).collect();
        if !interested.is_empty() {
            // One letter for many events: a run has an event for each piece of its answer.
            let delay = if node.cluster.is_on_bus() { BUS_BATCH_DELAY } else { BATCH_DELAY };
            tokio::time::sleep(delay).await;
        }
        while batch.len() < MAX_BATCH
            && let Ok(Some(notice)) = notices.try_next()
        {
            batch.push(notice);
        }
        batch.retain(EngineNotice::is_for_other_nodes);
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

/// Tells the other nodes whether clients of this one want their events, as soon as that changes.
pub(super) async fn announce_interest(engine: Engine) {
    let Some(node) = &engine.inner().node else { return };
    let mut readers = engine.inner().hub.watch_readers();
    let mut announced: BTreeSet<(u64, bool)> = BTreeSet::new();
    loop {
        let wanted = *readers.borrow_and_update() > 0;
        let peers = node.cluster.live_peers();
        announced.retain(|(epoch, _)| peers.iter().any(|row| row.membership.epoch == *epoch));
        for peer in peers {
            if announced.insert((peer.membership.epoch, wanted)) {
                announced.remove(&(peer.membership.epoch, !wanted));
                node.link.send_interest(&peer.membership, wanted);
            }
        }
        tokio::select! {
            () = engine.inner().closing.cancelled() => return,
            // The sender lives as long as the hub.
            _ = readers.changed() => {}
            () = node.cluster.wait_for_renewal() => {}
        }
    }
}
