//! How frames get from node to node: in signed letters, over NATS where both nodes are connected to it, and else through
//! the database.
//!
//! A letter can be lost on either way. The receiver notices the gap, and both sides give up what they had open with each
//! other; nothing waits for an answer that does not come.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quell_bus::{
    ClusterSecret, LetterOpener, LetterSealer, LetterTransport, MAX_LETTER_OVERHEAD, NatsConnection, NatsEvent,
    NatsTransport, NodeAddress,
};
use quell_kernel::lease::Epoch;
use quell_store::{Membership, StoredLetter};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use super::frame::{Frame, FrameHead};
use super::peer_link::{FrameSender, OutgoingFrames, OutgoingPeerFrame, PeerLink, frame_queue};

/// Frames that are stored together, at most.
const STORE_BATCH: usize = 64;
/// Letters that may wait for the database.
const MAX_STORED_LETTERS: usize = 4096;
/// Until the next attempt after the database has refused letters.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long letters to a node that NATS did not find, or that has lost it, go through the database, unless one of it
/// arrives over NATS.
const AVOID_NATS_TIME: Duration = Duration::from_secs(5);

const LETTERS_METRIC: &str = "quell_cluster_peer_letters_total";

/// Sends and receives the letters of a node.
pub struct LetterExchange {
    cluster: Cluster,
    link: PeerLink,
    secret: ClusterSecret,
    /// Nodes that NATS does not reach, and until when it is not tried again.
    unreachable: Mutex<HashMap<Epoch, Instant>>,
}

/// What an exchange works with.
pub struct ExchangeTasks {
    pub frames: OutgoingFrames,
    pub nats: Option<NatsConnection>,
}

fn address(membership: &Membership) -> NodeAddress {
    NodeAddress { node: membership.node.clone(), epoch: membership.epoch }
}

fn membership(address: NodeAddress) -> Membership {
    Membership { node: address.node, epoch: address.epoch }
}

impl LetterExchange {
    pub fn new(cluster: Cluster, link: PeerLink, secret: ClusterSecret) -> Self {
        Self { cluster, link, secret, unreachable: Mutex::default() }
    }

    /// Works until `closing` is cancelled.
    pub async fn run(self, tasks: ExchangeTasks, closing: CancellationToken) {
        let ExchangeTasks { frames, nats } = tasks;
        let (transport, receiving) = match nats {
            Some(NatsConnection { transport, events, driver }) => (Some(transport), Some((events, driver))),
            None => (None, None),
        };
        let receive_over_nats = async {
            let Some((events, driver)) = receiving else { return std::future::pending().await };
            tokio::join!(driver, self.receive_nats_events(events));
        };
        let (to_store, stored) = frame_queue(MAX_STORED_LETTERS);
        tokio::select! {
            () = closing.cancelled() => {}
            () = self.send_frames(frames, transport.as_ref(), to_store) => {}
            () = self.store_letters(stored) => {}
            () = self.receive_stored_letters() => {}
            () = receive_over_nats => tracing::error!("the connection to the message bus has ended for good"),
            () = self.note_connection(transport.as_ref()) => {}
        }
    }

