//! The REST API: what is asked is checked as strictly as Discord checks it, and done.

use std::time::Instant;

use serde_json::{Value, json};

use super::limits::Allowance;
use super::stage::{Fault, State};
use super::world::{BOT, File, Message};
use super::{TOKEN, multipart};
use crate::model::wire_http::Incoming;

/// Discord: create message, `content` and `nonce`. The length counts code points (discord-api-docs issue 1315).
const LONGEST: usize = 2000;
const LONGEST_NONCE: usize = 25;
/// Discord: application flags, `GATEWAY_MESSAGE_CONTENT_LIMITED`.
const MESSAGE_CONTENT_LIMITED: u64 = 1 << 19;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// `GET /users/@me`
    Me,
    /// `GET /applications/@me`
    Application,
    /// `GET /gateway/bot`
    Gateway,
    /// `POST /channels/{id}/messages`
    Send,
    /// `PATCH /channels/{id}/messages/{id}`
    Edit,
    /// `PUT /channels/{id}/messages/{id}/reactions/{emoji}/@me`
    React,
    /// `DELETE` of the same
    Unreact,
    /// `POST /channels/{id}/typing`
    Typing,
    /// A file on the CDN.
    File,
}

/// An answer.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// A request, understood.
#[derive(Debug)]
struct Asked {
    route: Route,
    /// Channel, message and sign, as far as the route has them.
    parts: Vec<String>,
}

/// Discord: an error with its JSON code.
pub(super) struct Refusal {
    status: u16,
    body: Value,
}

/// What the server says of itself.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    pub(super) gateway: String,
    pub(super) files: String,
}

/// Answers a request; nothing where the connection is to be closed instead.
pub(super) fn answer(state: &mut State, incoming: &Incoming, addresses: &Addresses) -> Option<Reply> {
    let path = incoming.path.split('?').next().unwrap_or_default();
    let Some(asked) = understand(&incoming.method, path) else {
        state.complain(format!("no such route: {} {path}", incoming.method));
        return Some(refuse(404, 0, "404: Not Found").into());
    };
    state.count_call(asked.route, &incoming.body);
    if asked.route == Route::File {
        return Some(file(state, incoming, &asked.parts));
    }
    if let Err(refusal) = check_head(state, incoming) {
        return Some(refusal.into());
    }
    let fault = state.take_fault(asked.route);
    match fault {
        Some(Fault::Status { status, code, message }) => return Some(refuse(status, code, &message).into()),
        Some(Fault::RateLimited { after, scope }) => return Some(super::stage::rate_limited(after, scope)),
        Some(Fault::CloseBefore) => return None,
        Some(Fault::LoseAnswer) | None => {}
    }
    let channel = asked.parts.first().map_or("", String::as_str);
    let allowance = state.allow(asked.route, channel, Instant::now());
    let reply = match allowance.filter(|allowance| allowance.exceeded) {
        Some(exceeded) => super::stage::rate_limited(exceeded.reset_after, super::Scope::User),
        None => act(state, &asked, incoming, addresses).unwrap_or_else(Reply::from),
    };
    let lost = matches!(fault, Some(Fault::LoseAnswer));
    (!lost).then(|| with_limits(reply, allowance))
}

fn understand(method: &str, path: &str) -> Option<Asked> {
    let path = path.strip_prefix("/api/v10").or_else(|| path.starts_with("/attachments/").then_some(path))?;
    let parts: Vec<String> = path.split('/').skip(1).map(decoded).collect::<Option<_>>()?;
    let words: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (route, kept): (Route, Vec<&str>) = match (method, words.as_slice()) {
        ("GET", ["users", "@me"]) => (Route::Me, vec![]),
        ("GET", ["applications", "@me"]) => (Route::Application, vec![]),
        ("GET", ["gateway", "bot"]) => (Route::Gateway, vec![]),
        ("POST", ["channels", channel, "messages"]) => (Route::Send, vec![channel]),
        ("PATCH", ["channels", channel, "messages", message]) => (Route::Edit, vec![channel, message]),
        ("PUT", ["channels", channel, "messages", message, "reactions", sign, "@me"]) => {
            (Route::React, vec![channel, message, sign])
        }
        ("DELETE", ["channels", channel, "messages", message, "reactions", sign, "@me"]) => {
            (Route::Unreact, vec![channel, message, sign])
        }
        ("POST", ["channels", channel, "typing"]) => (Route::Typing, vec![channel]),
        ("GET", ["attachments", _, id, _]) => (Route::File, vec![id]),
        _ => return None,
    };
    Some(Asked { route, parts: kept.into_iter().map(str::to_owned).collect() })
}

/// Undoes percent encoding; what is not ASCII has to be encoded.
fn decoded(part: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), part.bytes());
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte if byte.is_ascii() => bytes.push(byte),
            _ => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

