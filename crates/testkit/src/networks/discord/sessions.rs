//! Sessions of the gateway: what each was told, and what could be told again. It knows no connections.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// Events that are kept for a session whose client is away.
const KEPT: usize = 100_000;
/// Discord: gateway intents.
pub(super) const GUILD_MESSAGES: u64 = 1 << 9;
pub(super) const DIRECT_MESSAGES: u64 = 1 << 12;
pub(super) const MESSAGE_CONTENT: u64 = 1 << 15;

/// One session.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) intents: u64,
    /// The number of its last event.
    pub(super) last: u64,
    /// Events that may be told again, with their numbers.
    events: VecDeque<(u64, String)>,
    /// The connection that speaks for it.
    pub(super) connection: u64,
}

impl Session {
    pub(super) fn new(id: String, intents: u64, connection: u64) -> Self {
        Self { id, intents, last: 0, events: VecDeque::new(), connection }
    }

    /// Gives an event the next number.
    pub(super) fn dispatch(&mut self, name: &str, data: &Value) {
        self.last += 1;
        let text = json!({"op": 0, "t": name, "s": self.last, "d": data}).to_string();
        self.events.push_back((self.last, text));
        if self.events.len() > KEPT {
            self.events.pop_front();
        }
    }

    /// The events after a number.
    pub(super) fn after(&self, seq: u64) -> Vec<(u64, String)> {
        let first = self.events.partition_point(|(number, _)| *number <= seq);
        self.events.range(first..).cloned().collect()
    }

    /// The client has confirmed everything up to a number: it is not told again.
    pub(super) fn confirm(&mut self, seq: u64) {
        self.events.retain(|(number, _)| *number > seq);
    }

    /// True when everything after a number can still be told.
    pub(super) fn can_resume(&self, seq: u64) -> bool {
        let first = self.events.front().map_or(self.last + 1, |(number, _)| *number);
        seq <= self.last && seq + 1 >= first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_confirmed_cannot_be_told_again() {
        let mut session = Session::new("s".into(), GUILD_MESSAGES, 1);
        for number in 1..=3 {
            session.dispatch("MESSAGE_CREATE", &json!({"id": number}));
        }
        assert_eq!(session.after(1).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 3]);
        assert!(session.can_resume(0));
        session.confirm(2);
        assert!(!session.can_resume(1));
        assert!(session.can_resume(2) && session.can_resume(3));
        assert!(!session.can_resume(4), "it has not come so far");
    }
}
