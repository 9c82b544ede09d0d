//! Users, channels and messages of the server, independent of HTTP and WebSockets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::{FakeButton, FakeChatFile};

/// The guild of all channels that are not direct chats.
const GUILD: u64 = 1_100_000_000_000_000_000;
pub(super) const BOT: &str = "1100000000000000001";
/// A time that no test depends on.
const FIXED_TIMESTAMP: &str = "2026-01-01T00:00:00.000000+00:00";

#[derive(Debug, Clone)]
struct FakeDiscordUser {
    name: String,
    bot: bool,
}

#[derive(Debug, Clone, Default)]
pub struct FakeDiscordChannel {
    /// The other user of a direct chat; none for channels of the guild.
    pub recipient: Option<String>,
    pub parent: Option<String>,
    /// Current messages, oldest first.
    pub messages: Vec<FakeDiscordMessage>,
    pub typing: usize,
}

/// A message as the channel shows it now.
#[derive(Debug, Clone, Default)]
pub struct FakeDiscordMessage {
    pub id: String,
    /// User id.
    pub author: String,
    /// The text after all edits.
    pub text: String,
    pub edits: usize,
    pub reactions: Vec<String>,
    pub files: Vec<FakeChatFile>,
    /// The message that it replies to.
    pub reply_to: Option<String>,
    /// Ids of pinged users, and `everyone`.
    pub pinged: Vec<String>,
    /// As the sender gave it.
    pub nonce: Option<Value>,
    pub buttons: Vec<FakeButton>,
}

#[derive(Debug, Clone, Default)]
pub struct FakeDiscordData {
    users: BTreeMap<String, FakeDiscordUser>,
    channels: BTreeMap<String, FakeDiscordChannel>,
    last_id: u64,
}

impl FakeDiscordData {
    pub(super) fn new() -> Self {
        let mut world = Self { users: BTreeMap::new(), channels: BTreeMap::new(), last_id: GUILD + 1 };
        world.users.insert(BOT.to_owned(), FakeDiscordUser { name: "quell".to_owned(), bot: true });
        world
    }

    pub(super) fn new_id(&mut self) -> String {
        self.last_id += 1;
        self.last_id.to_string()
    }

    pub(super) fn add_user(&mut self, name: &str, bot: bool) -> String {
        let id = self.new_id();
        self.users.insert(id.clone(), FakeDiscordUser { name: name.to_owned(), bot });
        id
    }

    pub(super) fn add_channel(&mut self, channel: FakeDiscordChannel) -> String {
        let id = self.new_id();
        self.channels.insert(id.clone(), channel);
        id
    }

    pub fn channel(&self, id: &str) -> Option<&FakeDiscordChannel> {
        self.channels.get(id)
    }

    pub(super) fn channel_mut(&mut self, id: &str) -> Option<&mut FakeDiscordChannel> {
        self.channels.get_mut(id)
    }

    pub fn message(&self, channel: &str, id: &str) -> Option<&FakeDiscordMessage> {
        // Recent messages are requested most.
        self.channels.get(channel)?.messages.iter().rev().find(|message| message.id == id)
    }

    pub(super) fn message_mut(&mut self, channel: &str, id: &str) -> Option<&mut FakeDiscordMessage> {
        self.channels.get_mut(channel)?.messages.iter_mut().rev().find(|message| message.id == id)
    }

    /// Channel and id of the bot's message with this nonce.
    pub(super) fn find_by_nonce(&self, nonce: &Value) -> Option<(String, String)> {
        self.channels.iter().find_map(|(id, channel)| {
            let is_wanted =
                |message: &&FakeDiscordMessage| message.author == BOT && message.nonce.as_ref() == Some(nonce);
            Some((id.clone(), channel.messages.iter().find(is_wanted)?.id.clone()))
        })
    }

    pub(super) fn file(&self, id: &str) -> Option<&FakeChatFile> {
        let messages = self.channels.values().flat_map(|channel| &channel.messages);
        messages.flat_map(|message| &message.files).find(|file| file.id == id)
    }

    pub(super) fn is_direct(&self, channel: &str) -> bool {
        self.channels.get(channel).is_some_and(|channel| channel.recipient.is_some())
    }

    /// Users mentioned in a text as `<@id>`.
    pub(super) fn mentioned_users(&self, text: &str) -> Vec<String> {
        let mut named: Vec<String> = Vec::new();
        for rest in text.split("<@").skip(1) {
            let Some((id, _)) = rest.split_once('>') else { continue };
            let id = id.trim_start_matches('!');
            if self.users.contains_key(id) && !named.iter().any(|known| known == id) {
                named.push(id.to_owned());
            }
        }
        named
    }

    pub(super) fn user_json(&self, id: &str) -> Value {
        let Some(user) = self.users.get(id) else { return Value::Null };
        json!({
            "id": id, "username": user.name, "discriminator": "0", "global_name": null, "avatar": null,
            "bot": user.bot,
        })
    }

    /// Discord: message object. `files` is the base URL of attachments.
    pub(super) fn message_json(&self, channel: &str, id: &str, files: &str) -> Value {
        let Some(message) = self.message(channel, id) else { return Value::Null };
        let replied = message.reply_to.as_deref().and_then(|to| self.message(channel, to));
        // A reply mentions the author that it replies to, as the client does by default.
        let mut named = self.mentioned_users(&message.text);
        if let Some(replied) = replied.filter(|replied| !named.contains(&replied.author)) {
            named.push(replied.author.clone());
        }
        let mentions: Vec<Value> = named.iter().map(|id| self.user_json(id)).collect();
        let attachments: Vec<Value> =
            message.files.iter().map(|file| attachment_json(file, &format!("{files}/{channel}"))).collect();
        let edited = if message.edits > 0 { json!(FIXED_TIMESTAMP) } else { Value::Null };
        let mut object = json!({
            "id": message.id, "channel_id": channel, "author": self.user_json(&message.author),
            "content": message.text, "timestamp": FIXED_TIMESTAMP, "edited_timestamp": edited, "tts": false,
            "mention_everyone": false, "mentions": mentions, "mention_roles": [], "attachments": attachments,
            "embeds": [], "pinned": false, "type": if replied.is_some() { 19 } else { 0 },
        });
        if let Some(nonce) = &message.nonce {
            object["nonce"] = nonce.clone();
        }
        if let Some(replied) = replied {
            object["message_reference"] = json!({"type": 0, "channel_id": channel, "message_id": replied.id});
            object["referenced_message"] = json!({
                "id": replied.id, "channel_id": channel, "author": self.user_json(&replied.author),
                "content": replied.text, "type": 0,
            });
        }
        object
    }

    /// Gateway event of a message: with the guild and the member.
    pub(super) fn event_json(&self, channel: &str, id: &str, files: &str) -> Value {
        let mut event = self.message_json(channel, id, files);
        if !self.is_direct(channel) {
            event["guild_id"] = json!(GUILD.to_string());
            event["member"] =
                json!({"nick": null, "roles": [], "joined_at": FIXED_TIMESTAMP, "deaf": false, "mute": false});
        }
        event
    }
}

fn attachment_json(file: &FakeChatFile, base: &str) -> Value {
    let url = format!("{base}/{}/{}", file.id, file.name);
    json!({
        "id": file.id, "filename": file.name, "content_type": file.media_type, "size": file.bytes.len(),
        "url": url, "proxy_url": url,
    })
}
