//! Signed letters: only nodes that know the secret of the cluster can write one, and each is accepted once.
//!
//! All integers are big-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version of the format |
//! | 4 | id of the key |
//! | 1, n, 8 | length of the sender's name, its name, its epoch |
//! | 1, n, 8 | the same for the receiver |
//! | 8 | sequence number: 1 for the first letter from this sender to this receiver |
//! | any | payload |
//! | 32 | HMAC-SHA256 over everything before |
//!
//! A letter is signed, not encrypted.

mod encoding;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use quell_protocol::NodeName;
use ring::hmac;

use crate::{ClusterSecret, NodeAddress};
use encoding::{KEY_ID_BYTES, MAC_BYTES, MAX_NAME_BYTES, Parsed, VERSION};

/// The bytes of a letter besides its payload are never more.
pub const MAX_LETTER_OVERHEAD: usize = 1 + KEY_ID_BYTES + 2 * (1 + MAX_NAME_BYTES + 8) + 8 + MAC_BYTES;

/// Senders that are remembered. Each membership of a node with a new name takes one place, about 100 bytes.
const MAX_SENDERS: usize = 16_384;

/// The way that a letter takes. Each has its own keys and sequence numbers, so that a letter of one is refused on the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterTransport {
    Nats,
    Database,
}

/// A letter whose signature was right, and that was new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedLetter {
    pub from: NodeAddress,
    pub sequence: u64,
    /// The letters from this sender that came neither before nor will be accepted later. Not 0: a letter was lost, and a
    /// stream of this sender has a gap.
    pub missed: u64,
    pub payload: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The receiver has joined the cluster again since.
    #[error("node {} has joined again with epoch {current}, epoch {} has ended", .to.node, .to.epoch)]
    ReceiverReplaced { to: NodeAddress, current: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the letter is cut off or no letter at all")]
    Malformed,
    #[error("the letter has the unknown format {0}: run the same version on all nodes")]
    UnknownVersion(u8),
    #[error("the letter is not signed with a key of this cluster: compare the secret on all nodes")]
    BadSignature,
    #[error("the letter is for {0}")]
    WrongReceiver(NodeAddress),
    #[error("letter {sequence} from {from} was accepted before, or a later one was")]
    Replayed { from: NodeAddress, sequence: u64 },
    #[error("the letter is from {0}, which is no member any more")]
    SenderReplaced(NodeAddress),
}

/// Signs the letters of one membership for one transport.
///
/// Letters have to be sent in the order in which they were sealed: the receiver refuses one that was overtaken. A letter
/// that was sealed and then not sent counts as lost there.
#[derive(Debug)]
pub struct LetterSealer {
    own: NodeAddress,
    transport: LetterTransport,
    key: SigningKey,
    receivers: HashMap<NodeName, LastLetter>,
}

/// Checks the letters of one transport to one membership. A membership has one opener for each transport, from its start
/// to its end: another one would accept the same letters again.
#[derive(Debug)]
pub struct LetterOpener {
    own: NodeAddress,
    transport: LetterTransport,
    keys: Vec<SigningKey>,
    senders: HashMap<NodeName, LastLetter>,
    max_senders: usize,
    /// The highest epoch that was forgotten. Senders with lower ones are refused unless they are remembered.
    forgotten_epoch: Option<u64>,
}

#[derive(Debug)]
struct SigningKey {
    id: [u8; KEY_ID_BYTES],
    key: hmac::Key,
}

/// The newest letter of a membership.
#[derive(Debug, Clone, Copy)]
struct LastLetter {
    epoch: u64,
    sequence: u64,
}

impl LetterSealer {
    /// Signs with the first key of `secret`.
    pub fn new(secret: &ClusterSecret, transport: LetterTransport, own: NodeAddress) -> Self {
        let key = signing_keys(secret, transport).swap_remove(0);
        Self { own, transport, key, receivers: HashMap::new() }
    }

    /// Continues with the keys of `secret`, and with the same sequence numbers.
    pub fn replace_secret(&mut self, secret: &ClusterSecret) {
        self.key = signing_keys(secret, self.transport).swap_remove(0);
    }

    pub fn seal(&mut self, to: &NodeAddress, payload: &[u8]) -> Result<Vec<u8>, SealError> {
        let last = self.receivers.entry(to.node.clone()).or_insert(LastLetter { epoch: to.epoch, sequence: 0 });
        if to.epoch < last.epoch {
            return Err(SealError::ReceiverReplaced { to: to.clone(), current: last.epoch });
        }
        if to.epoch > last.epoch {
            *last = LastLetter { epoch: to.epoch, sequence: 0 };
        }
        last.sequence += 1;
        let mut letter = Vec::with_capacity(MAX_LETTER_OVERHEAD + payload.len());
        encoding::write_head(&mut letter, self.key.id, &self.own, to, last.sequence);
        letter.extend_from_slice(payload);
        let mac = hmac::sign(&self.key.key, &letter);
        letter.extend_from_slice(mac.as_ref());
        Ok(letter)
    }
}