fn check_head(state: &mut State, incoming: &Incoming) -> Result<(), Refusal> {
    // Discord: reference, user agent. Cloudflare refuses what has none.
    if !header(incoming, "user-agent").is_some_and(|agent| agent.starts_with("DiscordBot (")) {
        state.complain("no valid User-Agent".to_owned());
        return Err(refuse(403, 40333, "internal network error"));
    }
    if header(incoming, "authorization") != Some(format!("Bot {TOKEN}").as_str()) {
        return Err(refuse(401, 0, "401: Unauthorized"));
    }
    Ok(())
}

fn act(state: &mut State, asked: &Asked, incoming: &Incoming, addresses: &Addresses) -> Result<Reply, Refusal> {
    let part = |at: usize| asked.parts.get(at).map_or("", String::as_str);
    if let Some(channel) = asked.parts.first() {
        let channel = state.world.channel(channel).ok_or_else(|| refuse(404, 10003, "Unknown Channel"))?;
        if channel.mute {
            return Err(refuse(403, 50013, "Missing Permissions"));
        }
    }
    match asked.route {
        Route::Me => Ok(json_reply(&state.world.user_json(BOT))),
        Route::Application => {
            let flags = if state.message_content { MESSAGE_CONTENT_LIMITED } else { 0 };
            Ok(json_reply(&json!({"id": BOT, "name": "quell", "flags": flags})))
        }
        Route::Gateway => {
            let limit = json!({
                "total": 1000, "remaining": state.identifies_left, "max_concurrency": 1,
                "reset_after": u64::try_from(state.identifies_reset.as_millis()).unwrap_or(u64::MAX),
            });
            Ok(json_reply(&json!({"url": addresses.gateway, "shards": 1, "session_start_limit": limit})))
        }
        Route::Send => send(state, part(0), incoming, &addresses.files),
        Route::Edit => edit(state, part(0), part(1), incoming, &addresses.files),
        Route::React | Route::Unreact => react(state, asked.route, [part(0), part(1), part(2)]),
        Route::Typing => {
            state.type_in(part(0));
            Ok(nothing())
        }
        Route::File => Err(refuse(404, 0, "404: Not Found")),
    }
}

fn send(state: &mut State, channel: &str, incoming: &Incoming, files: &str) -> Result<Reply, Refusal> {
    let (payload, parts) = body_of(incoming)?;
    let known =
        ["content", "nonce", "enforce_nonce", "allowed_mentions", "message_reference", "attachments", "flags", "tts"];
    state.check_keys(&payload, &known);
    let text = content(&payload)?;
    if text.is_empty() && parts.is_empty() {
        return Err(refuse(400, 50006, "Cannot send an empty message"));
    }
    let nonce = nonce(&payload)?;
    if payload["enforce_nonce"] == true {
        let wanted = nonce.as_ref().ok_or_else(|| invalid("enforce_nonce", "Requires a nonce."))?;
        if let Some((channel, id)) = state.shown_with(wanted) {
            return Ok(json_reply(&state.world.message_json(&channel, &id, files)));
        }
    }
    let reply_to = match payload["message_reference"]["message_id"].as_str() {
        Some(id) if state.world.message(channel, id).is_none() => {
            return Err(invalid("message_reference", "Unknown message"));
        }
        reply_to => reply_to.map(str::to_owned),
    };
    let pinged = pings(state, &payload, text);
    let mut shown = Vec::new();
    for part in parts {
        let id = state.world.new_id();
        shown.push(File { id, name: part.name, media_type: part.media_type, bytes: part.bytes });
    }
    let message = Message {
        author: BOT.to_owned(),
        text: text.to_owned(),
        files: shown,
        reply_to,
        pinged,
        nonce,
        ..Message::default()
    };
    let id = state.show(channel, message);
    Ok(json_reply(&state.world.message_json(channel, &id, files)))
}

fn edit(state: &mut State, channel: &str, id: &str, incoming: &Incoming, files: &str) -> Result<Reply, Refusal> {
    let (payload, _) = body_of(incoming)?;
    state.check_keys(&payload, &["content", "allowed_mentions", "flags"]);
    let text = content(&payload)?.to_owned();
    let pinged = pings(state, &payload, &text);
    let message = state.world.message_mut(channel, id).ok_or_else(|| refuse(404, 10008, "Unknown Message"))?;
    if message.author != BOT {
        return Err(refuse(403, 50005, "Cannot edit a message authored by another user"));
    }
    if text.is_empty() && message.files.is_empty() {
        return Err(refuse(400, 50006, "Cannot send an empty message"));
    }
    message.text = text;
    message.edits += 1;
    message.pinged.extend(pinged);
    state.tell("MESSAGE_UPDATE", channel, id);
    Ok(json_reply(&state.world.message_json(channel, id, files)))
}

