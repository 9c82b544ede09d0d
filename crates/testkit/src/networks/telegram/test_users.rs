//! Actions of test users: write, send files, edit and reply to messages, block the bot, turn groups into supergroups.

use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};

use super::methods::send;
use super::state::{
    FakeTelegramChat, FakeTelegramChatKind, FakeTelegramFile, FakeTelegramMessage, FakeTelegramPress, FakeTelegramState,
};
use super::{BOT_ID, FakeTelegram};
use crate::or_fail::OrFail as _;

/// A user. A private chat has the id of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TelegramTestUser {
    pub id: i64,
    /// First name, and user name without the `@`.
    pub name: &'static str,
}

impl FakeTelegram {
    /// A user writes in a chat. Returns the message id.
    pub fn post_message(&self, chat: i64, person: TelegramTestUser, text: &str) -> i64 {
        self.post_content(chat, person, text_content(text))
    }

    /// A user writes in a topic of a forum.
    pub fn post_in_topic(&self, chat: i64, topic: i64, person: TelegramTestUser, text: &str) -> i64 {
        let mut content = text_content(text);
        content["message_thread_id"] = json!(topic);
        content["is_topic_message"] = json!(true);
        // A message in a topic replies to the message that opened it (Bot API: Message.reply_to_message).
        content["reply_to_message"] = json!({"message_id": topic, "from": {"id": BOT_ID, "is_bot": true}, "forum_topic_created": {"name": "topic"}});
        self.post_content(chat, person, content)
    }

    /// A user replies to a message.
    pub fn post_reply(&self, chat: i64, person: TelegramTestUser, to: i64, text: &str) -> i64 {
        let found = self.messages(chat).into_iter().find(|message| message.id == to);
        let found = found.or_fail(format_args!("chat {chat} shows no message {to}"));
        let mut content = text_content(text);
        content["reply_to_message"] =
            json!({"message_id": to, "from": {"id": found.from, "is_bot": found.from == BOT_ID}, "text": found.text});
        self.post_content(chat, person, content)
    }

    pub fn edit_message(&self, chat: i64, person: TelegramTestUser, message: i64, text: &str) {
        self.update(|state| {
            let found = state.chat_mut(chat).messages.iter_mut().find(|shown| shown.id == message);
            let shown = found.or_fail(format_args!("chat {chat} shows no message {message}"));
            text.clone_into(&mut shown.text);
            shown.edits += 1;
            let mut content = message_json(state, (chat, message), person, text_content(text));
            content["edit_date"] = json!(2);
            state.queue_update("edited_message", content);
        });
    }

    /// A user sends a file: a `photo`, `document`, `voice`, `audio` or `video`.
    pub fn post_file(&self, chat: i64, person: TelegramTestUser, file: &FakeTelegramFile, caption: &str) -> i64 {
        let mut content = json!({});
        content[file.kind.as_str()] = self.update(|state| store_file(state, file));
        if !caption.is_empty() {
            content["caption"] = json!(caption);
            content["caption_entities"] = find_entities(caption);
        }
        self.post_content(chat, person, content)
    }

    /// A user sends any message: `content` holds all fields except id, chat, date and sender.
    ///
    /// # Panics
    /// When the user writes in another user's private chat.
    pub fn post_content(&self, chat: i64, person: TelegramTestUser, content: Value) -> i64 {
        assert!(chat < 0 || chat == person.id, "{person:?} writes in the private chat of {chat}");
        self.update(|state| {
            let id = state.next_message_id(chat);
            let text = content["text"].as_str().or(content["caption"].as_str()).unwrap_or_default().to_owned();
            let mut shown = FakeTelegramMessage::new(id, person.id, text);
            shown.thread = content["message_thread_id"].as_i64();
            state.chat_mut(chat).messages.push(shown);
            let content = message_json(state, (chat, id), person, content);
            state.queue_update("message", content);
            id
        })
    }

