//! The methods of the Web API.

use serde_json::{Value, json};

use super::super::super::FakeChatFile;
use super::super::BOT;
use super::super::chat_data::FakeSlackMessage;
use super::super::state::{BOT_ID, FakeEphemeralMessage, FakeSlackState, FakeSlackUpload};
use super::blocks::{ShownBlocks, parse_blocks};
use super::{FakeSlackError, METHODS};

/// Slack: chat.postMessage. Longer text is split in two, much longer text is truncated.
const MAX_MESSAGE_CHARS: usize = 4000;
/// Names of the emoji that tests use.
const KNOWN_EMOJI: &[&str] =
    &["eyes", "white_check_mark", "warning", "black_square_for_stop", "x", "hourglass_flowing_sand", "+1"];

pub(super) fn run_method(state: &mut FakeSlackState, method: &str, body: &Value) -> Result<Value, FakeSlackError> {
    check_keys(state, method, body);
    match method {
        "auth.test" => Ok(json!({
            "url": "https://fake.slack.com/", "team": "Fake", "user": "quell", "team_id": "T0000001", "user_id": BOT,
            "bot_id": BOT_ID, "is_enterprise_install": false,
        })),
        "apps.connections.open" => open_connection(state),
        "chat.postMessage" => post_message(state, body),
        "chat.postEphemeral" => post_ephemeral(state, body),
        "chat.update" => update_message(state, body),
        "reactions.add" | "reactions.remove" => change_reaction(state, method, body),
        "files.getUploadURLExternal" => begin_upload(state, body),
        "files.completeUploadExternal" => complete_upload(state, body),
        _ => Err("unknown_method"),
    }
}

/// Slack ignores unknown keys; a client that sends one has an error.
fn check_keys(state: &mut FakeSlackState, method: &str, body: &Value) {
    let known = METHODS.iter().find(|(known, _)| *known == method).map_or("", |(_, names)| names);
    let keys = body.as_object().into_iter().flat_map(|object| object.keys());
    for key in keys.filter(|key| !known.split(' ').any(|known| known == *key)) {
        state.client_errors.push(format!("{method}: an unknown key: {key}"));
    }
}

fn open_connection(state: &mut FakeSlackState) -> Result<Value, FakeSlackError> {
    if !state.socket_mode_enabled {
        return Err("socket_mode_disabled");
    }
    let ticket = state.chat_data.new_id('K');
    let url = format!("{}/link/?ticket={ticket}", state.socket_url);
    state.tickets.push(ticket);
    Ok(json!({"url": url}))
}

fn check_channel<'a>(state: &FakeSlackState, channel: &'a Value) -> Result<&'a str, FakeSlackError> {
    let channel = channel.as_str().ok_or("channel_not_found")?;
    if state.chat_data.has_channel(channel) { Ok(channel) } else { Err("channel_not_found") }
}

fn check_thread(state: &FakeSlackState, channel: &str, body: &Value) -> Result<Option<String>, FakeSlackError> {
    let Some(thread) = body["thread_ts"].as_str() else { return Ok(None) };
    match state.chat_data.message(channel, thread) {
        // Slack: "never use a reply's ts value; use its parent instead".
        Some(parent) if parent.thread.is_none() => Ok(Some(thread.to_owned())),
        Some(_) | None => Err("thread_not_found"),
    }
}

fn post_message(state: &mut FakeSlackState, body: &Value) -> Result<Value, FakeSlackError> {
    if !state.scopes.contains("chat:write") {
        return Err("missing_scope");
    }
    let channel = check_channel(state, &body["channel"])?;
    let thread = check_thread(state, channel, body)?;
    let text = body["text"].as_str().filter(|text| !text.trim().is_empty()).ok_or("no_text")?;
    if text.chars().count() > MAX_MESSAGE_CHARS {
        state.client_errors.push("chat.postMessage: a text that Slack cuts in two".to_owned());
    }
    let shown = parse_blocks(body)?.unwrap_or_else(|| ShownBlocks { text: text.to_owned(), buttons: Vec::new() });
    let message = FakeSlackMessage {
        author: BOT.to_owned(),
        text: shown.text,
        thread,
        buttons: shown.buttons,
        has_blocks: body.get("blocks").is_some(),
        ..FakeSlackMessage::default()
    };
    let ts = state.add_message(channel, message);
    Ok(json!({"channel": channel, "ts": ts, "message": {"text": text, "bot_id": BOT_ID}}))
}

