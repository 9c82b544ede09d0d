//! API methods that send a new message, and checks of chats and texts that all methods share.

use serde_json::{Value, json};

use super::super::html::{self, ParsedEntity};
use super::super::state::{
    FakeTelegramChat, FakeTelegramChatKind, FakeTelegramMessage, FakeTelegramState, TelegramCall,
};
use super::super::{BOT_ID, BOT_NAME};
use super::{bad_request, buttons, check_known_parameters, refusal, refusal_with};
use crate::fake_server::FakeHttpReply;

/// Bot API: sendMessage, "1-4096 characters after entities parsing".
pub(in super::super) const MAX_TEXT_UNITS: usize = 4096;
/// Bot API: sendPhoto and others, "0-1024 characters after entities parsing".
const MAX_CAPTION_UNITS: usize = 1024;
/// Bot API: sendPhoto, "at most 10 MB in size".
const MAX_PHOTO_BYTES: usize = 10 * 1024 * 1024;
/// Bot API: sendDocument, "up to 50 MB".
const MAX_FILE_BYTES: usize = 50 * 1024 * 1024;

pub(in super::super) fn send_message(state: &mut FakeTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    let names = [
        "chat_id",
        "message_thread_id",
        "text",
        "parse_mode",
        "link_preview_options",
        "reply_parameters",
        "reply_markup",
    ];
    check_known_parameters(body, &names)?;
    let chat = check_reachable_chat(state, body)?;
    let (text, entities) = parse_marked_text(body, "text", MAX_TEXT_UNITS)?;
    if text.is_empty() {
        return Err(bad_request("message text is empty"));
    }
    let mut shown = FakeTelegramMessage::new(0, BOT_ID, text);
    shown.entities = entities;
    shown.buttons = buttons::parse_keyboard(body)?;
    add_message(state, chat, body, shown)
}

pub(in super::super) fn send_file(
    state: &mut FakeTelegramState,
    request: &TelegramCall,
) -> Result<Value, FakeHttpReply> {
    let body = &request.body;
    check_known_parameters(body, &["chat_id", "message_thread_id", "caption", "parse_mode", "reply_parameters"])?;
    let chat = check_reachable_chat(state, body)?;
    let kind = request.method.trim_start_matches("send").to_lowercase();
    let given = request.file.clone().filter(|file| file.kind == kind);
    let file = given.ok_or_else(|| bad_request(format!("there is no {kind} in the request")))?;
    if file.bytes.is_empty() {
        return Err(bad_request("file must be non-empty"));
    }
    let largest = if kind == "photo" { MAX_PHOTO_BYTES } else { MAX_FILE_BYTES };
    if file.bytes.len() > largest {
        return Err(refusal(413, "Request Entity Too Large"));
    }
    let (caption, entities) = parse_marked_text(body, "caption", MAX_CAPTION_UNITS)?;
    let mut shown = FakeTelegramMessage::new(0, BOT_ID, caption);
    (shown.entities, shown.file) = (entities, Some(file));
    add_message(state, chat, body, shown)
}

fn add_message(
    state: &mut FakeTelegramState,
    chat_id: i64,
    body: &Value,
    mut shown: FakeTelegramMessage,
) -> Result<Value, FakeHttpReply> {
    shown.thread = check_topic(state, chat_id, body)?;
    if let Some(reply) = body.get("reply_parameters") {
        let to = reply["message_id"].as_i64();
        let there = state.messages(chat_id).iter().any(|message| Some(message.id) == to);
        if !there && reply["allow_sending_without_reply"] != true {
            return Err(bad_request("message to be replied not found"));
        }
    }
    shown.id = state.next_message_id(chat_id);
    let chat = state.chat_mut(chat_id);
    chat.messages.push(shown.clone());
    Ok(message_json(chat_id, chat, &shown))
}

/// The chat of a call, if the bot can write there.
pub(in super::super) fn check_reachable_chat(state: &FakeTelegramState, body: &Value) -> Result<i64, FakeHttpReply> {
    let given = &body["chat_id"];
    let id = given.as_i64().or_else(|| given.as_str()?.parse().ok()).ok_or_else(|| bad_request("chat_id is empty"))?;
    let chat = state.chats.get(&id).ok_or_else(|| bad_request("chat not found"))?;
    if let Some(to) = chat.migrated_to {
        let description = "Bad Request: group chat was upgraded to a supergroup chat";
        return Err(refusal_with(400, description, json!({ "migrate_to_chat_id": to })));
    }
    if chat.bot_blocked {
        let description = match chat.kind {
            FakeTelegramChatKind::Private => "Forbidden: bot was blocked by the user",
            FakeTelegramChatKind::Group => "Forbidden: bot was kicked from the group chat",
            FakeTelegramChatKind::Supergroup => "Forbidden: bot was kicked from the supergroup chat",
        };
        return Err(refusal(403, description));
    }
    Ok(id)
}

pub(in super::super) fn check_topic(
    state: &mut FakeTelegramState,
    chat: i64,
    body: &Value,
) -> Result<Option<i64>, FakeHttpReply> {
    match body.get("message_thread_id") {
        None => Ok(None),
        Some(id) => {
            let id = id.as_i64().filter(|id| state.chat_mut(chat).topics.contains(id));
            Ok(Some(id.ok_or_else(|| bad_request("message thread not found"))?))
        }
    }
}

/// Parses the text of a call with its formatting.
pub(in super::super) fn parse_marked_text(
    body: &Value,
    name: &str,
    longest: usize,
) -> Result<(String, Vec<ParsedEntity>), FakeHttpReply> {
    let source = match &body[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (text, entities) = match body.get("parse_mode").map(Value::as_str) {
        None => (source, Vec::new()),
        Some(Some("HTML")) => {
            html::parse_html(&source).map_err(|why| bad_request(format!("can't parse entities: {why}")))?
        }
        Some(_) => return Err(bad_request("unsupported parse_mode")),
    };
    if text.encode_utf16().count() > longest {
        let what = if name == "caption" { "message caption is too long" } else { "message is too long" };
        return Err(bad_request(what));
    }
    // White space at the end of a text is not shown.
    Ok((text.trim_end().to_owned(), entities))
}

/// A chat as the API returns it.
pub(in super::super) fn chat_json(id: i64, chat: &FakeTelegramChat) -> Value {
    let mut told = json!({"id": id, "type": chat.kind.as_str()});
    if chat.kind != FakeTelegramChatKind::Private {
        told["title"] = json!(format!("group {id}"));
    }
    if chat.forum {
        told["is_forum"] = json!(true);
    }
    told
}

/// A message of the bot as the API returns it.
pub(in super::super) fn message_json(id: i64, place: &FakeTelegramChat, shown: &FakeTelegramMessage) -> Value {
    let from = json!({"id": BOT_ID, "is_bot": true, "first_name": "Quell", "username": BOT_NAME});
    let mut told =
        json!({"message_id": shown.id, "date": 1, "chat": chat_json(id, place), "from": from, "text": shown.text});
    if let Some(thread) = shown.thread {
        told["message_thread_id"] = json!(thread);
        told["is_topic_message"] = json!(true);
    }
    told
}