impl LetterOpener {
    /// Accepts letters that are signed with any key of `secret`.
    pub fn new(secret: &ClusterSecret, transport: LetterTransport, own: NodeAddress) -> Self {
        let keys = signing_keys(secret, transport);
        Self { own, transport, keys, senders: HashMap::new(), max_senders: MAX_SENDERS, forgotten_epoch: None }
    }

    /// Continues with the keys of `secret`, and still accepts no letter twice.
    pub fn replace_secret(&mut self, secret: &ClusterSecret) {
        self.keys = signing_keys(secret, self.transport);
    }

    /// A refused letter changes nothing.
    pub fn open(&mut self, letter: &[u8]) -> Result<OpenedLetter, OpenError> {
        match letter.first() {
            None => return Err(OpenError::Malformed),
            Some(&VERSION) => {}
            Some(&other) => return Err(OpenError::UnknownVersion(other)),
        }
        let (signed, mac) = letter.split_last_chunk::<MAC_BYTES>().ok_or(OpenError::Malformed)?;
        let key_id = encoding::key_id(signed).ok_or(OpenError::Malformed)?;
        let mut candidates = self.keys.iter().filter(|key| key.id == key_id);
        // In constant time.
        if !candidates.any(|key| hmac::verify(&key.key, signed, mac).is_ok()) {
            return Err(OpenError::BadSignature);
        }
        let Parsed { from, to, sequence, payload } = encoding::parse(signed).ok_or(OpenError::Malformed)?;
        if to != self.own {
            return Err(OpenError::WrongReceiver(to));
        }
        let missed = self.accept(&from, sequence)?;
        Ok(OpenedLetter { from, sequence, missed, payload: payload.to_vec() })
    }

    /// Remembers the letter as the newest one of its sender. Returns how many letters are missing before it.
    fn accept(&mut self, from: &NodeAddress, sequence: u64) -> Result<u64, OpenError> {
        let newest = LastLetter { epoch: from.epoch, sequence };
        if let Some(last) = self.senders.get_mut(&from.node) {
            let before = match from.epoch.cmp(&last.epoch) {
                std::cmp::Ordering::Less => return Err(OpenError::SenderReplaced(from.clone())),
                std::cmp::Ordering::Equal => last.sequence,
                std::cmp::Ordering::Greater => 0,
            };
            let missed = count_missed(from, before, sequence)?;
            *last = newest;
            return Ok(missed);
        }
        if self.forgotten_epoch.is_some_and(|forgotten| from.epoch <= forgotten) {
            return Err(OpenError::SenderReplaced(from.clone()));
        }
        let missed = count_missed(from, 0, sequence)?;
        if self.senders.len() >= self.max_senders {
            self.forget_oldest();
        }
        self.senders.insert(from.node.clone(), newest);
        Ok(missed)
    }

    /// Epochs rise in the whole cluster, so the lowest one is that of the oldest membership.
    fn forget_oldest(&mut self) {
        let oldest = self.senders.iter().min_by_key(|(_, last)| last.epoch);
        if let Some((node, epoch)) = oldest.map(|(node, last)| (node.clone(), last.epoch)) {
            self.senders.remove(&node);
            self.forgotten_epoch = self.forgotten_epoch.max(Some(epoch));
        }
    }
}

fn count_missed(from: &NodeAddress, before: u64, sequence: u64) -> Result<u64, OpenError> {
    let distance = sequence.checked_sub(before).filter(|distance| *distance > 0);
    let distance = distance.ok_or_else(|| OpenError::Replayed { from: from.clone(), sequence })?;
    Ok(distance - 1)
}

/// The keys of a transport. Their ids are derived, too, so that a key has the same one at each place of the list.
fn signing_keys(secret: &ClusterSecret, transport: LetterTransport) -> Vec<SigningKey> {
    let (purpose, id_purpose) = match transport {
        LetterTransport::Nats => ("letters over NATS", "ids of keys for letters over NATS"),
        LetterTransport::Database => ("letters over the database", "ids of keys for letters over the database"),
    };
    let ids = secret.derived_keys(id_purpose);
    let keys = secret.derived_keys(purpose).into_iter().zip(ids);
    keys.map(|(key, [a, b, c, d, ..])| SigningKey { id: [a, b, c, d], key: hmac::Key::new(hmac::HMAC_SHA256, &key) })
        .collect()
}
