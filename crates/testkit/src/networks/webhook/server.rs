//! Answers of the receiver, with injected faults.

use serde_json::json;

use super::super::http::FakeHttpReply;
use super::delivery_rules::{apply_post, parse_post};
use super::{FakeReceiverState, FakeWebhookFault, RecordedDelivery};
use crate::model::http1::RawHttpRequest;

pub(super) const POST_PATH: &str = "/hook/a-secret-of-the-receiver";

/// Answers a request; none where the connection is closed instead.
pub(super) fn answer_request(state: &mut FakeReceiverState, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    if incoming.method == "GET" { Some(serve_file(state, &incoming.path)) } else { receive_post(state, incoming) }
}

fn serve_file(state: &FakeReceiverState, path: &str) -> FakeHttpReply {
    let Some(bytes) = state.files.get(path) else { return error_response(404, "there is no such file") };
    FakeHttpReply { status: 200, headers: Vec::new(), body: bytes.to_vec() }
}

fn receive_post(state: &mut FakeReceiverState, incoming: &RawHttpRequest) -> Option<FakeHttpReply> {
    if incoming.path != POST_PATH {
        return Some(error_response(404, "there is nothing here"));
    }
    let post = match parse_post(incoming) {
        Ok(post) => post,
        Err((code, why)) => {
            state.refusals.push(why.clone());
            return Some(error_response(code, &why));
        }
    };
    let fault = state.faults.pop_front();
    let acts = matches!(fault, None | Some(FakeWebhookFault::LoseAnswer));
    let result = if acts { apply_post(state, &post) } else { Ok(json!({})) };
    let (code, bytes) = match (fault, result) {
        (Some(FakeWebhookFault::Drop | FakeWebhookFault::LoseAnswer), _) => (None, None),
        (Some(FakeWebhookFault::Status(code, after)), _) => {
            let headers: Vec<_> =
                after.map(|after| ("retry-after".to_owned(), after.to_string())).into_iter().collect();
            (Some(code), Some(reply_with(code, headers, r#"{"reason": "as the test wants"}"#)))
        }
        (Some(FakeWebhookFault::HtmlPage(code)), _) => {
            (Some(code), Some(reply_with(code, Vec::new(), &format!("<p>Cannot POST {POST_PATH}</p>"))))
        }
        (None, Ok(body)) => (Some(200), Some(reply_with(200, Vec::new(), &body.to_string()))),
        (None, Err((code, why))) => {
            let bytes = error_response(code, &why);
            state.refusals.push(why);
            (Some(code), Some(bytes))
        }
    };
    state.deliveries.push(RecordedDelivery { event: post.event, id: post.id, body: post.body, answered: code });
    bytes
}

fn error_response(code: u16, why: &str) -> FakeHttpReply {
    reply_with(code, Vec::new(), &json!({"reason": why}).to_string())
}

fn reply_with(status: u16, headers: Vec<(String, String)>, body: &str) -> FakeHttpReply {
    FakeHttpReply { status, headers, body: body.as_bytes().to_vec() }
}
