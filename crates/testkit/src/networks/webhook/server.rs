//! Answers of the receiver, with injected faults.

use serde_json::json;

use super::delivery_rules::{apply_post, parse_post};
use super::{FakeReceiverState, FakeWebhookFault, RecordedDelivery};
use crate::fake_server::FakeHttpReply;
use crate::fake_server::http1::RawHttpRequest;

pub(super) const POST_PATH: &str = "/hook/a-secret-of-the-receiver";

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
    let fault = state.faults.pop_front();
    let acts = matches!(fault, None | Some(FakeWebhookFault::LoseAnswer));
    let result = if acts { apply_post(state, &post) } else { Ok(json!({})) };
    let reply = match (fault, result) {
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
    };
    let answered = reply.as_ref().map(|reply| reply.status);
    state.deliveries.push(RecordedDelivery { event: post.event, id: post.id, body: post.body, answered });
    reply
}

fn error_reply(code: u16, why: &str) -> FakeHttpReply {
    FakeHttpReply::json(code, &json!({"reason": why}))
}
