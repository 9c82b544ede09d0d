//! The Web API: checks requests as strictly as Slack does. `methods` executes them.

mod blocks;
mod methods;

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::state::{FakeSlackFault, FakeSlackState};
use super::{APP_TOKEN, BOT_TOKEN};
use crate::fake_server::http1::RawHttpRequest;
use crate::fake_server::{FakeHttpReply, percent_decode};

/// Methods with the names of their parameters.
const METHODS: &[(&str, &str)] = &[
    ("auth.test", ""),
    ("apps.connections.open", ""),
    ("chat.postMessage", "channel text blocks thread_ts mrkdwn unfurl_links unfurl_media"),
    ("chat.postEphemeral", "channel user text thread_ts"),
    ("chat.update", "channel ts text blocks"),
    ("reactions.add", "channel timestamp name"),
    ("reactions.remove", "channel timestamp name"),
    ("files.getUploadURLExternal", "filename length"),
    ("files.completeUploadExternal", "files channel_id thread_ts"),
];
/// The method that accepts only a form.
const FORM_METHOD: &str = "files.getUploadURLExternal";

type FakeSlackError = &'static str;

/// Answers a request; none where the connection is closed instead.
pub(super) fn answer_request(state: &mut FakeSlackState, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    let path = incoming.path.split('?').next().unwrap_or_default();
    let words: Vec<&str> = path.split('/').skip(1).collect();
    match (incoming.method.as_str(), words.as_slice()) {
        ("POST", ["api", method]) => call_method(state, method, incoming),
        ("GET", ["files-pri", id, _name]) => apply_fault(state, "files", |state| serve_file(state, id, incoming)),
        ("POST", ["upload", "v1", id]) => apply_fault(state, "upload", |state| receive_upload(state, id, incoming)),
        _ => {
            state.client_errors.push(format!("no such route: {} {path}", incoming.method));
            Some(html_reply(404))
        }
    }
}

fn call_method(state: &mut FakeSlackState, method: &str, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    let body = match parse_body(method, incoming) {
        Ok(body) => body,
        Err(refusal) => {
            state.client_errors.push(format!("{method}: {refusal}"));
            return Some(error_reply(refusal));
        }
    };
    state.calls.push(super::SlackCall { method: method.to_owned(), body: body.clone() });
    if let Err(refusal) = check_token(method, incoming) {
        return Some(error_reply(refusal));
    }
    apply_fault(state, method, |state| {
        let channel = body["channel"].as_str().unwrap_or_default();
        if let Err(after) = state.count_call(method, channel, Instant::now()) {
            return rate_limit_reply(after);
        }
        let scopes = state.scopes.clone();
        match methods::run_method(state, method, &body) {
            Ok(mut told) => {
                told["ok"] = json!(true);
                FakeHttpReply::json(200, &told).with_header("x-oauth-scopes", scopes)
            }
            Err(refusal) => error_reply(refusal),
        }
    })
}

fn apply_fault(
    state: &mut FakeSlackState,
    method: &str,
    act: impl FnOnce(&mut FakeSlackState) -> FakeHttpReply,
) -> Option<FakeHttpReply> {
    match state.take_fault(method) {
        Some(FakeSlackFault::Error(error)) => Some(error_reply(error)),
        Some(FakeSlackFault::RateLimited(seconds)) => Some(rate_limit_reply(Duration::from_secs(seconds))),
        Some(FakeSlackFault::HtmlPage(status)) => Some(html_reply(status)),
        Some(FakeSlackFault::CloseBefore) => None,
        Some(FakeSlackFault::LoseAnswer) => {
            act(state);
            None
        }
        None => Some(act(state)),
    }
}

fn parse_body(method: &str, incoming: &RawHttpRequest) -> Result<Value, FakeSlackError> {
    let content_type = incoming.header("content-type").unwrap_or_default();
    match content_type.split(';').next().unwrap_or_default().trim() {
        _ if METHODS.iter().all(|(known, _)| *known != method) => Err("unknown_method"),
        "application/json" if method == FORM_METHOD => Err("invalid_arguments"),
        "application/json" => serde_json::from_slice(&incoming.body).map_err(|_| "invalid_json"),
        "application/x-www-form-urlencoded" => parse_form(&incoming.body).ok_or("invalid_form_data"),
        _ => Err("invalid_post_type"),
    }
}

fn parse_form(body: &[u8]) -> Option<Value> {
    let mut fields = Map::new();
    for pair in std::str::from_utf8(body).ok()?.split('&') {
        let (name, value) = pair.split_once('=')?;
        fields
            .insert(percent_decode(&name.replace('+', " "))?, Value::String(percent_decode(&value.replace('+', " "))?));
    }
    Some(Value::Object(fields))
}

fn check_token(method: &str, incoming: &RawHttpRequest) -> Result<(), FakeSlackError> {
    let wants_app = method == "apps.connections.open";
    match incoming.header("authorization").map(|value| value.strip_prefix("Bearer ")) {
        None => Err("not_authed"),
        Some(Some(APP_TOKEN)) if wants_app => Ok(()),
        Some(Some(BOT_TOKEN)) if !wants_app => Ok(()),
        Some(Some(APP_TOKEN | BOT_TOKEN)) => Err("not_allowed_token_type"),
        Some(_) => Err("invalid_auth"),
    }
}

fn serve_file(state: &mut FakeSlackState, id: &str, incoming: &RawHttpRequest) -> FakeHttpReply {
    let is_bot = incoming.header("authorization") == Some(&format!("Bearer {BOT_TOKEN}"));
    if !is_bot || !state.scopes.contains("files:read") {
        // Slack redirects a client without access to its sign-in page.
        return FakeHttpReply::new(302, "").with_header("location", "https://slack.com/signin");
    }
    match state.chat_data.file(id) {
        Some(file) => FakeHttpReply::new(200, file.bytes.clone()).with_header("content-type", &file.media_type),
        None => html_reply(404),
    }
}

fn receive_upload(state: &mut FakeSlackState, id: &str, incoming: &RawHttpRequest) -> FakeHttpReply {
    if incoming.header("authorization").is_some() {
        state.client_errors.push("a token was sent to where files go".to_owned());
    }
    match state.uploads.get_mut(id) {
        Some(upload) if upload.length == incoming.body.len() => {
            upload.file.bytes = incoming.body.to_vec();
            upload.is_complete = true;
            FakeHttpReply::new(200, format!("OK - {}", upload.length))
        }
        _ => html_reply(400),
    }
}

fn error_reply(error: &str) -> FakeHttpReply {
    let mut body = json!({"ok": false, "error": error});
    if error == "missing_scope" {
        body["needed"] = json!("chat:write");
    }
    FakeHttpReply::json(200, &body)
}

/// Slack: rate limits. Whole seconds.
fn rate_limit_reply(after: Duration) -> FakeHttpReply {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    FakeHttpReply::json(429, &json!({"ok": false, "error": "ratelimited"}))
        .with_header("retry-after", seconds.to_string())
}

fn html_reply(status: u16) -> FakeHttpReply {
    FakeHttpReply::html(status, "<html><body>Something went wrong.</body></html>")
}
