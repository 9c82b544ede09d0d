//! The unit of the traffic between two nodes: a head in JSON, and bytes that belong to it.

use serde::{Deserialize, Serialize};

/// Bytes of a frame, at most. A letter with it stays below the largest message of a NATS server by default, 1 MiB.
pub(super) const MAX_PART_BYTES: usize = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) head: FrameHead,
    pub(super) part: Vec<u8>,
}

/// Parts of a request and of an answer are numbered from 0, so that a lost one is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub(super) enum FrameHead {
    /// A part of a request. `call` is chosen by the sender.
    Request { call: u64, number: u32, last: bool },
    /// A part of the answer to the receiver's request `call`.
    Answer { call: u64, number: u32 },
    /// The answer is complete, or failed. `number` is that of the part that would follow.
    End { call: u64, number: u32, error: Option<String> },
    /// The sender does not want the rest of the answer to its request `call`.
    Cancel { call: u64 },
    /// The sender has given up all calls between the two nodes, its own with numbers below this one: something was lost,
    /// events perhaps as well.
    Interrupt { before: u64 },
    /// Events of the sender could not be sent.
    EventsLost,
    /// Events of the sender, for the clients of the receiver.
    Events,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of another node cannot be read; nodes may differ by one version only")]
pub(super) struct UnreadableFrame;

impl Frame {
    pub(super) fn new(head: FrameHead, part: Vec<u8>) -> Self {
        Self { head, part }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let head = serde_json::to_vec(&self.head).unwrap_or_default();
        join_parts(&head, &self.part)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, UnreadableFrame> {
        let (head, part) = split_parts(bytes).ok_or(UnreadableFrame)?;
        let head = serde_json::from_slice(head).map_err(|_| UnreadableFrame)?;
        Ok(Self { head, part: part.to_vec() })
    }
}

/// Joins two byte strings, so that [`split_parts`] can split them.
pub(super) fn join_parts(first: &[u8], second: &[u8]) -> Vec<u8> {
    let length = u32::try_from(first.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), first, second].concat()
}

pub(super) fn split_parts(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_its_encoding_and_a_cut_one_is_refused() {
        let frame = Frame::new(FrameHead::End { call: 7, number: 2, error: Some("no".to_owned()) }, vec![0, 1, 255]);
        let bytes = frame.encode();
        assert_eq!(Frame::decode(&bytes), Ok(frame));
        for length in 0..bytes.len() - 3 {
            assert_eq!(Frame::decode(&bytes[..length]), Err(UnreadableFrame), "{length}");
        }
    }
}
