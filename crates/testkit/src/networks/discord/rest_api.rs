//! The REST API: checks requests as strictly as Discord does, and executes them.

use std::time::Instant;

use serde_json::{Value, json};

use super::super::FakeChatFile;
use super::super::multipart::{FormPart, parse_parts};
use super::TOKEN;
use super::chat_data::{BOT, FakeDiscordMessage};
use super::interactions;
use super::rate_limits::{DiscordRoute, RateLimitStatus};
use super::state::{FakeDiscordFault, FakeDiscordState};
use crate::fake_server::http1::RawHttpRequest;
use crate::fake_server::{FakeHttpReply, percent_decode};

/// Discord: create message, `content` and `nonce`. The length counts code points (discord-api-docs issue 1315).
const MAX_CONTENT_CHARS: usize = 2000;
const MAX_NONCE_BYTES: usize = 25;
/// Discord: application flags, `GATEWAY_MESSAGE_CONTENT_LIMITED`.
const MESSAGE_CONTENT_LIMITED: u64 = 1 << 19;

/// Answers a request; none where the connection is closed instead.
pub(super) fn answer_request(state: &mut FakeDiscordState, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    let path = incoming.path.split('?').next().unwrap_or_default();
    let words = split_path(path).unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some(route) = route_of(&incoming.method, &words) else {
        state.client_errors.push(format!("no such route: {} {path}", incoming.method));
        return Some(api_error(404, 0, "404: Not Found"));
    };
    state.record_call(route, &incoming.body);
    if let ["attachments", _, id, _] = words.as_slice() {
        return Some(serve_file(state, incoming, id));
    }
    if let Err(refusal) = check_headers(state, incoming) {
        return Some(refusal);
    }
    let fault = state.take_fault(route);
    match fault {
        Some(FakeDiscordFault::Status { status, code, message }) => {
            return Some(api_error(status, code, &message));
        }
        Some(FakeDiscordFault::RateLimited { after, scope }) => {
            return Some(super::state::rate_limit_reply(after, scope));
        }
        Some(FakeDiscordFault::CloseBefore) => return None,
        Some(FakeDiscordFault::LoseAnswer) | None => {}
    }
    let channel = if let ["channels", channel, ..] = words.as_slice() { Some(*channel) } else { None };
    let counted = channel.unwrap_or_default();
    let allowance = state.limits.as_mut().map(|limits| limits.count_call(route, counted, Instant::now()));
    let reply = match allowance.filter(|allowance| allowance.exceeded) {
        Some(exceeded) => super::state::rate_limit_reply(exceeded.reset_after, super::RateLimitScope::User),
        None if channel.is_some_and(|channel| state.chat_data.channel(channel).is_none()) => {
            api_error(404, 10003, "Unknown Channel")
        }
        None => perform_request(state, route, &words, incoming).unwrap_or_else(|refusal| refusal),
    };
    let lost = matches!(fault, Some(FakeDiscordFault::LoseAnswer));
    (!lost).then(|| add_rate_limit_headers(reply, allowance))
}

/// The words of a path behind the version of the API, or of the path of a file.
fn split_path(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix("/api/v10").or_else(|| path.starts_with("/attachments/").then_some(path))?;
    path.split('/').skip(1).map(percent_decode).collect()
}

fn route_of(method: &str, words: &[&str]) -> Option<DiscordRoute> {
    Some(match (method, words) {
        ("GET", ["users", "@me"]) => DiscordRoute::Me,
        ("GET", ["applications", "@me"]) => DiscordRoute::Application,
        ("GET", ["gateway", "bot"]) => DiscordRoute::Gateway,
        ("POST", ["channels", _, "messages"]) => DiscordRoute::Send,
        ("PATCH", ["channels", _, "messages", _]) => DiscordRoute::Edit,
        ("PUT", ["channels", _, "messages", _, "reactions", _, "@me"]) => DiscordRoute::React,
        ("DELETE", ["channels", _, "messages", _, "reactions", _, "@me"]) => DiscordRoute::Unreact,
        ("POST", ["channels", _, "typing"]) => DiscordRoute::Typing,
        ("POST", ["interactions", _, _, "callback"]) => DiscordRoute::Respond,
        ("GET", ["attachments", _, _, _]) => DiscordRoute::File,
        _ => return None,
    })
}

