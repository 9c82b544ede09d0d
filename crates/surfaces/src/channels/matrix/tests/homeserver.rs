//! A homeserver that answers by a script, for what a real one never does when it is asked to.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a call is answered.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Json(u16, Value),
    /// Status, further header lines, body.
    Raw(u16, &'static str, String),
    /// The connection breaks after the call was taken.
    Lost,
    /// No answer comes.
    Never,
}

/// A call that came, as `GET /path?query`, and its body.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) line: String,
    pub(super) body: Value,
}

/// The server. It runs while a test does something with [`Homeserver::during`].
#[derive(Debug)]
pub(super) struct Homeserver {
    listener: TcpListener,
    script: Mutex<VecDeque<(&'static str, Reply)>>,
    calls: watch::Sender<Vec<Call>>,
}

impl Homeserver {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        Self { listener, script: Mutex::default(), calls: watch::Sender::default() }
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// The next call whose line contains these words is answered so. Without a script it says who the account is and that it is in no
    /// room, and holds each poll.
    pub(super) fn answer(&self, words: &'static str, reply: Reply) -> &Self {
        self.script.lock().unwrap().push_back((words, reply));
        self
    }

    /// Serves while something is done.
    pub(super) async fn during<T>(&self, doing: impl Future<Output = T>) -> T {
        tokio::select! {
            done = doing => done,
            () = self.serve() => unreachable!("it serves for ever"),
        }
    }

    /// Waits for a call whose line contains these words, and answers the first such.
    pub(super) async fn called(&self, words: &str) -> Call {
        let mut calls = self.calls.subscribe();
        let find = |calls: &Vec<Call>| calls.iter().find(|call| call.line.contains(words)).cloned();
        match timeout(PATIENCE, calls.wait_for(|calls| find(calls).is_some())).await {
            Ok(Ok(calls)) => find(&calls).unwrap(),
            _ => panic!("{words} was not called: {:#?}", self.calls.borrow()),
        }
    }

    /// How many calls came whose line contains these words.
    pub(super) fn count(&self, words: &str) -> usize {
        self.calls.borrow().iter().filter(|call| call.line.contains(words)).count()
    }

    async fn serve(&self) {
        let mut connections = FuturesUnordered::new();
        loop {
            // Both may be dropped: accepting loses no connection, and the others stay where they are.
            tokio::select! {
                accepted = self.listener.accept() => connections.push(self.talk(accepted.unwrap().0)),
                Some(_) = connections.next() => {}
            }
        }
    }

    /// One call on one connection. Errors mean that the other side has gone.
    async fn talk(&self, stream: TcpStream) -> io::Result<()> {
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
        let reply = self.reply(&line);
        self.calls.send_modify(|calls| calls.push(Call { line, body }));
        let (status, headers, body) = match reply {
            Reply::Json(status, body) => (status, "", body.to_string()),
            Reply::Raw(status, headers, body) => (status, headers, body),
            Reply::Lost => return Ok(()),
            Reply::Never => return std::future::pending().await,
        };
        let head =
            format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await
    }

    fn reply(&self, line: &str) -> Reply {
        let mut script = self.script.lock().unwrap();
        if let Some(index) = script.iter().position(|(words, _)| line.contains(words)) {
            return script.remove(index).unwrap().1;
        }
        if line.contains("/account/whoami") {
            Reply::Json(200, json!({"user_id": "@quell:quell.test", "device_id": "A"}))
        } else if line.contains("/displayname") {
            Reply::Json(404, json!({"errcode": "M_NOT_FOUND", "error": "no profile"}))
        } else if line.contains("since=") {
            Reply::Never
        } else if line.contains("/sync") {
            Reply::Json(200, json!({"next_batch": "s0"}))
        } else {
            Reply::Json(404, json!({"errcode": "M_UNRECOGNIZED", "error": "not in the script"}))
        }
    }
}
