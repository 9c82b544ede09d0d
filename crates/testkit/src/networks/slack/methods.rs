//! What the methods of the Web API do.

use serde_json::{Value, json};

use super::BOT;
use super::api::Refusal;
use super::state::{BOT_ID, State, Upload};
use super::world::{File, Message};

/// Slack: chat.postMessage. Longer text is cut in two, far longer text is truncated.
const ONE_MESSAGE: usize = 4000;
/// Names of emoji, as far as tests use them.
const EMOJI: &[&str] =
    &["eyes", "white_check_mark", "warning", "black_square_for_stop", "x", "hourglass_flowing_sand", "+1"];

/// Does what a call asks for.
pub(super) fn act(state: &mut State, method: &str, body: &Value) -> Result<Value, Refusal> {
    check_keys(state, method, body);
    match method {
        "auth.test" => Ok(json!({
            "url": "https://fake.slack.com/", "team": "Fake", "user": "quell", "team_id": "T0000001", "user_id": BOT,
            "bot_id": BOT_ID, "is_enterprise_install": false,
        })),
        "apps.connections.open" => open(state),
        "chat.postMessage" => post(state, body),
        "chat.update" => update(state, body),
        "reactions.add" | "reactions.remove" => react(state, method, body),
        "files.getUploadURLExternal" => begin_upload(state, body),
        "files.completeUploadExternal" => complete_upload(state, body),
        _ => Err("unknown_method"),
    }
}

/// Slack ignores what it does not know; a client that sends it means something else.
fn check_keys(state: &mut State, method: &str, body: &Value) {
    let known: &[&str] = match method {
        "chat.postMessage" => &["channel", "text", "thread_ts", "mrkdwn", "unfurl_links", "unfurl_media"],
        "chat.update" => &["channel", "ts", "text"],
        "reactions.add" | "reactions.remove" => &["channel", "timestamp", "name"],
        "files.getUploadURLExternal" => &["filename", "length"],
        "files.completeUploadExternal" => &["files", "channel_id", "thread_ts"],
        _ => &[],
    };
    let keys = body.as_object().into_iter().flat_map(|object| object.keys());
    for key in keys.filter(|key| !known.contains(&key.as_str())) {
        state.complain(format!("{method}: an unknown key: {key}"));
    }
}

fn open(state: &mut State) -> Result<Value, Refusal> {
    if !state.is_on {
        return Err("socket_mode_disabled");
    }
    let ticket = state.world.new_id('K');
    let url = format!("{}/link/?ticket={ticket}", state.addresses.sockets);
    state.tickets.push(ticket);
    Ok(json!({"url": url}))
}

fn channel<'a>(state: &State, channel: &'a Value) -> Result<&'a str, Refusal> {
    let channel = channel.as_str().ok_or("channel_not_found")?;
    if state.world.has(channel) { Ok(channel) } else { Err("channel_not_found") }
}

fn thread(state: &State, channel: &str, body: &Value) -> Result<Option<String>, Refusal> {
    let Some(thread) = body["thread_ts"].as_str() else { return Ok(None) };
    match state.world.message(channel, thread) {
        // Slack: "never use a reply's ts value; use its parent instead".
        Some(parent) if parent.thread.is_none() => Ok(Some(thread.to_owned())),
        Some(_) | None => Err("thread_not_found"),
    }
}

fn post(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    if !state.scopes.contains("chat:write") {
        return Err("missing_scope");
    }
    let channel = channel(state, &body["channel"])?;
    let thread = thread(state, channel, body)?;
    let text = body["text"].as_str().filter(|text| !text.trim().is_empty()).ok_or("no_text")?;
    if text.chars().count() > ONE_MESSAGE {
        state.complain("chat.postMessage: a text that Slack cuts in two".to_owned());
    }
    let message = Message { author: BOT.to_owned(), text: text.to_owned(), thread, ..Message::default() };
    let ts = state.show(channel, message);
    Ok(json!({"channel": channel, "ts": ts, "message": {"text": text, "bot_id": BOT_ID}}))
}

fn update(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    let channel = channel(state, &body["channel"])?;
    let ts = body["ts"].as_str().ok_or("message_not_found")?;
    let text = body["text"].as_str().filter(|text| !text.trim().is_empty()).ok_or("no_text")?;
    if text.chars().count() > ONE_MESSAGE {
        return Err("msg_too_long");
    }
    let message = state.world.message_mut(channel, ts).ok_or("message_not_found")?;
    if message.author != BOT {
        return Err("cant_update_message");
    }
    text.clone_into(&mut message.text);
    message.edits += 1;
    state.tell_change(channel, ts);
    Ok(json!({"channel": channel, "ts": ts, "text": text}))
}

fn react(state: &mut State, method: &str, body: &Value) -> Result<Value, Refusal> {
    let channel = channel(state, &body["channel"])?;
    let ts = body["timestamp"].as_str().ok_or("bad_timestamp")?;
    let name = body["name"].as_str().filter(|name| EMOJI.contains(name)).ok_or("invalid_name")?;
    let message = state.world.message_mut(channel, ts).ok_or("message_not_found")?;
    let at = message.reactions.iter().position(|known| known == name);
    match (method, at) {
        ("reactions.add", None) => message.reactions.push(name.to_owned()),
        ("reactions.add", Some(_)) => return Err("already_reacted"),
        (_, Some(at)) => drop(message.reactions.remove(at)),
        (_, None) => return Err("no_reaction"),
    }
    Ok(json!({}))
}

fn begin_upload(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    let name = body["filename"].as_str().filter(|name| !name.is_empty()).ok_or("invalid_arguments")?;
    let length = body["length"].as_str().and_then(|length| length.parse().ok()).ok_or("invalid_arguments")?;
    let id = state.world.new_id('F');
    let file = File { id: id.clone(), name: name.to_owned(), ..File::default() };
    state.uploads.insert(id.clone(), Upload { file, length, has_come: false });
    Ok(json!({"upload_url": format!("{}/upload/v1/{id}", state.addresses.api), "file_id": id}))
}

fn complete_upload(state: &mut State, body: &Value) -> Result<Value, Refusal> {
    let channel = channel(state, &body["channel_id"])?;
    let thread = thread(state, channel, body)?;
    let wanted = body["files"].as_array().filter(|files| !files.is_empty()).ok_or("invalid_arguments")?;
    let mut files = Vec::new();
    for file in wanted {
        let id = file["id"].as_str().ok_or("invalid_arguments")?;
        let upload = state.uploads.get(id).filter(|upload| upload.has_come).ok_or("file_not_found")?;
        files.push(upload.file.clone());
    }
    for file in &files {
        state.uploads.remove(&file.id);
    }
    let told: Vec<Value> = files.iter().map(|file| json!({"id": file.id, "title": file.name})).collect();
    state.show(channel, Message { author: BOT.to_owned(), thread, files, ..Message::default() });
    Ok(json!({"files": told}))
}