    /// A user presses a button with this data below a message. A client of the user's own making sends any data, also
    /// below a message without such a button.
    pub fn press_button(&self, chat: i64, person: TelegramTestUser, message: i64, data: &str) {
        self.update(|state| {
            let query_id = format!("query-{}", state.presses.len());
            let content = json!({
                "id": query_id, "from": user_json(person), "chat_instance": "1", "data": data,
                "message": {"message_id": message, "date": 1, "chat": send::chat_json(chat, state.chat_mut(chat))},
            });
            state.presses.push(FakeTelegramPress { from: person.id, query_id, answers: Vec::new() });
            state.queue_update("callback_query", content);
        });
    }

    /// Sends any content as the press of a button.
    pub fn post_callback_query(&self, content: Value) {
        self.update(|state| state.queue_update("callback_query", content));
    }

    /// Turns a group into a forum and opens a topic. Returns the topic id.
    pub fn open_topic(&self, chat: i64) -> i64 {
        self.update(|state| {
            let id = state.next_message_id(chat);
            let chat = state.chat_mut(chat);
            chat.forum = true;
            chat.topics.push(id);
            id
        })
    }

    /// The user of a private chat blocks the bot, or the bot is removed from a group.
    pub fn block_bot(&self, chat: i64) {
        self.update(|state| state.chat_mut(chat).bot_blocked = true);
    }

    /// Turns a group into a supergroup with another id.
    pub fn migrate_group(&self, group: i64, to: i64) {
        self.update(|state| {
            state.chat_mut(group).migrated_to = Some(to);
            state.chat_mut(to);
            let chat = send::chat_json(group, state.chat_mut(group));
            let id = state.next_message_id(group);
            let from = json!({"id": 1, "is_bot": false, "first_name": "owner"});
            let content = json!({"message_id": id, "date": 1, "chat": chat, "from": from, "migrate_to_chat_id": to});
            state.queue_update("message", content);
        });
    }
}

impl FakeTelegramFile {
    pub fn new(kind: &str, name: &str, media_type: &str, bytes: impl Into<Bytes>) -> Self {
        Self { kind: kind.into(), name: name.into(), media_type: media_type.into(), bytes: bytes.into() }
    }
}

impl FakeTelegramMessage {
    pub(super) fn new(id: i64, from: i64, text: String) -> Self {
        let (entities, reactions, buttons) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, from, text, entities, thread: None, edits: 0, reactions, file: None, buttons, at: Instant::now() }
    }
}

fn text_content(text: &str) -> Value {
    json!({"text": text, "entities": find_entities(text)})
}

/// A message of a user as the API returns it.
fn message_json(
    state: &mut FakeTelegramState,
    (chat, message): (i64, i64),
    person: TelegramTestUser,
    mut content: Value,
) -> Value {
    let place: &mut FakeTelegramChat = state.chat_mut(chat);
    let mut shown = send::chat_json(chat, place);
    if place.kind == FakeTelegramChatKind::Private {
        shown["first_name"] = json!(person.name);
    }
    content["message_id"] = json!(message);
    content["date"] = json!(1);
    content["chat"] = shown;
    content["from"] = user_json(person);
    content
}

fn user_json(person: TelegramTestUser) -> Value {
    json!({"id": person.id, "is_bot": false, "first_name": person.name, "username": person.name})
}

/// Stores a file; returns the object that names it in a message.
fn store_file(state: &mut FakeTelegramState, file: &FakeTelegramFile) -> Value {
    let number = state.files.len();
    let mut keep = |id: String, bytes: Bytes| {
        let path = format!("{}s/file_{number}_{}", file.kind, file.name.replace(' ', "_"));
        let size = bytes.len();
        state.files.insert(id.clone(), (format!("{path}{id}"), bytes));
        json!({"file_id": id, "file_unique_id": format!("u{id}"), "file_size": size})
    };
    if file.kind == "photo" {
        // Smaller sizes come first.
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
fn find_entities(text: &str) -> Value {
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
