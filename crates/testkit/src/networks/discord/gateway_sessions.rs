//! Gateway sessions: the events of each, and which of them can be sent again; independent of connections.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// Events that are kept for a session whose client is disconnected.
const MAX_KEPT_EVENTS: usize = 100_000;
/// Discord: gateway intents.
pub(super) const GUILD_MESSAGES: u64 = 1 << 9;
pub(super) const DIRECT_MESSAGES: u64 = 1 << 12;
pub(super) const MESSAGE_CONTENT: u64 = 1 << 15;

#[derive(Debug, Clone)]
pub struct FakeGatewaySession {
    pub(super) id: String,
    pub(super) intents: u64,
    /// The number of its last event.
    pub(super) last_seq: u64,
    /// Events that may be sent again, with their numbers.
    events: VecDeque<(u64, String)>,
    pub(super) connection: u64,
}

impl FakeGatewaySession {
    pub(super) fn new(id: String, intents: u64, connection: u64) -> Self {
        Self { id, intents, last_seq: 0, events: VecDeque::new(), connection }
    }

    /// Adds an event with the next number.
    pub(super) fn push_event(&mut self, name: &str, data: &Value) {
        self.last_seq += 1;
        let text = json!({"op": 0, "t": name, "s": self.last_seq, "d": data}).to_string();
        self.events.push_back((self.last_seq, text));
        if self.events.len() > MAX_KEPT_EVENTS {
            self.events.pop_front();
        }
    }

    pub(super) fn events_after(&self, seq: u64) -> Vec<(u64, String)> {
        let first = self.events.partition_point(|(number, _)| *number <= seq);
        self.events.range(first..).cloned().collect()
    }

    /// Drops events that the client has confirmed.
    pub(super) fn confirm_up_to(&mut self, seq: u64) {
        self.events.retain(|(number, _)| *number > seq);
    }

    /// True when every event after a number is still kept.
    pub(super) fn can_resume(&self, seq: u64) -> bool {
        let first = self.events.front().map_or(self.last_seq + 1, |(number, _)| *number);
        seq <= self.last_seq && seq + 1 >= first
    }
}
