//! What the fake networks share: connections, HTTP replies, and a state that tests wait for.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::WAIT_TIMEOUT;
use crate::model::http1::{RawHttpRequest, read_request, response_head};

#[derive(Debug, Clone)]
pub(super) struct FakeHttpReply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// Serves each connection in a task until it is dropped; the tasks end with it.
pub(super) async fn accept_loop<S, F>(listener: TcpListener, shared: Arc<S>, serve: impl Fn(TcpStream, Arc<S>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        // A dropped accept leaves the connection in the backlog.
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                // Only small frames are sent here; with Nagle's algorithm they would wait for each other.
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves requests until the client leaves or `answer` returns none.
pub(super) async fn serve_http(mut stream: TcpStream, answer: impl Fn(&RawHttpRequest) -> Option<FakeHttpReply>) {
    let serving = async {
        let mut buffer = BytesMut::new();
        while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
            let Some(reply) = answer(&incoming) else { return Ok(()) };
            stream.write_all(response_head(reply.status, &reply.headers, reply.body.len()).as_bytes()).await?;
            stream.write_all(&reply.body).await?;
        }
        io::Result::Ok(())
    };
    // Many tests let the client disconnect in the middle.
    let _ = serving.await;
}

/// Decodes percent encoding; other characters outside of ASCII are refused.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte if byte.is_ascii() => byte,
            _ => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Changes the state and tells those who wait for it; returns what `change` returns.
pub(super) fn update_state<S, T>(state: &watch::Sender<S>, change: impl FnOnce(&mut S) -> T) -> T {
    let (mut change, mut done) = (Some(change), None);
    state.send_modify(|state| done = change.take().map(|change| change(state)));
    match done {
        Some(done) => done,
        None => unreachable!("a change is made at once"),
    }
}

/// Waits until the state fulfils a condition; `what` names it in the failure.
pub(super) async fn wait_for_state<S: Clone + Debug>(
    state: &watch::Sender<S>,
    what: &str,
    condition: impl Fn(&S) -> bool,
) -> S {
    let mut watched = state.subscribe();
    match timeout(WAIT_TIMEOUT, watched.wait_for(|state| condition(state))).await {
        Ok(Ok(state)) => state.clone(),
        _ => panic!("waited {WAIT_TIMEOUT:?} for {what}: {:#?}", state.borrow()),
    }
}
