//! The Web API: what is asked is checked as strictly as Slack checks it. What the methods do is elsewhere.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::state::{Fault, State};
use super::{APP_TOKEN, BOT_TOKEN, methods};
use crate::model::wire_http::Incoming;

/// Methods that take JSON, and those that take a form alone.
const JSON_METHODS: &[&str] = &[
    "auth.test",
    "apps.connections.open",
    "chat.postMessage",
    "chat.update",
    "reactions.add",
    "reactions.remove",
    "files.completeUploadExternal",
];
const FORM_METHODS: &[&str] = &["files.getUploadURLExternal"];

/// An answer.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// An error of Slack.
pub(super) type Refusal = &'static str;

/// Answers a request; nothing where the connection is to be closed instead.
pub(super) fn answer(state: &mut State, incoming: &Incoming) -> Option<Reply> {
    let path = incoming.path.split('?').next().unwrap_or_default();
    let words: Vec<&str> = path.split('/').skip(1).collect();
    match (incoming.method.as_str(), words.as_slice()) {
        ("POST", ["api", method]) => call(state, method, incoming),
        ("GET", ["files-pri", id, _name]) => with_fault(state, "files", |state| file(state, id, incoming)),
        ("POST", ["upload", "v1", id]) => with_fault(state, "upload", |state| upload(state, id, incoming)),
        _ => {
            state.complain(format!("no such route: {} {path}", incoming.method));
            Some(page(404))
        }
    }
}

fn call(state: &mut State, method: &str, incoming: &Incoming) -> Option<Reply> {
    let body = match body_of(method, incoming) {
        Ok(body) => body,
        Err(refusal) => {
            state.complain(format!("{method}: {refusal}"));
            return Some(refused(refusal));
        }
    };
    state.calls.push(super::Call { method: method.to_owned(), body: body.clone() });
    if let Err(refusal) = check_token(method, incoming) {
        return Some(refused(refusal));
    }
    with_fault(state, method, |state| {
        let channel = body["channel"].as_str().unwrap_or_default();
        if let Err(after) = state.count(method, channel, Instant::now()) {
            return too_many(after);
        }
        let scopes = ("x-oauth-scopes".to_owned(), state.scopes.clone());
        match methods::act(state, method, &body) {
            Ok(mut told) => {
                told["ok"] = json!(true);
                Reply { status: 200, headers: vec![scopes], body: told.to_string().into_bytes() }
            }
            Err(refusal) => refused(refusal),
        }
    })
}

fn with_fault(state: &mut State, method: &str, act: impl FnOnce(&mut State) -> Reply) -> Option<Reply> {
    match state.take_fault(method) {
        Some(Fault::Error(error)) => Some(refused(error)),
        Some(Fault::TooMany(seconds)) => Some(too_many(Duration::from_secs(seconds))),
        Some(Fault::Page(status)) => Some(page(status)),
        Some(Fault::CloseBefore) => None,
        Some(Fault::LoseAnswer) => {
            act(state);
            None
        }
        None => Some(act(state)),
    }
}

fn body_of(method: &str, incoming: &Incoming) -> Result<Value, Refusal> {
    let content_type = header(incoming, "content-type").unwrap_or_default();
    match content_type.split(';').next().unwrap_or_default().trim() {
        _ if !JSON_METHODS.contains(&method) && !FORM_METHODS.contains(&method) => Err("unknown_method"),
        "application/json" if JSON_METHODS.contains(&method) => {
            serde_json::from_slice(&incoming.body).map_err(|_| "invalid_json")
        }
        "application/json" => Err("invalid_arguments"),
        "application/x-www-form-urlencoded" => form(&incoming.body).ok_or("invalid_form_data"),
        _ => Err("invalid_post_type"),
    }
}

fn form(body: &[u8]) -> Option<Value> {
    let mut fields = Map::new();
    for pair in std::str::from_utf8(body).ok()?.split('&') {
        let (name, value) = pair.split_once('=')?;
        fields.insert(decoded(name)?, Value::String(decoded(value)?));
    }
    Some(Value::Object(fields))
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn check_token(method: &str, incoming: &Incoming) -> Result<(), Refusal> {
    let wants_app = method == "apps.connections.open";
    match header(incoming, "authorization").map(|value| value.strip_prefix("Bearer ")) {
        None => Err("not_authed"),
        Some(Some(APP_TOKEN)) if wants_app => Ok(()),
        Some(Some(BOT_TOKEN)) if !wants_app => Ok(()),
        Some(Some(APP_TOKEN | BOT_TOKEN)) => Err("not_allowed_token_type"),
        Some(_) => Err("invalid_auth"),
    }
}

fn file(state: &mut State, id: &str, incoming: &Incoming) -> Reply {
    let is_bot = header(incoming, "authorization") == Some(&format!("Bearer {BOT_TOKEN}"));
    if !is_bot || !state.scopes.contains("files:read") {
        // Slack sends whoever may not see a file to sign in.
        let place = ("location".to_owned(), "https://slack.com/signin".to_owned());
        return Reply { status: 302, headers: vec![place], body: Vec::new() };
    }
    match state.world.file(id) {
        Some(file) => {
            let headers = vec![("content-type".to_owned(), file.media_type.clone())];
            Reply { status: 200, headers, body: file.bytes.clone() }
        }
        None => page(404),
    }
}

fn upload(state: &mut State, id: &str, incoming: &Incoming) -> Reply {
    if header(incoming, "authorization").is_some() {
        state.complain("a token was sent to where files go".to_owned());
    }
    match state.uploads.get_mut(id) {
        Some(upload) if upload.length == incoming.body.len() => {
            upload.file.bytes = incoming.body.to_vec();
            upload.has_come = true;
            Reply { status: 200, headers: Vec::new(), body: format!("OK - {}", upload.length).into_bytes() }
        }
        _ => page(400),
    }
}

fn header<'a>(incoming: &'a Incoming, name: &str) -> Option<&'a str> {
    incoming.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn refused(error: &str) -> Reply {
    let mut body = json!({"ok": false, "error": error});
    if error == "missing_scope" {
        body["needed"] = json!("chat:write");
    }
    Reply { status: 200, headers: Vec::new(), body: body.to_string().into_bytes() }
}

/// Slack: rate limits. Whole seconds.
fn too_many(after: Duration) -> Reply {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    let headers = vec![("retry-after".to_owned(), seconds.to_string())];
    Reply { status: 429, headers, body: json!({"ok": false, "error": "ratelimited"}).to_string().into_bytes() }
}

fn page(status: u16) -> Reply {
    let headers = vec![("content-type".to_owned(), "text/html".to_owned())];
    Reply { status, headers, body: b"<html><body>Something went wrong.</body></html>".to_vec() }
}