    /// Tells the other nodes, with the next renewal, whether this one is connected to NATS.
    async fn note_connection(&self, transport: Option<&NatsTransport>) {
        let Some(transport) = transport else { return std::future::pending().await };
        let mut connected = transport.connected();
        loop {
            let is_connected = *connected.borrow_and_update();
            self.cluster.set_on_bus(is_connected);
            tracing::info!(is_connected, "message bus");
            if connected.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Never waits for the database: a stop over NATS must not queue behind it.
    async fn send_frames(&self, mut frames: OutgoingFrames, nats: Option<&NatsTransport>, to_store: FrameSender) {
        let own = address(self.cluster.membership());
        let mut sealer = LetterSealer::new(&self.secret, LetterTransport::Nats, own);
        loop {
            // What is sent next is decided when it can be sent.
            if let Some(nats) = nats {
                nats.wait_for_room().await;
            }
            let Some(outgoing) = frames.next().await else { return };
            if self.cluster.lost().is_cancelled() {
                return;
            }
            metrics::counter!(LETTERS_METRIC, "direction" => "sent").increment(1);
            let (to, content) = (outgoing.to.clone(), outgoing.frame.encode());
            // A letter that is sealed and not sent is a gap for its receiver, so it is checked before.
            let fits = |nats: &&NatsTransport| {
                nats.max_letter_bytes().is_some_and(|max| content.len() + MAX_LETTER_OVERHEAD <= max)
            };
            let nats = nats.filter(|nats| self.reaches_over_nats(nats, &to)).filter(fits);
            let sent = nats.is_some_and(|nats| {
                let letter = sealer.seal(&address(&to), &content);
                letter.is_ok_and(|letter| nats.send(&address(&to), letter).is_ok())
            });
            if !sent && !to_store.try_send(outgoing) {
                tracing::warn!(node = %to.node, "a letter was dropped: too many wait for the database");
                self.link.interrupt(&to);
            }
        }
    }

    fn reaches_over_nats(&self, nats: &NatsTransport, to: &Membership) -> bool {
        let mut unreachable = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        unreachable.retain(|_, until| *until > Instant::now());
        !unreachable.contains_key(&to.epoch) && self.cluster.is_peer_on_bus(to) && *nats.connected().borrow()
    }

    fn avoid_nats(&self, peer: &Membership) {
        let until = Instant::now() + AVOID_NATS_TIME;
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.epoch, until);
    }

    /// Sends letters through the database.
    async fn store_letters(&self, mut frames: OutgoingFrames) {
        let own = address(self.cluster.membership());
        let mut sealer = LetterSealer::new(&self.secret, LetterTransport::Database, own);
        loop {
            let batch = frames.next_batch(STORE_BATCH).await;
            if batch.is_empty() {
                return;
            }
            let receivers: Vec<Membership> = batch.iter().map(|outgoing| outgoing.to.clone()).collect();
            let letters = batch.into_iter().filter_map(|OutgoingPeerFrame { to, frame, .. }| {
                let letter = sealer.seal(&address(&to), &frame.encode()).ok()?;
                Some(StoredLetter { to: to.node, letter })
            });
            // waits: in a task of the engine, which ends when the engine closes.
            if let Err(error) = self.cluster.store().send_letters(letters.collect()).await {
                tracing::warn!(%error, "letters to other nodes could not be stored");
                receivers.into_iter().collect::<HashSet<_>>().iter().for_each(|receiver| self.link.interrupt(receiver));
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Takes the letters that the database has for this node.
    async fn receive_stored_letters(&self) {
        let mut notifications = self.cluster.store().letter_notifications();
        let own = address(self.cluster.membership());
        let mut opener = LetterOpener::new(&self.secret, LetterTransport::Database, own);
        loop {
            match self.cluster.store().take_letters().await {
                Ok(letters) => letters.iter().for_each(|letter| {
                    self.receive_letter(&mut opener, LetterTransport::Database, letter);
                }),
                Err(error) => {
                    tracing::debug!(%error, "the letters of other nodes could not be read");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
            tokio::select! {
                // The sender lives as long as the store.
                _ = notifications.changed() => {}
                // A notification can be lost with its connection.
                () = tokio::time::sleep(self.cluster.timing().renewal_interval()) => {}
            }
        }
    }

    async fn receive_nats_events(&self, mut events: mpsc::Receiver<NatsEvent>) {
        let own = address(self.cluster.membership());
        let mut opener = LetterOpener::new(&self.secret, LetterTransport::Nats, own);
        while let Some(event) = events.recv().await {
            match event {
                NatsEvent::Letter(letter) => {
                    if let Some(from) = self.receive_letter(&mut opener, LetterTransport::Nats, &letter) {
                        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).remove(&from.epoch);
                    }
                }
                NatsEvent::NoResponders(peer) => {
                    let peer = membership(peer);
                    tracing::debug!(node = %peer.node, "a node cannot be reached over the message bus");
                    self.avoid_nats(&peer);
                    self.link.interrupt(&peer);
                }
                // The next letter of each sender shows that some are missing.
                NatsEvent::LettersDropped => tracing::warn!("letters of other nodes were dropped: they came too fast"),
                NatsEvent::ConnectionLost => {
                    tracing::warn!("the connection to the message bus is lost; letters go through the database");
                    for peer in self.cluster.live_peers() {
                        self.link.note_gap(&peer.membership);
                    }
                }
            }
        }
    }

    /// Returns who has sent a valid letter.
    fn receive_letter(
        &self,
        opener: &mut LetterOpener,
        transport: LetterTransport,
        letter: &[u8],
    ) -> Option<Membership> {
        let opened = match opener.open(letter) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "a letter was dropped");
                return None;
            }
        };
        metrics::counter!(LETTERS_METRIC, "direction" => "received").increment(1);
        let from = membership(opened.from);
        if !self.cluster.may_be_at_work(from.epoch) {
            tracing::debug!(node = %from.node, epoch = from.epoch, "a letter of a node that is not a member any more is dropped");
            return None;
        }
        if opened.missed > 0 {
            tracing::warn!(node = %from.node, missed = opened.missed, "letters of a node were lost");
            self.link.note_gap(&from);
        }
        match Frame::decode(&opened.payload) {
            Ok(frame) => {
                if transport == LetterTransport::Database && matches!(frame.head, FrameHead::Interrupt { .. }) {
                    // It may have lost the message bus just now, which its report says with its next renewal only. What
                    // is asked again until then would be lost again.
                    self.avoid_nats(&from);
                }
                self.link.receive(&from, frame);
            }
            Err(error) => tracing::warn!(node = %from.node, %error, "a letter was dropped"),
        }
        Some(from)
    }
}
