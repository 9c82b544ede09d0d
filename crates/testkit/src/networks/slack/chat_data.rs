//! People, channels, messages and files of the server.

use super::super::{FakeButton, FakeChatFile};
use crate::or_fail::OrFail as _;
use std::collections::BTreeMap;

/// A message as a channel shows it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeSlackMessage {
    /// Timestamp, which is also its id in the channel.
    pub ts: String,
    /// User id.
    pub author: String,
    /// Text in Slack's markup.
    pub text: String,
    /// Timestamp of the thread's first message.
    pub thread: Option<String>,
    pub edits: usize,
    /// The app's reactions, by Slack's emoji names.
    pub reactions: Vec<String>,
    pub files: Vec<FakeChatFile>,
    pub buttons: Vec<FakeButton>,
    /// The text is in blocks.
    pub(super) has_blocks: bool,
}

#[derive(Debug, Clone, Default)]
pub struct FakeSlackData {
    /// Names by user id.
    pub people: BTreeMap<String, String>,
    channels: BTreeMap<String, Vec<FakeSlackMessage>>,
    last_number: u64,
}

impl FakeSlackData {
    pub(super) fn new_id(&mut self, mark: char) -> String {
        self.last_number += 1;
        format!("{mark}{:08}", self.last_number)
    }

    pub(super) fn add_person(&mut self, name: &str) -> String {
        let id = self.new_id('U');
        self.people.insert(id.clone(), name.to_owned());
        id
    }

    pub(super) fn add_channel(&mut self, mark: char) -> String {
        let id = self.new_id(mark);
        self.channels.insert(id.clone(), Vec::new());
        id
    }

    pub(super) fn has_channel(&self, channel: &str) -> bool {
        self.channels.contains_key(channel)
    }

    /// Adds a message; returns its timestamp.
    pub(super) fn add_message(&mut self, channel: &str, mut message: FakeSlackMessage) -> String {
        self.last_number += 1;
        message.ts = format!("1750000000.{:06}", self.last_number);
        let ts = message.ts.clone();
        self.messages_mut(channel).push(message);
        ts
    }

    pub fn messages(&self, channel: &str) -> &[FakeSlackMessage] {
        self.channels.get(channel).map_or(&[], Vec::as_slice)
    }

    /// The texts that a channel shows now.
    pub fn texts(&self, channel: &str) -> Vec<&str> {
        self.messages(channel).iter().map(|message| message.text.as_str()).collect()
    }

    pub fn message(&self, channel: &str, ts: &str) -> Option<&FakeSlackMessage> {
        self.messages(channel).iter().find(|message| message.ts == ts)
    }

    pub(super) fn messages_mut(&mut self, channel: &str) -> &mut Vec<FakeSlackMessage> {
        self.channels.get_mut(channel).or_fail(format_args!("there is no channel {channel}"))
    }

    pub(super) fn message_mut(&mut self, channel: &str, ts: &str) -> Option<&mut FakeSlackMessage> {
        self.channels.get_mut(channel)?.iter_mut().find(|message| message.ts == ts)
    }

    pub(super) fn file(&self, id: &str) -> Option<&FakeChatFile> {
        self.channels.values().flatten().flat_map(|message| &message.files).find(|file| file.id == id)
    }
}

/// Escapes typed text as Slack stores it: three characters are escaped, mentions stay.
pub(super) fn escape_text(text: &str) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut escaped = String::new();
    for (number, part) in text.split("<@").enumerate() {
        match part.split_once('>').filter(|(id, _)| number > 0 && id.chars().all(|c| c.is_ascii_alphanumeric())) {
            Some((id, rest)) => escaped.push_str(&format!("<@{id}>{}", escape(rest))),
            None if number > 0 => escaped.push_str(&format!("&lt;@{}", escape(part))),
            None => escaped.push_str(&escape(part)),
        }
    }
    escaped
}
