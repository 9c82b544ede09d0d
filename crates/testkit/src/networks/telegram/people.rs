//! What people do: they write, send files, change and answer messages, block the bot, turn groups into supergroups.

use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};

use super::state::{Chat, ChatFile, ChatKind, Shown, State};
use super::{BOT_ID, FakeTelegram, send};

/// Somebody who writes. A private chat has the id of its person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Person {
    /// The id by which the bot knows them.
    pub id: i64,
    /// First name, and user name without the `@`.
    pub name: &'static str,
}

impl FakeTelegram {
    /// A person writes in a chat. Answers the number of the message.
    pub fn say(&self, chat: i64, person: Person, text: &str) -> i64 {
        self.tell(chat, person, worded(text))
    }

    /// A person writes in a topic of a forum.
    pub fn say_in(&self, chat: i64, topic: i64, person: Person, text: &str) -> i64 {
        let mut content = worded(text);
        content["message_thread_id"] = json!(topic);
        content["is_topic_message"] = json!(true);
        // A message in a topic answers the message that opened it (Bot API: Message.reply_to_message).
        content["reply_to_message"] = json!({"message_id": topic, "from": {"id": BOT_ID, "is_bot": true}, "forum_topic_created": {"name": "topic"}});
        self.tell(chat, person, content)
    }

    /// A person answers a message.
    ///
    /// # Panics
    /// When the chat does not show that message.
    pub fn reply(&self, chat: i64, person: Person, to: i64, text: &str) -> i64 {
        let found = self.messages(chat).into_iter().find(|message| message.id == to);
        let Some(found) = found else { panic!("chat {chat} shows no message {to}") };
        let mut content = worded(text);
        content["reply_to_message"] =
            json!({"message_id": to, "from": {"id": found.from, "is_bot": found.from == BOT_ID}, "text": found.text});
        self.tell(chat, person, content)
    }

    /// A person changes a message.
    ///
    /// # Panics
    /// When the chat does not show that message.
    pub fn edit(&self, chat: i64, person: Person, message: i64, text: &str) {
        self.state.send_modify(|state| {
            let found = state.chat(chat).messages.iter_mut().find(|shown| shown.id == message);
            let Some(shown) = found else { panic!("chat {chat} shows no message {message}") };
            text.clone_into(&mut shown.text);
            shown.edits += 1;
            let mut content = written(state, (chat, message), person, worded(text));
            content["edit_date"] = json!(2);
            state.update("edited_message", content);
        });
    }

    /// A person sends a file: a `photo`, `document`, `voice`, `audio` or `video`.
    pub fn send_file(&self, chat: i64, person: Person, file: &ChatFile, caption: &str) -> i64 {
        let mut content = json!({});
        self.state.send_modify(|state| {
            content[file.kind.as_str()] = stored(state, file);
        });
        if !caption.is_empty() {
            content["caption"] = json!(caption);
            content["caption_entities"] = entities(caption);
        }
        self.tell(chat, person, content)
    }

    /// A person sends anything: `content` is what the message holds besides its number, chat, date and sender.
    ///
    /// # Panics
    /// When the person writes in somebody else's private chat.
    pub fn tell(&self, chat: i64, person: Person, content: Value) -> i64 {
        assert!(chat < 0 || chat == person.id, "{person:?} writes in the private chat of {chat}");
        let mut id = 0;
        self.state.send_modify(|state| {
            id = state.next_message(chat);
            let text = content["text"].as_str().or(content["caption"].as_str()).unwrap_or_default().to_owned();
            let thread = content["message_thread_id"].as_i64();
            let mut shown = Shown::new(id, person.id, text);
            shown.thread = thread;
            state.chat(chat).messages.push(shown);
            let content = written(state, (chat, id), person, content);
            state.update("message", content);
        });
        id
    }

    /// A group becomes a forum, and one topic is opened in it. Answers the id of the topic.
    pub fn open_topic(&self, chat: i64) -> i64 {
        let mut id = 0;
        self.state.send_modify(|state| {
            id = state.next_message(chat);
            let chat = state.chat(chat);
            chat.forum = true;
            chat.topics.push(id);
        });
        id
    }

