//! API methods that send no new message. Each knows its parameters and refuses what the real one refuses.

pub(super) mod buttons;
pub(super) mod send;

use std::fmt::Display;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::state::{FakeTelegramState, TelegramCall};
use super::{BOT_ID, BOT_NAME};
use crate::fake_server::FakeHttpReply;
use send::parse_marked_text;

/// Largest file that a bot can download (Bot API: getFile).
const MAX_DOWNLOAD_BYTES: usize = 20 * 1024 * 1024;

/// Reactions that a bot may use (Bot API: `ReactionTypeEmoji`).
const ALLOWED_REACTIONS: &str = "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u{200d}🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 \
    🖕 😈 😴 😭 🤓 👻 👨\u{200d}💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷\u{200d}♂ 🤷 🤷\u{200d}♀ 😡";

/// An error as the API answers it, with its `ResponseParameters`.
pub(super) fn refusal_with(code: u16, description: &str, parameters: Value) -> FakeHttpReply {
    let mut body = json!({"ok": false, "error_code": code, "description": description});
    if !parameters.is_null() {
        body["parameters"] = parameters;
    }
    FakeHttpReply::json(code, &body)
}

pub(super) fn refusal(code: u16, description: &str) -> FakeHttpReply {
    refusal_with(code, description, Value::Null)
}

pub(super) fn bad_request(description: impl Display) -> FakeHttpReply {
    refusal(400, &format!("Bad Request: {description}"))
}

pub(super) fn too_many_requests(seconds: u64) -> FakeHttpReply {
    let description = format!("Too Many Requests: retry after {seconds}");
    refusal_with(429, &description, json!({ "retry_after": seconds }))
}

pub(super) fn run_method(state: &mut FakeTelegramState, request: &TelegramCall) -> Result<Value, FakeHttpReply> {
    let body = &request.body;
    if request.file.is_some() && !request.method.starts_with("send") {
        return Err(bad_request("a file where none belongs"));
    }
    match request.method.as_str() {
        "getMe" => {
            check_known_parameters(body, &[])?;
            Ok(json!({"id": BOT_ID, "is_bot": true, "first_name": "Quell", "username": BOT_NAME,
                "can_join_groups": true, "can_read_all_group_messages": true, "supports_inline_queries": false}))
        }
        "getWebhookInfo" => {
            check_known_parameters(body, &[])?;
            Ok(json!({"url": state.webhook, "has_custom_certificate": false, "pending_update_count": 0}))
        }
        "sendMessage" => send::send_message(state, body),
        "sendPhoto" | "sendDocument" | "sendVoice" | "sendAudio" | "sendVideo" => send::send_file(state, request),
        "editMessageText" => edit_message_text(state, body),
        "answerCallbackQuery" => buttons::answer_callback_query(state, body),
        "sendChatAction" => send_chat_action(state, body),
        "setMessageReaction" => set_message_reaction(state, body),
        "getFile" => get_file(state, body),
        _ => Err(refusal(404, "Not Found: method not found")),
    }
}

/// Refuses parameters that the method does not know.
pub(super) fn check_known_parameters(body: &Value, names: &[&str]) -> Result<(), FakeHttpReply> {
    let none = serde_json::Map::new();
    let given =
        if body.is_null() { &none } else { body.as_object().ok_or_else(|| bad_request("the body is no object"))? };
    match given.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(bad_request(format!("unknown parameter {key}"))),
        None => Ok(()),
    }
}

fn edit_message_text(state: &mut FakeTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    let names = ["chat_id", "message_id", "text", "parse_mode", "link_preview_options", "reply_markup"];
    check_known_parameters(body, &names)?;
    let chat_id = send::check_reachable_chat(state, body)?;
    let message = body["message_id"].as_i64().ok_or_else(|| bad_request("message identifier is not specified"))?;
    let (text, entities) = parse_marked_text(body, "text", send::MAX_TEXT_UNITS)?;
    if text.is_empty() {
        return Err(bad_request("message text is empty"));
    }
    let buttons = buttons::parse_keyboard(body)?;
    let every = state.min_edit_interval;
    let chat = state.chat_mut(chat_id);
    let found = chat.messages.iter_mut().find(|shown| shown.id == message);
    let shown = found.ok_or_else(|| bad_request("message to edit not found"))?;
    if shown.from != BOT_ID {
        return Err(bad_request("message can't be edited"));
    }
    if shown.file.is_some() {
        return Err(bad_request("there is no text in the message to edit"));
    }
    if shown.text == text && shown.entities == entities && shown.buttons == buttons {
        let told = "message is not modified: specified new message content and reply markup are exactly the same as a \
            current content and reply markup of the message";
        return Err(bad_request(told));
    }
    if let (Some(every), Some(last)) = (every, chat.last_edit) {
        let left = every.saturating_sub(last.elapsed());
        if left > Duration::ZERO {
            return Err(too_many_requests(left.as_secs() + 1));
        }
    }
    (shown.text, shown.entities, shown.edits) = (text, entities, shown.edits + 1);
    shown.buttons = buttons;
    let shown = shown.clone();
    chat.last_edit = Some(Instant::now());
    Ok(send::message_json(chat_id, chat, &shown))
}

fn send_chat_action(state: &mut FakeTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    check_known_parameters(body, &["chat_id", "message_thread_id", "action"])?;
    let chat = send::check_reachable_chat(state, body)?;
    send::check_topic(state, chat, body)?;
    match body["action"].as_str() {
        Some("typing") => state.chat_mut(chat).typing.push(Instant::now()),
        Some("upload_photo" | "upload_document" | "upload_voice" | "upload_video") => {}
        _ => return Err(bad_request("wrong parameter action in request")),
    }
    Ok(json!(true))
}

fn set_message_reaction(state: &mut FakeTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    check_known_parameters(body, &["chat_id", "message_id", "reaction", "is_big"])?;
    let chat = send::check_reachable_chat(state, body)?;
    let none = Vec::new();
    let asked = body.get("reaction").map_or(Some(&none), Value::as_array);
    let asked = asked.ok_or_else(|| bad_request("can't parse reaction types JSON object"))?;
    let mut signs = Vec::new();
    for reaction in asked {
        let emoji = reaction["emoji"].as_str().filter(|_| reaction["type"] == "emoji").unwrap_or_default();
        if !ALLOWED_REACTIONS.split(' ').any(|allowed| allowed == emoji) {
            return Err(bad_request("REACTION_INVALID"));
        }
        signs.push(emoji.to_owned());
    }
    // Bot API: "Bots can't use paid reactions", and as non-premium users they have one reaction per message.
    if signs.len() > 1 {
        return Err(bad_request("REACTIONS_TOO_MANY"));
    }
    let found = state.chat_mut(chat).messages.iter_mut().find(|shown| Some(shown.id) == body["message_id"].as_i64());
    found.ok_or_else(|| bad_request("message to react not found"))?.reactions = signs;
    Ok(json!(true))
}

fn get_file(state: &mut FakeTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    check_known_parameters(body, &["file_id"])?;
    let id = body["file_id"].as_str().ok_or_else(|| bad_request("file_id not specified"))?;
    let wrong = || bad_request("wrong file_id or the file is temporarily unavailable");
    let (path, bytes) = state.files.get(id).ok_or_else(wrong)?;
    if bytes.len() > MAX_DOWNLOAD_BYTES {
        return Err(bad_request("file is too big"));
    }
    Ok(json!({"file_id": id, "file_unique_id": format!("u{id}"), "file_size": bytes.len(), "file_path": path}))
}
