//! The methods of the API that do not show a new message. Each knows its parameters and refuses what the real one refuses.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::send::{self, marked};
use super::state::{ChatFile, State};
use super::{BOT_ID, BOT_NAME};

/// The largest file that a bot can fetch (Bot API: getFile).
const LARGEST_FETCHED: usize = 20 * 1024 * 1024;

/// What a bot may put on a message (Bot API: `ReactionTypeEmoji`).
const REACTIONS: &str = "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u{200d}🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 \
    🖕 😈 😴 😭 🤓 👻 👨\u{200d}💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷\u{200d}♂ 🤷 🤷\u{200d}♀ 😡";

/// A call as it was read.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) body: Value,
    pub(super) file: Option<ChatFile>,
}

/// An answer that says no.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) description: String,
    /// Bot API: `ResponseParameters`.
    pub(super) parameters: Option<Value>,
}

/// 400 with a description.
pub(super) fn bad(description: impl std::fmt::Display) -> Refusal {
    Refusal { code: 400, description: format!("Bad Request: {description}"), parameters: None }
}

/// 429.
pub(super) fn too_many(seconds: u64) -> Refusal {
    let description = format!("Too Many Requests: retry after {seconds}");
    Refusal { code: 429, description, parameters: Some(json!({ "retry_after": seconds })) }
}

/// Does what a call asks for.
pub(super) fn act(state: &mut State, request: &Request) -> Result<Value, Refusal> {
    let body = &request.body;
    if request.file.is_some() && !request.method.starts_with("send") {
        return Err(bad("a file where none belongs"));
    }
    match request.method.as_str() {
        "getMe" => {
            known(body, &[])?;
            Ok(json!({"id": BOT_ID, "is_bot": true, "first_name": "Quell", "username": BOT_NAME,
                "can_join_groups": true, "can_read_all_group_messages": true, "supports_inline_queries": false}))
        }
        "getWebhookInfo" => {
            known(body, &[])?;
            Ok(json!({"url": state.webhook, "has_custom_certificate": false, "pending_update_count": 0}))
        }
        "sendMessage" => send::message(state, body),
        "sendPhoto" | "sendDocument" | "sendVoice" | "sendAudio" | "sendVideo" => send::file(state, request),
        "editMessageText" => edit(state, body),
        "deleteMessage" => delete(state, body),
        "sendChatAction" => chat_action(state, body),
        "setMessageReaction" => react(state, body),
        "getFile" => get_file(state, body),
        _ => Err(Refusal { code: 404, description: "Not Found: method not found".into(), parameters: None }),
    }
}

/// Refuses parameters that the method does not know.
pub(super) fn known(body: &Value, names: &[&str]) -> Result<(), Refusal> {
    let none = serde_json::Map::new();
    let given = if body.is_null() { &none } else { body.as_object().ok_or_else(|| bad("the body is no object"))? };
    match given.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(bad(format!("unknown parameter {key}"))),
        None => Ok(()),
    }
}

fn edit(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    known(body, &["chat_id", "message_id", "text", "parse_mode", "link_preview_options"])?;
    let chat_id = send::reachable(state, body)?;
    let message = body["message_id"].as_i64().ok_or_else(|| bad("message identifier is not specified"))?;
    let (text, entities) = marked(body, "text", send::LONGEST_TEXT)?;
    if text.is_empty() {
        return Err(bad("message text is empty"));
    }
    let every = state.edit_every;
    let chat = state.chat(chat_id);
    let found = chat.messages.iter_mut().find(|shown| shown.id == message);
    let shown = found.ok_or_else(|| bad("message to edit not found"))?;
    if shown.from != BOT_ID {
        return Err(bad("message can't be edited"));
    }
    if shown.file.is_some() {
        return Err(bad("there is no text in the message to edit"));
    }
    if shown.text == text && shown.entities == entities {
        let told = "message is not modified: specified new message content and reply markup are exactly the same as a \
            current content and reply markup of the message";
        return Err(bad(told));
    }
    if let (Some(every), Some(last)) = (every, chat.last_edit) {
        let left = every.saturating_sub(last.elapsed());
        if left > Duration::ZERO {
            return Err(too_many(left.as_secs() + 1));
        }
    }
    (shown.text, shown.entities, shown.edits) = (text, entities, shown.edits + 1);
    let shown = shown.clone();
    chat.last_edit = Some(Instant::now());
    Ok(send::told(chat_id, chat, &shown))
}

fn delete(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    known(body, &["chat_id", "message_id"])?;
    let chat = send::reachable(state, body)?;
    let messages = &mut state.chat(chat).messages;
    let place = messages.iter().position(|shown| Some(shown.id) == body["message_id"].as_i64());
    messages.remove(place.ok_or_else(|| bad("message to delete not found"))?);
    Ok(json!(true))
}

fn chat_action(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    known(body, &["chat_id", "message_thread_id", "action"])?;
    let chat = send::reachable(state, body)?;
    send::topic(state, chat, body)?;
    match body["action"].as_str() {
        Some("typing") => state.chat(chat).typing.push(Instant::now()),
        Some("upload_photo" | "upload_document" | "upload_voice" | "upload_video") => {}
        _ => return Err(bad("wrong parameter action in request")),
    }
    Ok(json!(true))
}

fn react(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    known(body, &["chat_id", "message_id", "reaction", "is_big"])?;
    let chat = send::reachable(state, body)?;
    let none = Vec::new();
    let asked = body.get("reaction").map_or(Some(&none), Value::as_array);
    let asked = asked.ok_or_else(|| bad("can't parse reaction types JSON object"))?;
    let mut signs = Vec::new();
    for reaction in asked {
        let emoji = reaction["emoji"].as_str().filter(|_| reaction["type"] == "emoji").unwrap_or_default();
        if !REACTIONS.split(' ').any(|allowed| allowed == emoji) {
            return Err(bad("REACTION_INVALID"));
        }
        signs.push(emoji.to_owned());
    }
    // Bot API: "Bots can't use paid reactions", and as non-premium users they have one reaction per message.
    if signs.len() > 1 {
        return Err(bad("REACTIONS_TOO_MANY"));
    }
    let found = state.chat(chat).messages.iter_mut().find(|shown| Some(shown.id) == body["message_id"].as_i64());
    found.ok_or_else(|| bad("message to react not found"))?.reactions = signs;
    Ok(json!(true))
}

fn get_file(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    known(body, &["file_id"])?;
    let id = body["file_id"].as_str().ok_or_else(|| bad("file_id not specified"))?;
    let wrong = || bad("wrong file_id or the file is temporarily unavailable");
    let (path, bytes) = state.files.get(id).ok_or_else(wrong)?;
    if bytes.len() > LARGEST_FETCHED {
        return Err(bad("file is too big"));
    }
    Ok(json!({"file_id": id, "file_unique_id": format!("u{id}"), "file_size": bytes.len(), "file_path": path}))
}