    /// The person of a private chat blocks the bot, or the bot is removed from a group.
    pub fn close_to_bot(&self, chat: i64) {
        self.state.send_modify(|state| state.chat(chat).closed_to_bot = true);
    }

    /// A group becomes a supergroup with another id.
    pub fn migrate(&self, group: i64, to: i64) {
        self.state.send_modify(|state| {
            state.chat(group).migrated_to = Some(to);
            state.chat(to);
            let chat = send::chat(group, state.chat(group));
            let id = state.next_message(group);
            let from = json!({"id": 1, "is_bot": false, "first_name": "owner"});
            let content = json!({"message_id": id, "date": 1, "chat": chat, "from": from, "migrate_to_chat_id": to});
            state.update("message", content);
        });
    }
}

impl ChatFile {
    /// A file with something in it.
    #[must_use]
    pub fn new(kind: &str, name: &str, media_type: &str, bytes: impl Into<Bytes>) -> Self {
        Self { kind: kind.into(), name: name.into(), media_type: media_type.into(), bytes: bytes.into() }
    }
}

impl Shown {
    pub(super) fn new(id: i64, from: i64, text: String) -> Self {
        let (entities, reactions) = (Vec::new(), Vec::new());
        Self { id, from, text, entities, thread: None, edits: 0, reactions, file: None, at: Instant::now() }
    }
}

fn worded(text: &str) -> Value {
    json!({"text": text, "entities": entities(text)})
}

/// A message of a person, as the API tells it.
fn written(state: &mut State, (chat, message): (i64, i64), person: Person, mut content: Value) -> Value {
    let place: &mut Chat = state.chat(chat);
    let mut shown = send::chat(chat, place);
    if place.kind == ChatKind::Private {
        shown["first_name"] = json!(person.name);
    }
    content["message_id"] = json!(message);
    content["date"] = json!(1);
    content["chat"] = shown;
    content["from"] = json!({"id": person.id, "is_bot": false, "first_name": person.name, "username": person.name});
    content
}

/// Keeps a file and answers how a message names it.
fn stored(state: &mut State, file: &ChatFile) -> Value {
    let number = state.files.len();
    let mut keep = |id: String, bytes: Bytes| {
        let path = format!("{}s/file_{number}_{}", file.kind, file.name.replace(' ', "_"));
        let size = bytes.len();
        state.files.insert(id.clone(), (format!("{path}{id}"), bytes));
        json!({"file_id": id, "file_unique_id": format!("u{id}"), "file_size": size})
    };
    if file.kind == "photo" {
        // Smaller ones come first.
        let mut small = keep(format!("small-{number}"), Bytes::from_static(b"small"));
        let mut large = keep(format!("large-{number}"), file.bytes.clone());
        (small["width"], small["height"]) = (json!(90), json!(60));
        (large["width"], large["height"]) = (json!(1280), json!(853));
        return json!([small, large]);
    }
    let mut told = keep(format!("file-{number}"), file.bytes.clone());
    told["mime_type"] = json!(file.media_type);
    if file.kind != "voice" {
        told["file_name"] = json!(file.name);
    }
    told
}

/// Commands and mentions in a text, as Telegram finds them, in UTF-16 units.
fn entities(text: &str) -> Value {
    let (mut found, mut offset) = (Vec::new(), 0);
    for word in text.split_inclusive(char::is_whitespace) {
        let name = |part: &str| part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').count();
        let marked = match word.chars().next() {
            Some('/') if name(&word[1..]) > 0 => {
                let command = 1 + name(&word[1..]);
                let bot = word[command..].strip_prefix('@').map_or(0, |bot| 1 + name(bot));
                Some(("bot_command", command + bot))
            }
            Some('@') if name(&word[1..]) >= 4 => Some(("mention", 1 + name(&word[1..]))),
            _ => None,
        };
        if let Some((kind, length)) = marked {
            found.push(json!({"type": kind, "offset": offset, "length": length}));
        }
        offset += word.encode_utf16().count();
    }
    json!(found)
}
