//! The wire: connections, and what goes wrong as the test wants it.

use std::io;

use bytes::BytesMut;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::rules::{act, read};
use super::{Delivery, Fault, State};
use crate::model::wire_http::{Incoming, plain, plain_head, read_request};

/// Where posts go.
pub(super) const PATH: &str = "/hook/a-secret-of-the-receiver";

/// Accepts connections until it is dropped.
pub(super) async fn run(listener: TcpListener, stage: watch::Sender<State>) {
    let mut connections = JoinSet::new();
    loop {
        // An accept that is dropped leaves the connection in the backlog; a join result is taken or not.
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, stage.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(mut stream: TcpStream, stage: watch::Sender<State>) {
    // A client that leaves in the middle is no concern of the test's: what it did is in the state.
    let _ = exchange(&mut stream, &stage).await;
}

async fn exchange(stream: &mut TcpStream, stage: &watch::Sender<State>) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        match answer(stage, &incoming) {
            Some(bytes) => stream.write_all(&bytes).await?,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// The bytes of an answer; `None` when the connection is closed instead.
fn answer(stage: &watch::Sender<State>, incoming: &Incoming) -> Option<Vec<u8>> {
    let mut answer = None;
    stage.send_modify(|state| {
        answer = if incoming.method == "GET" { Some(file(state, &incoming.path)) } else { post(state, incoming) };
    });
    answer
}

fn file(state: &State, path: &str) -> Vec<u8> {
    let Some(bytes) = state.files.get(path) else { return refusal(404, "there is no such file") };
    let mut answer = plain_head(200, &[], bytes.len()).into_bytes();
    answer.extend_from_slice(bytes);
    answer
}

fn post(state: &mut State, incoming: &Incoming) -> Option<Vec<u8>> {
    if incoming.path != PATH {
        return Some(refusal(404, "there is nothing here"));
    }
    let post = match read(incoming) {
        Ok(post) => post,
        Err((code, why)) => {
            state.refusals.push(why.clone());
            return Some(refusal(code, &why));
        }
    };
    let fault = state.faults.pop_front();
    let acts = matches!(fault, None | Some(Fault::LoseAnswer));
    let result = if acts { act(state, &post) } else { Ok(json!({})) };
    let (code, bytes) = match (fault, result) {
        (Some(Fault::Drop | Fault::LoseAnswer), _) => (None, None),
        (Some(Fault::Status(code, after)), _) => {
            let headers: Vec<_> =
                after.map(|after| ("retry-after".to_owned(), after.to_string())).into_iter().collect();
            (Some(code), Some(plain(code, &headers, r#"{"reason": "as the test wants"}"#)))
        }
        (Some(Fault::Page(code)), _) => (Some(code), Some(plain(code, &[], &format!("<p>Cannot POST {PATH}</p>")))),
        (None, Ok(body)) => (Some(200), Some(plain(200, &[], &body.to_string()))),
        (None, Err((code, why))) => {
            let bytes = refusal(code, &why);
            state.refusals.push(why);
            (Some(code), Some(bytes))
        }
    };
    state.deliveries.push(Delivery { event: post.event, id: post.id, body: post.body, answered: code });
    bytes
}

fn refusal(code: u16, why: &str) -> Vec<u8> {
    plain(code, &[], &json!({"reason": why}).to_string())
}
