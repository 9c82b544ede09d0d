//! HTTP server of the fake: paths with tokens, long polls, and injected faults.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::multipart::parse_parts;
use super::methods::{bad_request, check_known_parameters, refusal, run_method, too_many_requests};
use super::state::{FakeTelegramFile, FakeTelegramState, TelegramCall};
use super::{FakeTelegramFault, TOKEN};
use crate::fake_server::http1::RawHttpRequest;
use crate::fake_server::{FakeHttpReply, SharedState, serve_http};

type SharedTelegramState = SharedState<FakeTelegramState>;

pub(super) async fn serve_connection(stream: TcpStream, stage: SharedTelegramState) {
    let _connected = stage.count(|state| &mut state.connections);
    serve_http(stream, |incoming| answer_request(&stage, incoming)).await;
}

/// The answer; `None` when the connection is closed instead.
async fn answer_request(stage: &SharedTelegramState, incoming: RawHttpRequest) -> Option<FakeHttpReply> {
    let path = incoming.path.clone();
    if let Some(file) = path.strip_prefix("/file/bot") {
        return Some(serve_download(stage, file));
    }
    let Some((token, method)) = path.strip_prefix("/bot").and_then(|rest| rest.split_once('/')) else {
        return Some(refusal(404, "Not Found"));
    };
    if token != TOKEN {
        // A malformed token is answered with 404, a wrong one with 401.
        let (code, description) = if token.contains(':') { (401, "Unauthorized") } else { (404, "Not Found") };
        return Some(refusal(code, description));
    }
    let request = match parse_request(method, &incoming) {
        Ok(request) => request,
        Err(refusal) => return Some(refusal),
    };
    let fault = record_call(stage, &request);
    let acts = matches!(fault, None | Some(FakeTelegramFault::LoseAnswer | FakeTelegramFault::ActThenHtmlPage(_)));
    let result = if !acts {
        Err(bad_request("as the test wants"))
    } else if request.method == "getUpdates" {
        get_updates(stage, &request.body).await
    } else {
        stage.update(|state| run_method(state, &request))
    };
    Some(match fault {
        None => match result {
            Ok(result) => FakeHttpReply::json(200, &json!({"ok": true, "result": result})),
            Err(refusal) => refusal,
        },
        Some(FakeTelegramFault::Refuse(code, description)) => refusal(code, description),
        Some(FakeTelegramFault::RateLimited(seconds)) => too_many_requests(seconds),
        Some(FakeTelegramFault::HtmlPage(code) | FakeTelegramFault::ActThenHtmlPage(code)) => html_reply(code, &path),
        Some(FakeTelegramFault::Silent) => return std::future::pending().await,
        Some(FakeTelegramFault::Drop | FakeTelegramFault::LoseAnswer) => return None,
    })
}

fn record_call(stage: &SharedTelegramState, request: &TelegramCall) -> Option<FakeTelegramFault> {
    stage.update(|state| {
        state.calls.push(request.clone());
        state.faults.get_mut(&request.method).and_then(VecDeque::pop_front)
    })
}

fn parse_request(method: &str, incoming: &RawHttpRequest) -> Result<TelegramCall, FakeHttpReply> {
    let content_type = incoming.header("content-type").unwrap_or_default();
    let (body, file) = match (incoming.method.as_str(), content_type) {
        ("GET", _) => (Value::Null, None),
        ("POST", "application/json") => {
            let body = serde_json::from_slice(&incoming.body);
            (body.map_err(|_| bad_request("can't parse JSON object"))?, None)
        }
        ("POST", form) if form.starts_with("multipart/form-data") => {
            parse_form(form, &incoming.body).map_err(bad_request)?
        }
        ("POST", "") if incoming.body.is_empty() => (Value::Null, None),
        _ => return Err(bad_request(format!("{} with {content_type:?} is not understood", incoming.method))),
    };
    Ok(TelegramCall { method: method.to_owned(), body, file, at: Instant::now() })
}

