//! The bytes of a letter.

use quell_protocol::NodeName;

use crate::NodeAddress;

pub(super) const VERSION: u8 = 1;
pub(super) const KEY_ID_BYTES: usize = 4;
pub(super) const MAC_BYTES: usize = 32;
/// The limit of [`NodeName`].
pub(super) const MAX_NAME_BYTES: usize = 63;

/// A letter without its signature.
pub(super) struct Parsed<'a> {
    pub(super) from: NodeAddress,
    pub(super) to: NodeAddress,
    pub(super) sequence: u64,
    pub(super) payload: &'a [u8],
}

pub(super) fn write_head(
    letter: &mut Vec<u8>,
    key_id: [u8; KEY_ID_BYTES],
    from: &NodeAddress,
    to: &NodeAddress,
    sequence: u64,
) {
    letter.push(VERSION);
    letter.extend_from_slice(&key_id);
    write_address(letter, from);
    write_address(letter, to);
    letter.extend_from_slice(&sequence.to_be_bytes());
}

pub(super) fn key_id(letter: &[u8]) -> Option<[u8; KEY_ID_BYTES]> {
    letter.get(1..)?.first_chunk().copied()
}

pub(super) fn parse(letter: &[u8]) -> Option<Parsed<'_>> {
    let rest = letter.get(1 + KEY_ID_BYTES..)?;
    let (from, rest) = parse_address(rest)?;
    let (to, rest) = parse_address(rest)?;
    let (sequence, payload) = rest.split_first_chunk()?;
    Some(Parsed { from, to, sequence: u64::from_be_bytes(*sequence), payload })
}

fn write_address(letter: &mut Vec<u8>, address: &NodeAddress) {
    let name = address.node.as_str().as_bytes();
    #[expect(clippy::cast_possible_truncation, reason = "a name has at most 63 bytes")]
    letter.push(name.len() as u8);
    letter.extend_from_slice(name);
    letter.extend_from_slice(&address.epoch.to_be_bytes());
}

fn parse_address(bytes: &[u8]) -> Option<(NodeAddress, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let node = NodeName::parse(std::str::from_utf8(name).ok()?).ok()?;
    Some((NodeAddress { node, epoch: u64::from_be_bytes(*epoch) }, rest))
}