fn check_headers(state: &mut FakeDiscordState, incoming: &RawHttpRequest) -> Result<(), FakeHttpReply> {
    // Discord: reference, user agent. Cloudflare refuses requests without one.
    if !incoming.header("user-agent").is_some_and(|agent| agent.starts_with("DiscordBot (")) {
        state.client_errors.push("no valid User-Agent".to_owned());
        return Err(api_error(403, 40333, "internal network error"));
    }
    if incoming.header("authorization") != Some(format!("Bot {TOKEN}").as_str()) {
        return Err(api_error(401, 0, "401: Unauthorized"));
    }
    Ok(())
}

fn perform_request(
    state: &mut FakeDiscordState,
    route: DiscordRoute,
    words: &[&str],
    incoming: &RawHttpRequest,
) -> Result<FakeHttpReply, FakeHttpReply> {
    let part = |at: usize| words.get(at).copied().unwrap_or_default();
    match route {
        DiscordRoute::Me => Ok(FakeHttpReply::json(200, &state.chat_data.user_json(BOT))),
        DiscordRoute::Application => {
            let flags = if state.message_content { MESSAGE_CONTENT_LIMITED } else { 0 };
            Ok(FakeHttpReply::json(200, &json!({"id": BOT, "name": "quell", "flags": flags})))
        }
        DiscordRoute::Gateway => {
            let limit = json!({
                "total": 1000, "remaining": state.identifies_left, "max_concurrency": 1,
                "reset_after": u64::try_from(state.identifies_reset.as_millis()).unwrap_or(u64::MAX),
            });
            Ok(FakeHttpReply::json(200, &json!({"url": state.gateway_url, "shards": 1, "session_start_limit": limit})))
        }
        DiscordRoute::Send => create_message(state, part(1), incoming),
        DiscordRoute::Edit => edit_message(state, part(1), part(3), incoming),
        DiscordRoute::React | DiscordRoute::Unreact => change_reaction(state, route, [part(1), part(3), part(5)]),
        DiscordRoute::Typing => {
            if let Some(channel) = state.chat_data.channel_mut(part(1)) {
                channel.typing += 1;
            }
            Ok(FakeHttpReply::new(204, ""))
        }
        DiscordRoute::Respond => interactions::respond(state, [part(1), part(2)], &parse_body(incoming)?.0),
        DiscordRoute::File => Err(api_error(404, 0, "404: Not Found")),
    }
}

fn create_message(
    state: &mut FakeDiscordState,
    channel: &str,
    incoming: &RawHttpRequest,
) -> Result<FakeHttpReply, FakeHttpReply> {
    let (payload, parts) = parse_body(incoming)?;
    let known = "content nonce enforce_nonce allowed_mentions message_reference attachments components flags tts";
    state.check_keys(&payload, &known.split(' ').collect::<Vec<_>>());
    let buttons = interactions::parse_components(&payload)?.unwrap_or_default();
    let text = check_content(&payload)?;
    if text.is_empty() && parts.is_empty() {
        return Err(api_error(400, 50006, "Cannot send an empty message"));
    }
    let nonce = check_nonce(&payload)?;
    if payload["enforce_nonce"] == true {
        let wanted = nonce.as_ref().ok_or_else(|| invalid_field("enforce_nonce", "Requires a nonce."))?;
        if let Some((channel, id)) = state.chat_data.find_by_nonce(wanted) {
            return Ok(message_reply(state, &channel, &id));
        }
    }
    let reply_to = match payload["message_reference"]["message_id"].as_str() {
        Some(id) if state.chat_data.message(channel, id).is_none() => {
            return Err(invalid_field("message_reference", "Unknown message"));
        }
        reply_to => reply_to.map(str::to_owned),
    };
    let pinged = pinged_users(state, &payload, text);
    let mut files = Vec::new();
    for part in parts {
        files.push(file_of(part, state.chat_data.new_id()));
    }
    let message = FakeDiscordMessage {
        author: BOT.to_owned(),
        text: text.to_owned(),
        files,
        reply_to,
        pinged,
        nonce,
        buttons,
        ..FakeDiscordMessage::default()
    };
    let id = state.add_message(channel, message);
    Ok(message_reply(state, channel, &id))
}

