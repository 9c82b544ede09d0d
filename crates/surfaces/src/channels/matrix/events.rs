//! What the homeserver tells, as far as it is needed here (Matrix specification: client-server API, `/sync` and room events).
//!
//! An answer has to have its form. An event in it may be anything, because anybody may send anything; what has not the form that its
//! type asks for is left out.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::settings::is_id;

/// An answer of `/sync`.
#[derive(Debug, Deserialize)]
pub(super) struct Sync {
    pub(super) next_batch: String,
    #[serde(default)]
    pub(super) rooms: RoomNews,
}

/// Rooms in which something is new.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RoomNews {
    #[serde(default)]
    pub(super) join: BTreeMap<String, Joined>,
    #[serde(default)]
    pub(super) invite: BTreeMap<String, Invited>,
    #[serde(default)]
    pub(super) leave: BTreeMap<String, IgnoredAny>,
}

/// A room that the account is in.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Joined {
    #[serde(default)]
    pub(super) summary: Summary,
    #[serde(default)]
    pub(super) state: Events,
    #[serde(default)]
    pub(super) timeline: Timeline,
}

/// What changed about a room as a whole.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Summary {
    #[serde(rename = "m.joined_member_count")]
    pub(super) members: Option<u64>,
}

/// A room that the account may join.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Invited {
    #[serde(default)]
    pub(super) invite_state: Events,
}

/// Events as they are.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Events {
    #[serde(default)]
    events: Vec<Box<RawValue>>,
}

/// The newest messages of a room.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Timeline {
    #[serde(default)]
    events: Vec<Box<RawValue>>,
    /// True when there are more between the last poll and these.
    #[serde(default)]
    pub(super) limited: bool,
    /// Where those end.
    pub(super) prev_batch: Option<String>,
}

/// A page of messages or relations.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    chunk: Vec<Box<RawValue>>,
    #[serde(default)]
    state: Vec<Box<RawValue>>,
    /// Where the next page begins, of `/messages`.
    pub(super) end: Option<String>,
    /// Where the next page begins, of `/relations`.
    pub(super) next_batch: Option<String>,
}

/// One event, or the stripped one of an invitation, which has no id.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) event_id: String,
    pub(super) sender: String,
    pub(super) state_key: Option<String>,
    #[serde(default)]
    pub(super) content: Value,
    #[serde(default)]
    unsigned: Unsigned,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Unsigned {
    prev_content: Option<Value>,
}

/// The content of `m.room.message`.
#[derive(Debug, Deserialize)]
pub(super) struct MessageContent {
    pub(super) msgtype: String,
    pub(super) body: String,
    pub(super) formatted_body: Option<String>,
    pub(super) filename: Option<String>,
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) info: Value,
    #[serde(rename = "m.relates_to", default)]
    pub(super) relation: Relation,
    #[serde(rename = "m.mentions", default)]
    pub(super) mentions: Mentions,
}

/// What an event refers to.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Relation {
    pub(super) rel_type: Option<String>,
    pub(super) event_id: Option<String>,
    pub(super) key: Option<String>,
    #[serde(rename = "m.in_reply_to")]
    pub(super) in_reply_to: Option<IgnoredAny>,
}

/// Whom a message names.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Mentions {
    #[serde(default)]
    pub(super) user_ids: Vec<String>,
}

/// What becomes of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    Invited,
    /// Was not in the room before.
    Joined,
    /// Was there before, and has a new name or picture.
    Changed,
    Gone,
}

impl Events {
    pub(super) fn read(&self) -> Vec<Event> {
        read(&self.events)
    }
}

impl Timeline {
    pub(super) fn read(&self) -> Vec<Event> {
        read(&self.events)
    }
}

impl Page {
    /// The events of the page.
    pub(super) fn read(&self) -> Vec<Event> {
        read(&self.chunk)
    }

    /// Those who have written them.
    pub(super) fn read_state(&self) -> Vec<Event> {
        read(&self.state)
    }

    /// How many there are, also of those that cannot be read.
    pub(super) fn is_empty(&self) -> bool {
        self.chunk.is_empty()
    }
}

impl Event {
    /// The room that has taken the place of this one (client-server API: room upgrades).
    pub(super) fn replacement(&self) -> Option<&str> {
        let is_tombstone = self.kind == "m.room.tombstone" && self.state_key.as_deref() == Some("");
        let room = self.content["replacement_room"].as_str().filter(|_| is_tombstone)?;
        (is_id(room, '!') && is_id(&self.sender, '@')).then_some(room)
    }

    /// Whose membership this event changes, and how.
    pub(super) fn membership(&self) -> Option<(&str, Membership)> {
        let member = self.state_key.as_deref().filter(|_| self.kind == "m.room.member")?;
        let before = self.unsigned.prev_content.as_ref().and_then(|content| content["membership"].as_str());
        let membership = match self.content["membership"].as_str()? {
            "invite" => Membership::Invited,
            "join" if before == Some("join") => Membership::Changed,
            "join" => Membership::Joined,
            _ => Membership::Gone,
        };
        Some((member, membership))
    }
}

fn read(events: &[Box<RawValue>]) -> Vec<Event> {
    events.iter().filter_map(|event| serde_json::from_str(event.get()).ok()).collect()
}
