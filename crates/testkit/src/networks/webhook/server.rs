//! HTTP server of the receiver, with injected faults.

use std::io;

use bytes::BytesMut;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::delivery_rules::{apply_post, parse_post};
use super::{FakeReceiverState, FakeWebhookFault, RecordedDelivery};
use crate::model::http1::{RawHttpRequest, plain_response, read_request, response_head};

/// Path for posts.
pub(super) const POST_PATH: &str = "/hook/a-secret-of-the-receiver";

/// Accepts connections until it is dropped.
pub(super) async fn accept_loop(listener: TcpListener, stage: watch::Sender<FakeReceiverState>) {
    let mut connections = JoinSet::new();
    loop {
        // Cancel safe: a dropped accept leaves the connection in the backlog; join results are received or not.
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve_connection(stream, stage.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(mut stream: TcpStream, stage: watch::Sender<FakeReceiverState>) {
    // A client may disconnect in the middle; its effects are in the state.
    let _ = serve_requests(&mut stream, &stage).await;
}

async fn serve_requests(stream: &mut TcpStream, stage: &watch::Sender<FakeReceiverState>) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        match answer_request(stage, &incoming) {
            Some(bytes) => stream.write_all(&bytes).await?,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// The bytes of an answer; `None` when the connection is closed instead.
fn answer_request(stage: &watch::Sender<FakeReceiverState>, incoming: &RawHttpRequest) -> Option<Vec<u8>> {
    let mut answer = None;
    stage.send_modify(|state| {
        answer = if incoming.method == "GET" {
            Some(serve_file(state, &incoming.path))
        } else {
            receive_post(state, incoming)
        };
    });
    answer
}

fn serve_file(state: &FakeReceiverState, path: &str) -> Vec<u8> {
    let Some(bytes) = state.files.get(path) else { return error_response(404, "there is no such file") };
    let mut answer = response_head(200, &[], bytes.len()).into_bytes();
    answer.extend_from_slice(bytes);
    answer
}

fn receive_post(state: &mut FakeReceiverState, incoming: &RawHttpRequest) -> Option<Vec<u8>> {
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
            (Some(code), Some(plain_response(code, &headers, r#"{"reason": "as the test wants"}"#)))
        }
        (Some(FakeWebhookFault::HtmlPage(code)), _) => {
            (Some(code), Some(plain_response(code, &[], &format!("<p>Cannot POST {POST_PATH}</p>"))))
        }
        (None, Ok(body)) => (Some(200), Some(plain_response(200, &[], &body.to_string()))),
        (None, Err((code, why))) => {
            let bytes = error_response(code, &why);
            state.refusals.push(why);
            (Some(code), Some(bytes))
        }
    };
    state.deliveries.push(RecordedDelivery { event: post.event, id: post.id, body: post.body, answered: code });
    bytes
}

fn error_response(code: u16, why: &str) -> Vec<u8> {
    plain_response(code, &[], &json!({"reason": why}).to_string())
}