fn edit_message(
    state: &mut FakeDiscordState,
    channel: &str,
    id: &str,
    incoming: &RawHttpRequest,
) -> Result<FakeHttpReply, FakeHttpReply> {
    let (payload, _) = parse_body(incoming)?;
    state.check_keys(&payload, &["content", "allowed_mentions", "components", "flags"]);
    let buttons = interactions::parse_components(&payload)?;
    let text = check_content(&payload)?.to_owned();
    let pinged = pinged_users(state, &payload, &text);
    let message = state.chat_data.message_mut(channel, id).ok_or_else(|| api_error(404, 10008, "Unknown Message"))?;
    if message.author != BOT {
        return Err(api_error(403, 50005, "Cannot edit a message authored by another user"));
    }
    if text.is_empty() && message.files.is_empty() {
        return Err(api_error(400, 50006, "Cannot send an empty message"));
    }
    message.text = text;
    // Discord: edit message. Without the key the earlier components stay.
    if let Some(buttons) = buttons {
        message.buttons = buttons;
    }
    message.edits += 1;
    message.pinged.extend(pinged);
    state.send_message_event("MESSAGE_UPDATE", channel, id);
    Ok(message_reply(state, channel, id))
}

fn change_reaction(
    state: &mut FakeDiscordState,
    route: DiscordRoute,
    [channel, id, sign]: [&str; 3],
) -> Result<FakeHttpReply, FakeHttpReply> {
    let message = state.chat_data.message_mut(channel, id).ok_or_else(|| api_error(404, 10008, "Unknown Message"))?;
    // A Unicode emoji, or `name:id` of an emoji of the guild.
    if sign.is_ascii() && !sign.contains(':') {
        return Err(api_error(400, 10014, "Unknown Emoji"));
    }
    let at = message.reactions.iter().position(|known| known == sign);
    match (route, at) {
        (DiscordRoute::Unreact, Some(at)) => drop(message.reactions.remove(at)),
        (DiscordRoute::Unreact, None) => return Err(api_error(404, 10014, "Unknown Emoji")),
        (_, Some(_)) => {}
        (_, None) => message.reactions.push(sign.to_owned()),
    }
    Ok(FakeHttpReply::new(204, ""))
}

fn serve_file(state: &mut FakeDiscordState, incoming: &RawHttpRequest, id: &str) -> FakeHttpReply {
    // The real CDN is another server: a token sent there is leaked.
    if incoming.header("authorization").is_some() {
        state.client_errors.push("the token was sent to the CDN".to_owned());
    }
    match state.chat_data.file(id) {
        Some(file) => FakeHttpReply::new(200, file.bytes.clone()).with_header("content-type", &file.media_type),
        None => api_error(404, 0, "404: Not Found"),
    }
}

fn parse_body(incoming: &RawHttpRequest) -> Result<(Value, Vec<FormPart>), FakeHttpReply> {
    let content_type = incoming.header("content-type").unwrap_or_default();
    let broken = |why: &str| api_error(400, 50109, &format!("The request body contains invalid JSON: {why}"));
    if content_type.starts_with("multipart/form-data") {
        let (payload, files) = parse_form(incoming, content_type).map_err(|why| broken(&why))?;
        let declared = payload["attachments"].as_array().map_or(0, Vec::len);
        if declared != files.len() {
            return Err(invalid_field("attachments", "Does not fit the files."));
        }
        return Ok((payload, files));
    }
    if content_type != "application/json" {
        return Err(broken("the content type is another"));
    }
    let payload = serde_json::from_slice(&incoming.body).map_err(|error| broken(&error.to_string()))?;
    Ok((payload, Vec::new()))
}

