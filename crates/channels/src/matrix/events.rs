//! `/sync` response and event types (Matrix specification: client-server API, `/sync` and room events).
//!
//! A response must be valid. A single event in it may be anything, because any user can send anything: an event without
//! the form of its type is skipped.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::settings::is_matrix_id;

#[derive(Debug, Deserialize)]
pub(super) struct SyncResponse {
    pub(super) next_batch: String,
    #[serde(default)]
    pub(super) rooms: SyncRooms,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct SyncRooms {
    #[serde(default)]
    pub(super) join: BTreeMap<String, JoinedRoom>,
    #[serde(default)]
    pub(super) invite: BTreeMap<String, InvitedRoom>,
    #[serde(default)]
    pub(super) leave: BTreeMap<String, IgnoredAny>,
}

/// A room that the account is in.
#[derive(Debug, Default, Deserialize)]
pub(super) struct JoinedRoom {
    #[serde(default)]
    pub(super) summary: RoomSummary,
    #[serde(default)]
    pub(super) state: EventList,
    #[serde(default)]
    pub(super) timeline: RoomTimeline,
}

/// Changes of a room as a whole.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RoomSummary {
    #[serde(rename = "m.joined_member_count")]
    pub(super) members: Option<u64>,
}

/// A room to which the account is invited.
#[derive(Debug, Default, Deserialize)]
pub(super) struct InvitedRoom {
    #[serde(default)]
    pub(super) invite_state: EventList,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct EventList {
    #[serde(default)]
    pub(super) events: RawEvents,
}

/// The newest events of a room.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RoomTimeline {
    #[serde(default)]
    pub(super) events: RawEvents,
    /// True if events between the last poll and these were left out.
    #[serde(default)]
    pub(super) limited: bool,
    /// Token of the end of the events that were left out.
    pub(super) prev_batch: Option<String>,
}

/// A page of messages or relations.
#[derive(Debug, Deserialize)]
pub(super) struct EventPage {
    #[serde(default)]
    pub(super) chunk: RawEvents,
    /// The membership events of the senders.
    #[serde(default)]
    pub(super) state: RawEvents,
    /// Token of the next page of `/messages`.
    pub(super) end: Option<String>,
    /// Token of the next page of `/relations`.
    pub(super) next_batch: Option<String>,
}

/// Events as the server sent them.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RawEvents(Vec<Box<RawValue>>);

/// An event, or a stripped event of an invitation, which has no id.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct MatrixEvent {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) event_id: String,
    pub(super) sender: String,
    pub(super) state_key: Option<String>,
    #[serde(default)]
    pub(super) content: Value,
    #[serde(default)]
    unsigned: UnsignedEventData,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct UnsignedEventData {
    prev_content: Option<Value>,
}

/// The content of `m.room.message`.
#[derive(Debug, Deserialize)]
pub(super) struct MatrixMessageContent {
    pub(super) msgtype: String,
    pub(super) body: String,
    pub(super) formatted_body: Option<String>,
    pub(super) filename: Option<String>,
    pub(super) url: Option<String>,
    #[serde(default)]
    pub(super) info: Value,
    #[serde(rename = "m.relates_to", default)]
    pub(super) relation: EventRelation,
    #[serde(rename = "m.mentions", default)]
    pub(super) mentions: MessageMentions,
}

/// The event that an event relates to.
#[derive(Debug, Default, Deserialize)]
pub(super) struct EventRelation {
    pub(super) rel_type: Option<String>,
    pub(super) event_id: Option<String>,
    pub(super) key: Option<String>,
    #[serde(rename = "m.in_reply_to")]
    pub(super) in_reply_to: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct MessageMentions {
    #[serde(default)]
    pub(super) user_ids: Vec<String>,
}

/// How an event changes a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MembershipChange {
    Invited,
    /// Was not in the room before.
    Joined,
    /// Was in the room before, and has a new name or picture.
    ProfileChanged,
    Left,
}

impl RawEvents {
    /// The events that have the form of their type.
    pub(super) fn parse(&self) -> Vec<MatrixEvent> {
        self.0.iter().filter_map(|event| serde_json::from_str(event.get()).ok()).collect()
    }

    /// True if the server sent no events, not even invalid ones.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl MatrixEvent {
    /// The room that replaces this one (client-server API: room upgrades).
    pub(super) fn replacement_room(&self) -> Option<&str> {
        let is_tombstone = self.kind == "m.room.tombstone" && self.state_key.as_deref() == Some("");
        let room = self.content["replacement_room"].as_str().filter(|_| is_tombstone)?;
        (is_matrix_id(room, '!') && is_matrix_id(&self.sender, '@')).then_some(room)
    }

    /// The user whose membership this event changes, and the change.
    pub(super) fn membership_change(&self) -> Option<(&str, MembershipChange)> {
        let member = self.state_key.as_deref().filter(|_| self.kind == "m.room.member")?;
        let before = self.unsigned.prev_content.as_ref().and_then(|content| content["membership"].as_str());
        let membership = match self.content["membership"].as_str()? {
            "invite" => MembershipChange::Invited,
            "join" if before == Some("join") => MembershipChange::ProfileChanged,
            "join" => MembershipChange::Joined,
            _ => MembershipChange::Left,
        };
        Some((member, membership))
    }
}
