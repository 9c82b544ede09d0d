//! The methods that show a new message, and what all methods have in common about chats and texts.

use serde_json::{Value, json};

use super::html::{self, Entity};
use super::methods::{Refusal, Request, bad, known};
use super::state::{Chat, ChatKind, Shown, State};
use super::{BOT_ID, BOT_NAME};

/// Bot API: sendMessage, "1-4096 characters after entities parsing".
pub(super) const LONGEST_TEXT: usize = 4096;
/// Bot API: sendPhoto and others, "0-1024 characters after entities parsing".
const LONGEST_CAPTION: usize = 1024;
/// Bot API: sendPhoto, "at most 10 MB in size".
const LARGEST_PHOTO: usize = 10 * 1024 * 1024;
/// Bot API: sendDocument, "up to 50 MB".
const LARGEST_FILE: usize = 50 * 1024 * 1024;

pub(super) fn message(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    let names = ["chat_id", "message_thread_id", "text", "parse_mode", "link_preview_options", "reply_parameters"];
    known(body, &names)?;
    let chat = reachable(state, body)?;
    let (text, entities) = marked(body, "text", LONGEST_TEXT)?;
    if text.is_empty() {
        return Err(bad("message text is empty"));
    }
    let mut shown = Shown::new(0, BOT_ID, text);
    shown.entities = entities;
    show(state, chat, body, shown)
}

pub(super) fn file(state: &mut State, request: &Request) -> Result<Value, Refusal> {
    let body = &request.body;
    known(body, &["chat_id", "message_thread_id", "caption", "parse_mode", "reply_parameters"])?;
    let chat = reachable(state, body)?;
    let kind = request.method.trim_start_matches("send").to_lowercase();
    let given = request.file.clone().filter(|file| file.kind == kind);
    let file = given.ok_or_else(|| bad(format!("there is no {kind} in the request")))?;
    if file.bytes.is_empty() {
        return Err(bad("file must be non-empty"));
    }
    let largest = if kind == "photo" { LARGEST_PHOTO } else { LARGEST_FILE };
    if file.bytes.len() > largest {
        return Err(Refusal { code: 413, description: "Request Entity Too Large".into(), parameters: None });
    }
    let (caption, entities) = marked(body, "caption", LONGEST_CAPTION)?;
    let mut shown = Shown::new(0, BOT_ID, caption);
    (shown.entities, shown.file) = (entities, Some(file));
    show(state, chat, body, shown)
}

fn show(state: &mut State, chat_id: i64, body: &Value, mut shown: Shown) -> Result<Value, Refusal> {
    shown.thread = topic(state, chat_id, body)?;
    if let Some(reply) = body.get("reply_parameters") {
        let to = reply["message_id"].as_i64();
        let there = state.messages(chat_id).iter().any(|message| Some(message.id) == to);
        if !there && reply["allow_sending_without_reply"] != true {
            return Err(bad("message to be replied not found"));
        }
    }
    shown.id = state.next_message(chat_id);
    let chat = state.chat(chat_id);
    chat.messages.push(shown.clone());
    Ok(told(chat_id, chat, &shown))
}

/// The chat that a call names, if the bot can write there.
pub(super) fn reachable(state: &State, body: &Value) -> Result<i64, Refusal> {
    let given = &body["chat_id"];
    let id = given.as_i64().or_else(|| given.as_str()?.parse().ok()).ok_or_else(|| bad("chat_id is empty"))?;
    let chat = state.chats.get(&id).ok_or_else(|| bad("chat not found"))?;
    if let Some(to) = chat.migrated_to {
        let description = "Bad Request: group chat was upgraded to a supergroup chat".to_owned();
        return Err(Refusal { code: 400, description, parameters: Some(json!({ "migrate_to_chat_id": to })) });
    }
    if chat.closed_to_bot {
        let description = match chat.kind {
            ChatKind::Private => "Forbidden: bot was blocked by the user",
            ChatKind::Group => "Forbidden: bot was kicked from the group chat",
            ChatKind::Supergroup => "Forbidden: bot was kicked from the supergroup chat",
        };
        return Err(Refusal { code: 403, description: description.into(), parameters: None });
    }
    Ok(id)
}

/// The topic that a call names.
pub(super) fn topic(state: &mut State, chat: i64, body: &Value) -> Result<Option<i64>, Refusal> {
    match body.get("message_thread_id") {
        None => Ok(None),
        Some(id) => {
            let id = id.as_i64().filter(|id| state.chat(chat).topics.contains(id));
            Ok(Some(id.ok_or_else(|| bad("message thread not found"))?))
        }
    }
}

/// A text of a call, after its markup was read.
pub(super) fn marked(body: &Value, name: &str, longest: usize) -> Result<(String, Vec<Entity>), Refusal> {
    let source = match &body[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (text, entities) = match body.get("parse_mode").map(Value::as_str) {
        None => (source, Vec::new()),
        Some(Some("HTML")) => html::parse(&source).map_err(|why| bad(format!("can't parse entities: {why}")))?,
        Some(_) => return Err(bad("unsupported parse_mode")),
    };
    if text.encode_utf16().count() > longest {
        let what = if name == "caption" { "message caption is too long" } else { "message is too long" };
        return Err(bad(what));
    }
    // White space around a text is not shown.
    Ok((text.trim_end().to_owned(), entities))
}

/// A chat as the API tells it.
pub(super) fn chat(id: i64, chat: &Chat) -> Value {
    let mut told = json!({"id": id, "type": chat.kind.name()});
    if chat.kind != ChatKind::Private {
        told["title"] = json!(format!("group {id}"));
    }
    if chat.forum {
        told["is_forum"] = json!(true);
    }
    told
}

/// A message of the bot as the API tells it.
pub(super) fn told(id: i64, place: &Chat, shown: &Shown) -> Value {
    let from = json!({"id": BOT_ID, "is_bot": true, "first_name": "Quell", "username": BOT_NAME});
    let mut told =
        json!({"message_id": shown.id, "date": 1, "chat": chat(id, place), "from": from, "text": shown.text});
    if let Some(thread) = shown.thread {
        told["message_thread_id"] = json!(thread);
        told["is_topic_message"] = json!(true);
    }
    told
}