fn post_ephemeral(state: &mut FakeSlackState, body: &Value) -> Result<Value, FakeSlackError> {
    if !state.scopes.contains("chat:write") {
        return Err("missing_scope");
    }
    let channel = check_channel(state, &body["channel"])?.to_owned();
    check_thread(state, &channel, body)?;
    let user = body["user"].as_str().filter(|user| state.chat_data.people.contains_key(*user));
    let user = user.ok_or("user_not_in_channel")?.to_owned();
    let text = body["text"].as_str().filter(|text| !text.trim().is_empty()).ok_or("no_text")?.to_owned();
    state.ephemeral.push(FakeEphemeralMessage { channel, user, text });
    Ok(json!({"message_ts": "1750000001.000001"}))
}

fn update_message(state: &mut FakeSlackState, body: &Value) -> Result<Value, FakeSlackError> {
    let channel = check_channel(state, &body["channel"])?;
    let ts = body["ts"].as_str().ok_or("message_not_found")?;
    let text = body["text"].as_str().filter(|text| !text.trim().is_empty()).ok_or("no_text")?;
    if text.chars().count() > MAX_MESSAGE_CHARS {
        return Err("msg_too_long");
    }
    let shown = parse_blocks(body)?;
    let message = state.chat_data.message_mut(channel, ts).ok_or("message_not_found")?;
    if message.author != BOT {
        return Err("cant_update_message");
    }
    match shown {
        Some(shown) => {
            message.has_blocks = true;
            (message.text, message.buttons) = (shown.text, shown.buttons);
        }
        // Slack: chat.update. Blocks stay and hide the text.
        None if message.has_blocks => {}
        None => text.clone_into(&mut message.text),
    }
    message.edits += 1;
    state.send_message_changed(channel, ts);
    Ok(json!({"channel": channel, "ts": ts, "text": text}))
}

fn change_reaction(state: &mut FakeSlackState, method: &str, body: &Value) -> Result<Value, FakeSlackError> {
    let channel = check_channel(state, &body["channel"])?;
    let ts = body["timestamp"].as_str().ok_or("bad_timestamp")?;
    let name = body["name"].as_str().filter(|name| KNOWN_EMOJI.contains(name)).ok_or("invalid_name")?;
    let message = state.chat_data.message_mut(channel, ts).ok_or("message_not_found")?;
    let at = message.reactions.iter().position(|known| known == name);
    match (method, at) {
        ("reactions.add", None) => message.reactions.push(name.to_owned()),
        ("reactions.add", Some(_)) => return Err("already_reacted"),
        (_, Some(at)) => drop(message.reactions.remove(at)),
        (_, None) => return Err("no_reaction"),
    }
    Ok(json!({}))
}

fn begin_upload(state: &mut FakeSlackState, body: &Value) -> Result<Value, FakeSlackError> {
    let name = body["filename"].as_str().filter(|name| !name.is_empty()).ok_or("invalid_arguments")?;
    let length = body["length"].as_str().and_then(|length| length.parse().ok()).ok_or("invalid_arguments")?;
    let id = state.chat_data.new_id('F');
    let file = FakeChatFile { id: id.clone(), name: name.to_owned(), ..FakeChatFile::default() };
    state.uploads.insert(id.clone(), FakeSlackUpload { file, length, is_complete: false });
    Ok(json!({"upload_url": format!("{}/upload/v1/{id}", state.api_url), "file_id": id}))
}

fn complete_upload(state: &mut FakeSlackState, body: &Value) -> Result<Value, FakeSlackError> {
    let channel = check_channel(state, &body["channel_id"])?;
    let thread = check_thread(state, channel, body)?;
    let wanted = body["files"].as_array().filter(|files| !files.is_empty()).ok_or("invalid_arguments")?;
    let mut files = Vec::new();
    for file in wanted {
        let id = file["id"].as_str().ok_or("invalid_arguments")?;
        let upload = state.uploads.get(id).filter(|upload| upload.is_complete).ok_or("file_not_found")?;
        files.push(upload.file.clone());
    }
    for file in &files {
        state.uploads.remove(&file.id);
    }
    let told: Vec<Value> = files.iter().map(|file| json!({"id": file.id, "title": file.name})).collect();
    state.add_message(
        channel,
        FakeSlackMessage { author: BOT.to_owned(), thread, files, ..FakeSlackMessage::default() },
    );
    Ok(json!({"files": told}))
}
