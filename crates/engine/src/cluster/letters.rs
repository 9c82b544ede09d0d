//! Letters between nodes: who sent them, and for whom they are.

use quell_store::Membership;
use serde::{Deserialize, Serialize};

use super::frame::{join_parts, split_parts};

#[derive(Serialize, Deserialize)]
struct LetterHead {
    from: (String, u64),
    to: (String, u64),
}

/// Writes the letters of a node.
pub(super) struct LetterWriter {
    own: Membership,
}

/// Reads the letters for a node that arrive on one way.
pub(super) struct LetterReader {
    own: Membership,
}

impl LetterWriter {
    pub(super) fn new(own: Membership) -> Self {
        Self { own }
    }

    pub(super) fn write(&mut self, to: &Membership, content: &[u8]) -> Vec<u8> {
        let address = |membership: &Membership| (membership.node.to_string(), membership.epoch);
        let head = LetterHead { from: address(&self.own), to: address(to) };
        join_parts(&serde_json::to_vec(&head).unwrap_or_default(), content)
    }
}

impl LetterReader {
    pub(super) fn new(own: Membership) -> Self {
        Self { own }
    }

    pub(super) fn read(&mut self, letter: &[u8]) -> Option<(Membership, Vec<u8>)> {
        let (head, content) = split_parts(letter)?;
        let head: LetterHead = serde_json::from_slice(head).ok()?;
        let is_for_us = head.to == (self.own.node.to_string(), self.own.epoch);
        let from = Membership { node: quell_protocol::NodeName::parse(head.from.0).ok()?, epoch: head.from.1 };
        is_for_us.then(|| (from, content.to_vec()))
    }
}
