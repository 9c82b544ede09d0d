//! Member counts and display names of joined rooms.

use std::collections::HashMap;

use super::events::{JoinedRoom, MatrixEvent};

/// Largest number of names kept for one room. The homeserver sends the name with each message, so that forgetting costs
/// nothing.
const MAX_NAMES: usize = 500;
/// Longest name that is kept, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// The rooms by id.
#[derive(Debug, Default)]
pub(super) struct KnownRooms(HashMap<String, KnownRoom>);

#[derive(Debug, Default)]
pub(super) struct KnownRoom {
    member_count: Option<u64>,
    display_names: HashMap<String, String>,
}

impl KnownRooms {
    /// Applies the summary and state of a room from a sync. Returns true if the room is new.
    pub(super) fn apply_joined_room(&mut self, id: &str, joined: &JoinedRoom) -> bool {
        let is_new = !self.0.contains_key(id);
        let room = self.0.entry(id.to_owned()).or_default();
        room.member_count = joined.summary.members.or(room.member_count);
        joined.state.events.parse().iter().for_each(|event| room.apply_member_event(event));
        is_new
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    pub(super) fn get_or_insert(&mut self, id: &str) -> &mut KnownRoom {
        self.0.entry(id.to_owned()).or_default()
    }
}

impl KnownRoom {
    /// Applies the display name in a membership event.
    pub(super) fn apply_member_event(&mut self, event: &MatrixEvent) {
        let Some((member, _)) = event.membership_change() else { return };
        let name = event.content["displayname"].as_str().map(str::trim);
        match name.filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES) {
            Some(name) => {
                if self.display_names.len() >= MAX_NAMES {
                    self.display_names.clear();
                }
                self.display_names.insert(member.to_owned(), name.to_owned());
            }
            None => drop(self.display_names.remove(member)),
        }
    }

    /// True if more than two are in the room, or if their number is unknown.
    pub(super) fn is_group(&self) -> bool {
        self.member_count.is_none_or(|members| members > 2)
    }

    pub(super) fn display_name(&self, user: &str) -> Option<&str> {
        self.display_names.get(user).map(String::as_str)
    }
}