/// A part `payload_json` and parts `files[n]`.
fn parse_form(incoming: &RawHttpRequest, content_type: &str) -> Result<(Value, Vec<FormPart>), String> {
    let (mut payload, mut files) = (Value::Null, Vec::new());
    for part in parse_parts(content_type, &incoming.body)? {
        let index = part.name.strip_prefix("files[").and_then(|rest| rest.strip_suffix(']'));
        if part.name == "payload_json" {
            payload = serde_json::from_slice(&part.bytes).map_err(|error| format!("payload_json: {error}"))?;
        } else if index.is_none_or(|index| index.parse::<usize>().is_err()) {
            return Err(format!("a part named {}", part.name));
        } else if part.file_name.as_deref().is_none_or(str::is_empty) {
            return Err("a file without name".to_owned());
        } else {
            files.push(part);
        }
    }
    Ok((payload, files))
}

fn file_of(part: FormPart, id: String) -> FakeChatFile {
    let media_type = if part.media_type.is_empty() { "application/octet-stream".to_owned() } else { part.media_type };
    // HTML, multipart/form-data encoding algorithm: `%22` stands for a quote.
    let name = part.file_name.unwrap_or_default().replace("%22", "\"");
    FakeChatFile { id, name, media_type, bytes: part.bytes.to_vec() }
}

fn check_content(payload: &Value) -> Result<&str, FakeHttpReply> {
    let text = match &payload["content"] {
        Value::Null => "",
        Value::String(text) => text,
        _ => return Err(invalid_field("content", "Not a string.")),
    };
    if text.chars().count() > MAX_CONTENT_CHARS {
        return Err(invalid_field("content", &format!("Must be {MAX_CONTENT_CHARS} or fewer in length.")));
    }
    Ok(text)
}

fn check_nonce(payload: &Value) -> Result<Option<Value>, FakeHttpReply> {
    match &payload["nonce"] {
        Value::Null => Ok(None),
        Value::String(text) if text.len() > MAX_NONCE_BYTES => {
            Err(invalid_field("nonce", &format!("Must be {MAX_NONCE_BYTES} or fewer in length.")))
        }
        nonce @ (Value::String(_) | Value::Number(_)) => Ok(Some(nonce.clone())),
        _ => Err(invalid_field("nonce", "Neither a string nor a number.")),
    }
}

/// Users that a message pings: all that it mentions, unless `allowed_mentions` restricts them.
fn pinged_users(state: &FakeDiscordState, payload: &Value, text: &str) -> Vec<String> {
    let allows = |kind: &str| match payload["allowed_mentions"]["parse"].as_array() {
        Some(kinds) => kinds.iter().any(|allowed| allowed == kind),
        None => true,
    };
    let mut pinged = if allows("users") { state.chat_data.mentioned_users(text) } else { Vec::new() };
    if allows("everyone") && (text.contains("@everyone") || text.contains("@here")) {
        pinged.push("everyone".to_owned());
    }
    pinged
}

fn message_reply(state: &FakeDiscordState, channel: &str, id: &str) -> FakeHttpReply {
    FakeHttpReply::json(200, &state.chat_data.message_json(channel, id, &state.file_base_url))
}

/// Discord: an error with its JSON code.
pub(super) fn api_error(status: u16, code: u64, message: &str) -> FakeHttpReply {
    FakeHttpReply::json(status, &json!({"message": message, "code": code}))
}

pub(super) fn invalid_field(field: &str, message: &str) -> FakeHttpReply {
    let errors = json!({field: {"_errors": [{"code": "INVALID", "message": message}]}});
    FakeHttpReply::json(400, &json!({"message": "Invalid Form Body", "code": 50035, "errors": errors}))
}

fn add_rate_limit_headers(reply: FakeHttpReply, allowance: Option<RateLimitStatus>) -> FakeHttpReply {
    let Some(allowance) = allowance else { return reply };
    reply
        .with_header("x-ratelimit-limit", allowance.limit.to_string())
        .with_header("x-ratelimit-remaining", allowance.remaining.to_string())
        .with_header("x-ratelimit-reset-after", format!("{:.3}", allowance.reset_after.as_secs_f64()))
}