fn react(state: &mut State, route: Route, [channel, id, sign]: [&str; 3]) -> Result<Reply, Refusal> {
    let message = state.world.message_mut(channel, id).ok_or_else(|| refuse(404, 10008, "Unknown Message"))?;
    // An emoji of Unicode, or `name:id` of one of the guild's own.
    if sign.is_ascii() && !sign.contains(':') {
        return Err(refuse(400, 10014, "Unknown Emoji"));
    }
    let at = message.reactions.iter().position(|known| known == sign);
    match (route, at) {
        (Route::Unreact, Some(at)) => drop(message.reactions.remove(at)),
        (Route::Unreact, None) => return Err(refuse(404, 10014, "Unknown Emoji")),
        (_, Some(_)) => {}
        (_, None) => message.reactions.push(sign.to_owned()),
    }
    Ok(nothing())
}

fn file(state: &mut State, incoming: &Incoming, parts: &[String]) -> Reply {
    // The real CDN is another server: a token that comes here has been given away.
    if header(incoming, "authorization").is_some() {
        state.complain("the token was sent to the CDN".to_owned());
    }
    match parts.first().and_then(|id| state.world.file(id)) {
        Some(file) => Reply {
            status: 200,
            headers: vec![("content-type".to_owned(), file.media_type.clone())],
            body: file.bytes.clone(),
        },
        None => refuse(404, 0, "404: Not Found").into(),
    }
}

fn body_of(incoming: &Incoming) -> Result<(Value, Vec<multipart::Part>), Refusal> {
    let content_type = header(incoming, "content-type").unwrap_or_default();
    let broken = |why: &str| refuse(400, 50109, &format!("The request body contains invalid JSON: {why}"));
    if content_type.starts_with("multipart/form-data") {
        let form = multipart::parse(content_type, &incoming.body).map_err(|why| broken(&why))?;
        let declared = form.payload["attachments"].as_array().map_or(0, Vec::len);
        if declared != form.files.len() {
            return Err(invalid("attachments", "Does not fit the files."));
        }
        return Ok((form.payload, form.files));
    }
    if content_type != "application/json" {
        return Err(broken("the content type is another"));
    }
    let payload = serde_json::from_slice(&incoming.body).map_err(|error| broken(&error.to_string()))?;
    Ok((payload, Vec::new()))
}

fn content(payload: &Value) -> Result<&str, Refusal> {
    let text = match &payload["content"] {
        Value::Null => "",
        Value::String(text) => text,
        _ => return Err(invalid("content", "Not a string.")),
    };
    if text.chars().count() > LONGEST {
        return Err(invalid("content", &format!("Must be {LONGEST} or fewer in length.")));
    }
    Ok(text)
}

fn nonce(payload: &Value) -> Result<Option<Value>, Refusal> {
    match &payload["nonce"] {
        Value::Null => Ok(None),
        Value::String(text) if text.len() > LONGEST_NONCE => {
            Err(invalid("nonce", &format!("Must be {LONGEST_NONCE} or fewer in length.")))
        }
        nonce @ (Value::String(_) | Value::Number(_)) => Ok(Some(nonce.clone())),
        _ => Err(invalid("nonce", "Neither a string nor a number.")),
    }
}

/// Whom a message pings: everybody it names, unless `allowed_mentions` says otherwise.
fn pings(state: &State, payload: &Value, text: &str) -> Vec<String> {
    let allows = |kind: &str| match payload["allowed_mentions"]["parse"].as_array() {
        Some(kinds) => kinds.iter().any(|allowed| allowed == kind),
        None => true,
    };
    let mut pinged = if allows("users") { state.world.named_in(text) } else { Vec::new() };
    if allows("everyone") && (text.contains("@everyone") || text.contains("@here")) {
        pinged.push("everyone".to_owned());
    }
    pinged
}

fn header<'a>(incoming: &'a Incoming, name: &str) -> Option<&'a str> {
    incoming.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn refuse(status: u16, code: u64, message: &str) -> Refusal {
    Refusal { status, body: json!({"message": message, "code": code}) }
}

fn invalid(field: &str, message: &str) -> Refusal {
    let errors = json!({field: {"_errors": [{"code": "INVALID", "message": message}]}});
    Refusal { status: 400, body: json!({"message": "Invalid Form Body", "code": 50035, "errors": errors}) }
}

fn json_reply(body: &Value) -> Reply {
    Reply { status: 200, headers: Vec::new(), body: body.to_string().into_bytes() }
}

fn nothing() -> Reply {
    Reply { status: 204, headers: Vec::new(), body: Vec::new() }
}

fn with_limits(mut reply: Reply, allowance: Option<Allowance>) -> Reply {
    if let Some(allowance) = allowance {
        let reset_after = format!("{:.3}", allowance.reset_after.as_secs_f64());
        let headers = [
            ("x-ratelimit-limit", allowance.limit.to_string()),
            ("x-ratelimit-remaining", allowance.remaining.to_string()),
            ("x-ratelimit-reset-after", reset_after),
        ];
        reply.headers.extend(headers.map(|(name, value)| (name.to_owned(), value)));
    }
    reply
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self { status: refusal.status, headers: Vec::new(), body: refusal.body.to_string().into_bytes() }
    }
}
