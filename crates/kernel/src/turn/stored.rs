//! The stored form of a turn, and the check that every loaded one passes. A turn that sealing could not have written is
//! refused here, so that a damaged row is one clear error and never a request that a provider refuses.

use std::collections::HashSet;

use quell_protocol::{RunId, Usage, Verdict};
use serde::Deserialize;

use super::{Compaction, ForPeople, Item, Partial, Thinking, Turn};

/// The version that is written. Every version ever written stays readable, with a fixture in the tests.
pub const TURN_VERSION: u32 = 2;
/// The oldest that is read. It kept text, reasoning and calls of a message apart.
const OLDEST: u32 = 1;

/// Why a stored turn was refused.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTurn {
    /// Not a turn at all.
    #[error("the stored turn is not readable")]
    Unreadable(#[from] serde_json::Error),
    /// Written by a newer Quell.
    #[error("the stored turn has version {0}, and this program reads up to {TURN_VERSION}")]
    Version(u32),
    /// Readable, and not valid.
    #[error("the stored turn is damaged: {0}")]
    Damaged(&'static str),
}

/// A turn as it was read, before its check.
#[derive(Deserialize)]
pub(super) struct Unchecked {
    version: u32,
    run_id: RunId,
    #[serde(default)]
    compaction: Option<Compaction>,
    items: Vec<Item>,
    #[serde(default)]
    partial: Option<Partial>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    for_people: ForPeople,
    verdict: Verdict,
    sealed_at: String,
    usage: Usage,
}

/// Read first, since a newer version may have any other shape.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

impl Turn {
    /// Reads a stored turn.
    ///
    /// # Errors
    /// [`InvalidTurn`] for what is not a turn, was written by a newer version, or breaks a rule of turns.
    pub fn from_stored(json: &str) -> Result<Self, InvalidTurn> {
        let Head { version } = serde_json::from_str(json)?;
        readable(version)?;
        let unchecked: Unchecked = serde_json::from_str(json)?;
        Self::try_from(unchecked)
    }

    /// The form that [`Turn::from_stored`] reads.
    #[must_use]
    pub fn to_stored(&self) -> String {
        // Through a JSON value, whose text cannot fail: a turn holds no map with keys that are no text.
        serde_json::json!(self).to_string()
    }
}

impl TryFrom<Unchecked> for Turn {
    type Error = InvalidTurn;

    fn try_from(read: Unchecked) -> Result<Self, InvalidTurn> {
        let Unchecked { version, run_id, compaction, items, partial, note, for_people, verdict, sealed_at, usage } =
            read;
        readable(version)?;
        check(&items)?;
        let version = TURN_VERSION;
        Ok(Self { version, run_id, compaction, items, partial, note, for_people, verdict, sealed_at, usage })
    }
}

fn readable(version: u32) -> Result<(), InvalidTurn> {
    if (OLDEST..=TURN_VERSION).contains(&version) { Ok(()) } else { Err(InvalidTurn::Version(version)) }
}

fn check(items: &[Item]) -> Result<(), InvalidTurn> {
    if !matches!(items.first(), Some(Item::User { .. })) {
        return Err(InvalidTurn::Damaged("it does not begin with what the user said"));
    }
    let mut ids = HashSet::new();
    for item in items {
        let Item::Assistant(message) = item else { continue };
        if !message.says_something() {
            return Err(InvalidTurn::Damaged("it holds an empty message of the model"));
        }
        if !message.thinking().all(Thinking::is_returnable) {
            return Err(InvalidTurn::Damaged("it holds reasoning that no provider takes back"));
        }
        if !message.calls().all(|call| ids.insert(&call.call.id)) {
            return Err(InvalidTurn::Damaged("two of its calls have the same id"));
        }
    }
    Ok(())
}
