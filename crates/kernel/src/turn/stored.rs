//! Stored form of a turn and its validation on load.
//!
//! A turn that sealing could not have written is refused here. So a damaged row is one clear error, and never a request
//! that a provider refuses.

use std::collections::HashSet;

use quell_protocol::{RunId, Usage, Verdict};
use serde::Deserialize;

use super::{Compaction, DisplayOnly, PartialMessage, Thinking, Turn, TurnItem};

/// The version that is written. Every older version stays readable, with a fixture in the tests.
pub const TURN_VERSION: u32 = 3;
/// The oldest readable version. It stored text, reasoning and calls of a message in separate lists.
const OLDEST_READABLE_VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum InvalidTurn {
    #[error("the stored turn is not readable")]
    Unreadable(#[from] serde_json::Error),
    #[error("the stored turn has version {0}, and this program reads up to {TURN_VERSION}")]
    Version(u32),
    /// Readable, but not valid.
    #[error("the stored turn is damaged: {0}")]
    Damaged(&'static str),
}

#[derive(Deserialize)]
pub(super) struct UncheckedTurn {
    version: u32,
    run_id: RunId,
    #[serde(default)]
    compaction: Option<Compaction>,
    items: Vec<TurnItem>,
    #[serde(default)]
    partial: Option<PartialMessage>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    for_people: DisplayOnly,
    verdict: Verdict,
    sealed_at: String,
    usage: Usage,
}

/// Parsed first, because a newer version may have any other shape.
#[derive(Deserialize)]
struct VersionHeader {
    version: u32,
}

impl Turn {
    pub fn from_stored(json: &str) -> Result<Self, InvalidTurn> {
        let VersionHeader { version } = serde_json::from_str(json)?;
        check_version(version)?;
        let unchecked: UncheckedTurn = serde_json::from_str(json)?;
        Self::try_from(unchecked)
    }

    pub fn to_stored(&self) -> String {
        // Formatting a JSON value cannot fail, and conversion to one cannot either: all map keys of a turn are strings.
        serde_json::json!(self).to_string()
    }
}

impl TryFrom<UncheckedTurn> for Turn {
    type Error = InvalidTurn;

    fn try_from(read: UncheckedTurn) -> Result<Self, InvalidTurn> {
        let UncheckedTurn { version, run_id, compaction, items, partial, note, for_people, verdict, sealed_at, usage } =
            read;
        check_version(version)?;
        check_items(&items)?;
        let version = TURN_VERSION;
        Ok(Self { version, run_id, compaction, items, partial, note, for_people, verdict, sealed_at, usage })
    }
}

fn check_version(version: u32) -> Result<(), InvalidTurn> {
    if (OLDEST_READABLE_VERSION..=TURN_VERSION).contains(&version) {
        Ok(())
    } else {
        Err(InvalidTurn::Version(version))
    }
}

fn check_items(items: &[TurnItem]) -> Result<(), InvalidTurn> {
    if !matches!(items.first(), Some(TurnItem::User { .. })) {
        return Err(InvalidTurn::Damaged("it does not begin with a message of the user"));
    }
    let mut ids = HashSet::new();
    for item in items {
        let TurnItem::Assistant(message) = item else { continue };
        if !message.has_content() {
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
