//! Check posts, execute them and answer, with injected faults.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::{FakeReceiverState, FakeWebhookFault, RecordedDelivery, TOKEN, WebhookMessageView, sign};
use crate::fake_server::FakeHttpReply;
use crate::fake_server::http1::RawHttpRequest;

pub(super) const POST_PATH: &str = "/hook/a-secret-of-the-receiver";
/// Oldest accepted post, in seconds.
const MAX_AGE_S: u64 = 300;

/// Answers a request; none where the connection is closed instead.
pub(super) fn answer_request(state: &mut FakeReceiverState, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    if incoming.method == "GET" { Some(serve_file(state, &incoming.path)) } else { receive_post(state, incoming) }
}

fn serve_file(state: &FakeReceiverState, path: &str) -> FakeHttpReply {
    let Some(bytes) = state.files.get(path) else { return error_reply(404, "there is no such file") };
    FakeHttpReply::new(200, bytes.to_vec())
}

fn receive_post(state: &mut FakeReceiverState, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    if incoming.path != POST_PATH {
        return Some(error_reply(404, "there is nothing here"));
    }
    let post = match parse_post(incoming) {
        Ok(post) => post,
        Err((code, why)) => {
            state.refusals.push(why.clone());
            return Some(error_reply(code, &why));
        }
    };
    state.deliveries.push(post.clone());
    let fault = state.faults.pop_front();
    let acts = matches!(fault, None | Some(FakeWebhookFault::LoseAnswer));
    let result = if acts { apply_post(state, &post) } else { Ok(json!({})) };
    match (fault, result) {
        (Some(FakeWebhookFault::Drop | FakeWebhookFault::LoseAnswer), _) => None,
        (Some(FakeWebhookFault::Status(code, after)), _) => {
            let reply = error_reply(code, "as the test wants");
            Some(after.iter().fold(reply, |reply, after| reply.with_header("retry-after", after.to_string())))
        }
        (Some(FakeWebhookFault::HtmlPage(code)), _) => {
            Some(FakeHttpReply::html(code, format!("<p>Cannot POST {POST_PATH}</p>")))
        }
        (None, Ok(body)) => Some(FakeHttpReply::json(200, &body)),
        (None, Err((code, why))) => {
            let reply = error_reply(code, &why);
            state.refusals.push(why);
            Some(reply)
        }
    }
}

fn error_reply(code: u16, why: &str) -> FakeHttpReply {
    FakeHttpReply::json(code, &json!({"reason": why}))
}

pub(super) fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Parses a post; else returns the status and the reason of its refusal.
fn parse_post(incoming: &RawHttpRequest) -> Result<RecordedDelivery, (u16, String)> {
    let bad = |why: String| (400, why);
    let header = |wanted: &str| {
        let mut found = incoming.headers.iter().filter(|(name, _)| name == wanted);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Ok(value.clone()),
            _ => Err(bad(format!("there has to be one header {wanted}"))),
        }
    };
    if incoming.method != "POST" || header("content-type")? != "application/json" {
        return Err(bad("this is no POST of JSON".to_owned()));
    }
    let timestamp = header("quell-timestamp")?;
    let sent: i64 = timestamp.parse().map_err(|_| bad(format!("{timestamp:?} is no timestamp")))?;
    if header("quell-signature")? != sign(TOKEN, &timestamp, &incoming.body) {
        return Err((401, "the signature is wrong".to_owned()));
    }
    if sent.abs_diff(unix_now()) > MAX_AGE_S {
        return Err((401, "the post is too old".to_owned()));
    }
    let body: Value = serde_json::from_slice(&incoming.body).map_err(|error| bad(error.to_string()))?;
    let (event, id) = (header("quell-event")?, header("quell-delivery")?);
    if body["type"] != *event || body["id"] != *id || id.is_empty() {
        return Err(bad("the headers do not say what the body says".to_owned()));
    }
    Ok(RecordedDelivery { event, id, body })
}

/// Executes a post; returns the body of the answer. A repeated post has no further effect.
fn apply_post(state: &mut FakeReceiverState, post: &RecordedDelivery) -> Result<Value, (u16, String)> {
    let Some(fields) = post.body.as_object() else { return Err((400, "the body is no object".to_owned())) };
    match post.event.as_str() {
        "ping" => check_known_fields(fields, &["type", "channel", "id"]).map(|()| json!({})),
        "message" => {
            check_known_fields(fields, &["type", "channel", "id", "target", "thread", "text", "plain"])?;
            add_message(state, post)
        }
        "edit" => {
            check_known_fields(
                fields,
                &["type", "channel", "id", "target", "thread", "message", "revision", "text", "plain"],
            )?;
            edit_message(state, post)
        }
        other => Err((400, format!("there is no event {other:?}"))),
    }
}

fn add_message(state: &mut FakeReceiverState, post: &RecordedDelivery) -> Result<Value, (u16, String)> {
    if let Some(id) = state.ids_by_event.get(&post.id) {
        return Ok(json!({"id": id}));
    }
    let (target, text, plain) = (text_field(post, "target")?, text_field(post, "text")?, text_field(post, "plain")?);
    state.next_id += 1;
    let id = if state.omits_ids { post.id.clone() } else { format!("m{}", state.next_id) };
    let thread = post.body["thread"].as_str().map(str::to_owned);
    let shown = WebhookMessageView { id: id.clone(), thread, text, plain, edits: 0, revision: 0 };
    state.messages_by_target.entry(target).or_default().push(shown);
    state.ids_by_event.insert(post.id.clone(), id.clone());
    Ok(if state.omits_ids { json!({}) } else { json!({"id": id}) })
}

fn edit_message(state: &mut FakeReceiverState, post: &RecordedDelivery) -> Result<Value, (u16, String)> {
    let (target, text, plain) = (text_field(post, "target")?, text_field(post, "text")?, text_field(post, "plain")?);
    let revision = post.body["revision"].as_i64().ok_or((400, "revision is no number".to_owned()))?;
    let shown =
        state.messages_by_target.entry(target).or_default().iter_mut().find(|shown| post.body["message"] == *shown.id);
    let shown = shown.ok_or((404, "there is no such message".to_owned()))?;
    if shown.revision < revision {
        *shown = WebhookMessageView { text, plain, revision, edits: shown.edits + 1, ..shown.clone() };
    }
    Ok(json!({}))
}

fn text_field(post: &RecordedDelivery, field: &str) -> Result<String, (u16, String)> {
    let text = post.body[field].as_str().filter(|text| !text.trim().is_empty());
    text.map(str::to_owned).ok_or_else(|| (400, format!("{field} is empty or missing")))
}

fn check_known_fields(fields: &Map<String, Value>, names: &[&str]) -> Result<(), (u16, String)> {
    match fields.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => Err((400, format!("there is no field {name:?} here"))),
        None => Ok(()),
    }
}
