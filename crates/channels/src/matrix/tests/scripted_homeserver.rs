//! HTTP server with scripted replies, for responses that a real homeserver seldom sends. It holds a poll until the script
//! has a reply for it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a test waits before it fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(super) enum ScriptedReply {
    Json(u16, Value),
    /// Status, further header lines, body.
    Raw(u16, &'static str, String),
    /// The connection breaks after the call was read.
    ConnectionLost,
    NoResponse,
}

/// A recorded call: its line as `GET /path?query`, and its body.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordedCall {
    pub(super) request_line: String,
    pub(super) body: Value,
}

/// The server. Dropping it closes its port and all connections.
#[derive(Debug)]
pub(super) struct ScriptedHomeserver {
    address: SocketAddr,
    script: Script,
    serving: JoinSet<()>,
}

/// What the connections of a server share.
#[derive(Debug, Clone, Default)]
struct Script {
    replies: watch::Sender<VecDeque<(&'static str, ScriptedReply)>>,
    calls: watch::Sender<Vec<RecordedCall>>,
    disconnect: Arc<Notify>,
}

impl ScriptedHomeserver {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, script) = (listener.local_addr().unwrap(), Script::default());
        let (serving_script, mut serving) = (script.clone(), JoinSet::new());
        serving.spawn(async move { serving_script.serve(listener).await });
        Self { address, script, serving }
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Uses `reply` for the next call whose line contains `words`. Calls outside the script get default replies: the
    /// account exists, it is in no room, each message is accepted, and each poll is held.
    pub(super) fn script_reply(&self, words: &'static str, reply: ScriptedReply) -> &Self {
        self.script.replies.send_modify(|replies| replies.push_back((words, reply)));
        self
    }

    /// Closes all connections, so that a reply of the script goes to no call of an earlier listener.
    pub(super) fn drop_connections(&self) {
        self.script.disconnect.notify_one();
    }

    pub(super) fn calls(&self) -> Vec<RecordedCall> {
        self.script.calls.borrow().clone()
    }

    /// Waits for a call whose line contains these words and returns the first one.
    pub(super) async fn wait_for_call(&self, words: &str) -> RecordedCall {
        let mut calls = self.script.calls.subscribe();
        let find = |calls: &Vec<RecordedCall>| calls.iter().find(|call| call.request_line.contains(words)).cloned();
        match timeout(WAIT_TIMEOUT, calls.wait_for(|calls| find(calls).is_some())).await {
            Ok(Ok(calls)) => find(&calls).unwrap(),
            _ => panic!("{words} was not called: {:#?}", self.calls()),
        }
    }

    /// Number of calls whose line contains these words.
    pub(super) fn count_calls(&self, words: &str) -> usize {
        self.script.calls.borrow().iter().filter(|call| call.request_line.contains(words)).count()
    }
}

impl Drop for ScriptedHomeserver {
    fn drop(&mut self) {
        assert!(self.serving.try_join_next().is_none() || std::thread::panicking(), "the server has panicked");
    }
}

impl Script {
    async fn serve(&self, listener: TcpListener) {
        let mut connections = FuturesUnordered::new();
        loop {
            // Each may be dropped: accepting loses no connection, and the other connections stay in the set.
            tokio::select! {
                biased;
                () = self.disconnect.notified() => connections.clear(),
                accepted = listener.accept() => connections.push(self.serve_connection(accepted.unwrap().0)),
                Some(_) = connections.next() => {}
            }
        }
    }

    /// Serves one call on one connection. An error means that the client has gone.
    async fn serve_connection(&self, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await?;
            match header.trim_end().to_ascii_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                Some(("authorization", value)) => assert_eq!(value.trim(), "bearer token"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        self.calls.send_modify(|calls| calls.push(RecordedCall { request_line: line.clone(), body }));
        let reply = tokio::select! {
            reply = self.wait_for_reply(&line) => reply,
            // The client has gone: the next one gets the reply.
            _ = stream.fill_buf() => return Ok(()),
        };
        let (status, headers, body) = match reply {
            ScriptedReply::Json(status, body) => (status, "", body.to_string()),
            ScriptedReply::Raw(status, headers, body) => (status, headers, body),
            ScriptedReply::ConnectionLost => return Ok(()),
            ScriptedReply::NoResponse => return std::future::pending().await,
        };
        let head =
            format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await
    }

    async fn wait_for_reply(&self, line: &str) -> ScriptedReply {
        let mut replies = self.replies.subscribe();
        loop {
            if let Some(reply) = self.scripted_reply(line) {
                return reply;
            }
            if !line.contains("since=") {
                return default_reply(line);
            }
            let _ = replies.changed().await;
        }
    }

    fn scripted_reply(&self, line: &str) -> Option<ScriptedReply> {
        let mut reply = None;
        self.replies.send_if_modified(|replies| {
            let index = replies.iter().position(|(words, _)| line.contains(words));
            reply = index.and_then(|index| replies.remove(index)).map(|(_, reply)| reply);
            reply.is_some()
        });
        reply
    }
}

fn default_reply(line: &str) -> ScriptedReply {
    if line.contains("/account/whoami") {
        ScriptedReply::Json(200, json!({"user_id": "@quell:quell.test", "device_id": "A"}))
    } else if line.contains("/displayname") {
        ScriptedReply::Json(404, json!({"errcode": "M_NOT_FOUND", "error": "no profile"}))
    } else if line.contains("/sync") {
        ScriptedReply::Json(200, json!({"next_batch": "s0"}))
    } else if let Some((_, transaction)) = line.split_once("/send/m.room.message/") {
        ScriptedReply::Json(200, json!({"event_id": format!("${transaction}")}))
    } else {
        ScriptedReply::Json(404, json!({"errcode": "M_UNRECOGNIZED", "error": "not in the script"}))
    }
}
