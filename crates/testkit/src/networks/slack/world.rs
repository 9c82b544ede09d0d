//! People, channels, messages and files.

use std::collections::BTreeMap;

/// A message as a channel shows it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// By which Slack numbers it, and names it.
    pub ts: String,
    /// Who wrote it.
    pub author: String,
    /// What it says, in Slack's way of writing.
    pub text: String,
    /// The message under which it stands.
    pub thread: Option<String>,
    /// How often it was changed.
    pub edits: usize,
    /// What the app has put on it, by the names of Slack.
    pub reactions: Vec<String>,
    /// What came with it.
    pub files: Vec<File>,
}

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct File {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// Everything that people see.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Names by ids.
    pub people: BTreeMap<String, String>,
    channels: BTreeMap<String, Vec<Message>>,
    numbers: u64,
}

impl World {
    pub(super) fn new_id(&mut self, mark: char) -> String {
        self.numbers += 1;
        format!("{mark}{:08}", self.numbers)
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

    pub(super) fn has(&self, channel: &str) -> bool {
        self.channels.contains_key(channel)
    }

    /// Shows a message, and answers its timestamp.
    pub(super) fn show(&mut self, channel: &str, mut message: Message) -> String {
        self.numbers += 1;
        message.ts = format!("1750000000.{:06}", self.numbers);
        let ts = message.ts.clone();
        self.messages_mut(channel).push(message);
        ts
    }

    /// What a channel shows.
    #[must_use]
    pub fn messages(&self, channel: &str) -> &[Message] {
        self.channels.get(channel).map_or(&[], Vec::as_slice)
    }

    /// The texts that a channel shows.
    #[must_use]
    pub fn texts(&self, channel: &str) -> Vec<&str> {
        self.messages(channel).iter().map(|message| message.text.as_str()).collect()
    }

    /// One message.
    #[must_use]
    pub fn message(&self, channel: &str, ts: &str) -> Option<&Message> {
        self.messages(channel).iter().find(|message| message.ts == ts)
    }

    pub(super) fn messages_mut(&mut self, channel: &str) -> &mut Vec<Message> {
        match self.channels.get_mut(channel) {
            Some(messages) => messages,
            None => panic!("there is no channel {channel}"),
        }
    }

    pub(super) fn message_mut(&mut self, channel: &str, ts: &str) -> Option<&mut Message> {
        self.channels.get_mut(channel)?.iter_mut().find(|message| message.ts == ts)
    }

    pub(super) fn file(&self, id: &str) -> Option<&File> {
        self.channels.values().flatten().flat_map(|message| &message.files).find(|file| file.id == id)
    }
}

/// What a person types, as Slack writes it down: three characters are escaped, mentions stay.
pub(super) fn escaped(text: &str) -> String {
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