/// The fields of a form, and its file.
fn parse_form(content_type: &str, body: &Bytes) -> Result<(Value, Option<FakeTelegramFile>), &'static str> {
    let (mut fields, mut file) = (Map::new(), None);
    for part in parse_parts(content_type, body)? {
        match part.file_name {
            Some(_) if file.is_some() => return Err("two files"),
            Some(name) => {
                file = Some(FakeTelegramFile { kind: part.name, name, media_type: part.media_type, bytes: part.bytes });
            }
            None => {
                let text = std::str::from_utf8(&part.bytes).map_err(|_| "a field that is no UTF-8")?;
                // In a form, numbers and objects are sent as text.
                fields.insert(part.name, serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)));
            }
        }
    }
    Ok((Value::Object(fields), file))
}

/// Bot API: getUpdates. Of two waiting calls, the older is ended.
async fn get_updates(stage: &SharedTelegramState, body: &Value) -> Result<Value, FakeHttpReply> {
    check_known_parameters(body, &["offset", "limit", "timeout", "allowed_updates"])?;
    let limit = match body.get("limit") {
        None => 100,
        Some(limit) => {
            let limit = limit.as_u64().filter(|limit| (1..=100).contains(limit));
            usize::try_from(limit.ok_or_else(|| bad_request("limit must be between 1 and 100"))?).unwrap_or(100)
        }
    };
    let offset = body["offset"].as_i64().unwrap_or(0);
    let mine = begin_poll(stage, body, offset)?;
    let mut states = stage.subscribe();
    let due =
        |state: &FakeTelegramState| state.newest_poll != mine || state.updates.iter().any(|(id, _)| *id >= offset);
    let time = Duration::from_secs(body["timeout"].as_u64().unwrap_or(0));
    let waiting = (!time.is_zero()).then(|| stage.count(|state| &mut state.waiting_polls));
    // A timeout is no error: no update arrived.
    let _ = timeout(time, states.wait_for(due)).await;
    drop(waiting);
    let state = states.borrow();
    if state.newest_poll != mine {
        let why = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
        return Err(refusal(409, why));
    }
    let told = state.updates.iter().filter(|(id, _)| *id >= offset).take(limit);
    Ok(told.map(|(_, update)| update.clone()).collect())
}

/// Confirms updates up to the offset, and makes this the newest poll.
fn begin_poll(stage: &SharedTelegramState, body: &Value, offset: i64) -> Result<u64, FakeHttpReply> {
    let wanted = match body.get("allowed_updates") {
        None => None,
        Some(list) => {
            let names = serde_json::from_value::<Vec<String>>(list.clone());
            Some(names.map_err(|_| bad_request("can't parse allowed updates JSON array"))?)
        }
    };
    stage.update(|state| {
        if !state.webhook.is_empty() {
            let why = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the \
                webhook first";
            return Err(refusal(409, why));
        }
        state.confirm_updates(offset);
        state.allowed_updates = wanted.unwrap_or_else(|| state.allowed_updates.clone());
        state.newest_poll += 1;
        Ok(state.newest_poll)
    })
}

fn serve_download(stage: &SharedTelegramState, path: &str) -> FakeHttpReply {
    let wanted = path.strip_prefix(TOKEN).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
    stage.with_state(|state| match state.files.values().find(|(path, _)| path == wanted) {
        Some((_, bytes)) => {
            FakeHttpReply::new(200, bytes.to_vec()).with_header("content-type", "application/octet-stream")
        }
        None => refusal(404, "Not Found"),
    })
}

fn html_reply(code: u16, path: &str) -> FakeHttpReply {
    // Real pages have a head too. This one is so long that a page cut at 300 characters contains a cut token.
    let head = format!("<head><style>{}</style></head>", " ".repeat(190));
    FakeHttpReply::html(code, format!("<html>{head}<h1>{code}</h1><p>The requested URL {path} failed.</p></html>"))
}
