//! What there is on the server: people, channels, messages. It knows neither HTTP nor WebSockets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The guild to which all channels belong that are no direct ones.
const GUILD: u64 = 1_100_000_000_000_000_000;
/// The account under test.
pub(super) const BOT: &str = "1100000000000000001";
/// A time of which nothing depends.
const TIMESTAMP: &str = "2026-01-01T00:00:00.000000+00:00";

/// Somebody with an account.
#[derive(Debug, Clone)]
pub struct User {
    /// The id.
    pub id: String,
    /// The unique name.
    pub name: String,
    /// True for programs.
    pub bot: bool,
}

/// Where messages stand.
#[derive(Debug, Clone, Default)]
pub struct Channel {
    /// The other one of a direct chat; nobody for channels of the guild.
    pub recipient: Option<String>,
    /// The channel to which a thread belongs.
    pub parent: Option<String>,
    /// What it shows now, oldest first.
    pub messages: Vec<Message>,
    /// How often somebody was shown to be typing.
    pub typing: usize,
    /// True when the bot may not write here.
    pub mute: bool,
}

/// A message as the channel shows it now.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// The id.
    pub id: String,
    /// Who wrote it.
    pub author: String,
    /// The text after all edits.
    pub text: String,
    /// How often it was edited.
    pub edits: usize,
    /// The bot's signs on it.
    pub reactions: Vec<String>,
    /// What came with it.
    pub files: Vec<File>,
    /// The message to which it replies.
    pub reply_to: Option<String>,
    /// Whom it pinged: ids, and `everyone`.
    pub pinged: Vec<String>,
    /// As the sender gave it.
    pub nonce: Option<Value>,
}

/// A file that came with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The id.
    pub id: String,
    /// The name.
    pub name: String,
    /// The media type.
    pub media_type: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// Everything there is.
#[derive(Debug, Clone)]
pub struct World {
    users: BTreeMap<String, User>,
    channels: BTreeMap<String, Channel>,
    next: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self { users: BTreeMap::new(), channels: BTreeMap::new(), next: GUILD + 1 };
        let bot = User { id: BOT.to_owned(), name: "quell".to_owned(), bot: true };
        world.users.insert(bot.id.clone(), bot);
        world
    }

    pub(super) fn new_id(&mut self) -> String {
        self.next += 1;
        self.next.to_string()
    }

    pub(super) fn add_user(&mut self, name: &str, bot: bool) -> String {
        let id = self.new_id();
        self.users.insert(id.clone(), User { id: id.clone(), name: name.to_owned(), bot });
        id
    }

    pub(super) fn add_channel(&mut self, channel: Channel) -> String {
        let id = self.new_id();
        self.channels.insert(id.clone(), channel);
        id
    }

    /// A channel, if there is one.
    #[must_use]
    pub fn channel(&self, id: &str) -> Option<&Channel> {
        self.channels.get(id)
    }

    pub(super) fn channel_mut(&mut self, id: &str) -> Option<&mut Channel> {
        self.channels.get_mut(id)
    }

    /// A message, if it is there.
    #[must_use]
    pub fn message(&self, channel: &str, id: &str) -> Option<&Message> {
        // The newest are asked for most.
        self.channels.get(channel)?.messages.iter().rev().find(|message| message.id == id)
    }

    pub(super) fn message_mut(&mut self, channel: &str, id: &str) -> Option<&mut Message> {
        self.channels.get_mut(channel)?.messages.iter_mut().rev().find(|message| message.id == id)
    }

    /// Channel and id of the first message that fits.
    pub(super) fn find(&self, fits: impl Fn(&Message) -> bool) -> Option<(String, String)> {
        self.channels.iter().find_map(|(id, channel)| {
            let message = channel.messages.iter().find(|message| fits(message))?;
            Some((id.clone(), message.id.clone()))
        })
    }

    pub(super) fn file(&self, id: &str) -> Option<&File> {
        let messages = self.channels.values().flat_map(|channel| &channel.messages);
        messages.flat_map(|message| &message.files).find(|file| file.id == id)
    }

    /// True for a direct chat.
    pub(super) fn is_direct(&self, channel: &str) -> bool {
        self.channels.get(channel).is_some_and(|channel| channel.recipient.is_some())
    }

    /// Who is named in a text as `<@id>`.
    pub(super) fn named_in(&self, text: &str) -> Vec<String> {
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
            "id": user.id, "username": user.name, "discriminator": "0", "global_name": null, "avatar": null,
            "bot": user.bot,
        })
    }

    /// Discord: message object. `files` is where the files are served from.
    pub(super) fn message_json(&self, channel: &str, id: &str, files: &str) -> Value {
        let Some(message) = self.message(channel, id) else { return Value::Null };
        let replied = message.reply_to.as_deref().and_then(|to| self.message(channel, to));
        // A reply names whom it replies to, as the client does unless told otherwise.
        let mut named = self.named_in(&message.text);
        if let Some(replied) = replied.filter(|replied| !named.contains(&replied.author)) {
            named.push(replied.author.clone());
        }
        let mentions: Vec<Value> = named.iter().map(|id| self.user_json(id)).collect();
        let attachments: Vec<Value> =
            message.files.iter().map(|file| attachment_json(file, &format!("{files}/{channel}"))).collect();
        let edited = if message.edits > 0 { json!(TIMESTAMP) } else { Value::Null };
        let mut object = json!({
            "id": message.id, "channel_id": channel, "author": self.user_json(&message.author),
            "content": message.text, "timestamp": TIMESTAMP, "edited_timestamp": edited, "tts": false,
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

    /// What the gateway tells of a message: with the guild and the member.
    pub(super) fn event_json(&self, channel: &str, id: &str, files: &str) -> Value {
        let mut event = self.message_json(channel, id, files);
        if !self.is_direct(channel) {
            event["guild_id"] = json!(GUILD.to_string());
            event["member"] = json!({"nick": null, "roles": [], "joined_at": TIMESTAMP, "deaf": false, "mute": false});
        }
        event
    }
}

fn attachment_json(file: &File, base: &str) -> Value {
    let url = format!("{base}/{}/{}", file.id, file.name);
    json!({
        "id": file.id, "filename": file.name, "content_type": file.media_type, "size": file.bytes.len(),
        "url": url, "proxy_url": url,
    })
}
