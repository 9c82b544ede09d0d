//! What is known of the rooms that the account is in: how many are there, and what those are called who have written.

use std::collections::HashMap;

use super::events::{Event, Joined};

/// So many names are kept of one room. The homeserver tells the name again with each message, so that forgetting costs nothing.
const MOST_NAMES: usize = 500;
/// The longest name that is kept, in bytes.
const LONGEST_NAME: usize = 256;

/// The rooms, by id.
#[derive(Debug, Default)]
pub(super) struct Rooms(HashMap<String, Room>);

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Room {
    members: Option<u64>,
    names: HashMap<String, String>,
}

impl Rooms {
    /// Takes in what a poll says of a room, its messages excepted. True when the room is a new one.
    pub(super) fn learn(&mut self, id: &str, joined: &Joined) -> bool {
        let is_new = !self.0.contains_key(id);
        let room = self.0.entry(id.to_owned()).or_default();
        room.members = joined.summary.members.or(room.members);
        joined.state.read().iter().for_each(|event| room.learn(event));
        is_new
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    pub(super) fn of(&mut self, id: &str) -> &mut Room {
        self.0.entry(id.to_owned()).or_default()
    }
}

impl Room {
    /// Takes in what an event says of somebody's name.
    pub(super) fn learn(&mut self, event: &Event) {
        let Some((member, _)) = event.membership() else { return };
        let name = event.content["displayname"].as_str().map(str::trim);
        match name.filter(|name| !name.is_empty() && name.len() <= LONGEST_NAME) {
            Some(name) => {
                if self.names.len() >= MOST_NAMES {
                    self.names.clear();
                }
                self.names.insert(member.to_owned(), name.to_owned());
            }
            None => drop(self.names.remove(member)),
        }
    }

    /// Whether more than two are in it; so is one of which that is not known.
    pub(super) fn is_group(&self) -> bool {
        self.members.is_none_or(|members| members > 2)
    }

    pub(super) fn name_of(&self, user: &str) -> Option<&str> {
        self.names.get(user).map(String::as_str)
    }
}
