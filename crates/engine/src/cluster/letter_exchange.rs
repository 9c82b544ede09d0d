//! How frames get from node to node: in letters through the database.

use std::time::Duration;

use quell_store::{Membership, StoredLetter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use super::frame::Frame;
use super::letters::{LetterReader, LetterWriter};
use super::peer_link::{OutgoingFrame, PeerLink};

/// Frames that are stored together, at most.
const STORE_BATCH: usize = 64;
/// Until the next attempt after the database has refused letters.
const RETRY_DELAY: Duration = Duration::from_millis(100);

const LETTERS_METRIC: &str = "quell_cluster_peer_letters_total";

/// Sends and receives the letters of a node.
pub struct LetterExchange {
    cluster: Cluster,
    link: PeerLink,
    frames: mpsc::Receiver<OutgoingFrame>,
}

impl LetterExchange {
    pub fn new(cluster: Cluster, link: PeerLink, frames: mpsc::Receiver<OutgoingFrame>) -> Self {
        Self { cluster, link, frames }
    }

    /// Works until `closing` is cancelled.
    pub async fn run(self, closing: CancellationToken) {
        let Self { cluster, link, frames } = self;
        tokio::select! {
            () = closing.cancelled() => {}
            () = send_frames(&cluster, &link, frames) => {}
            () = receive_stored_letters(&cluster, &link) => {}
        }
    }
}

async fn send_frames(cluster: &Cluster, link: &PeerLink, mut frames: mpsc::Receiver<OutgoingFrame>) {
    let mut writer = LetterWriter::new(cluster.membership().clone());
    let mut batch = Vec::new();
    while frames.recv_many(&mut batch, STORE_BATCH).await > 0 {
        if cluster.lost().is_cancelled() {
            return;
        }
        let receivers: Vec<Membership> = batch.iter().map(|outgoing| outgoing.to.clone()).collect();
        let letters = batch.drain(..).map(|outgoing| StoredLetter {
            to: outgoing.to.node.clone(),
            letter: writer.write(&outgoing.to, &outgoing.frame.encode()),
        });
        metrics::counter!(LETTERS_METRIC, "direction" => "sent").increment(receivers.len() as u64);
        if let Err(error) = cluster.store().send_letters(letters.collect()).await {
            tracing::warn!(%error, "letters to other nodes could not be stored");
            receivers.iter().for_each(|receiver| link.note_undelivered(receiver));
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Takes the letters that the database has for this node.
async fn receive_stored_letters(cluster: &Cluster, link: &PeerLink) {
    let mut notifications = cluster.store().letter_notifications();
    let mut reader = LetterReader::new(cluster.membership().clone());
    loop {
        match cluster.store().take_letters().await {
            Ok(letters) => letters.iter().for_each(|letter| receive_letter(cluster, link, &mut reader, letter)),
            Err(error) => {
                tracing::debug!(%error, "the letters of other nodes could not be read");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
        tokio::select! {
            // The sender lives as long as the store.
            _ = notifications.changed() => {}
            // A notification can be lost with its connection.
            () = tokio::time::sleep(cluster.timing().renewal_interval()) => {}
        }
    }
}

fn receive_letter(cluster: &Cluster, link: &PeerLink, reader: &mut LetterReader, letter: &[u8]) {
    metrics::counter!(LETTERS_METRIC, "direction" => "received").increment(1);
    let Some((from, content)) = reader.read(letter) else { return };
    if !cluster.accepts_letters_of(&from) {
        tracing::debug!(node = %from.node, epoch = from.epoch, "a letter of a node that is not a member any more is dropped");
        return;
    }
    match Frame::decode(&content) {
        Ok(frame) => link.receive(&from, frame),
        Err(error) => tracing::warn!(node = %from.node, %error, "a letter was dropped"),
    }
}
