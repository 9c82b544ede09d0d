//! A model server for tests that does exactly what its script says on a raw socket, and notes when each client left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long a test waits for something that has to happen before it fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the server does on one connection, after it has read the request.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes again and again until the client leaves.
    Flood(Vec<u8>),
    /// Waits until the test opens the gate.
    Gate,
    /// Closes the connection.
    Close,
}

/// The server. Each connection plays the next script; when its script is over it stays silent until the client leaves.
pub(super) struct Fake {
    address: String,
    facts: Arc<Facts>,
}

struct Facts {
    scripts: Mutex<std::vec::IntoIter<Vec<Step>>>,
    requests: Mutex<Vec<(String, Value)>>,
    asked: watch::Sender<usize>,
    left: watch::Sender<usize>,
    gate: watch::Sender<bool>,
}

impl Fake {
    pub(super) async fn start(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let facts = Arc::new(Facts {
            scripts: Mutex::new(scripts.into_iter()),
            requests: Mutex::default(),
            asked: watch::Sender::new(0),
            left: watch::Sender::new(0),
            gate: watch::Sender::new(false),
        });
        let serving = Arc::clone(&facts);
        #[expect(clippy::disallowed_methods, reason = "a test's server ends with the test's runtime")]
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(socket));
            }
        });
        Self { address, facts }
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Heads and bodies of the requests so far.
    pub(super) fn requests(&self) -> Vec<(String, Value)> {
        self.facts.requests.lock().unwrap().clone()
    }

    /// Waits until so many requests have been read.
    pub(super) async fn asked(&self, count: usize) {
        reached(&self.facts.asked, count, "requests").await;
    }

    /// Waits until so many clients have closed their connection.
    pub(super) async fn left(&self, count: usize) {
        reached(&self.facts.left, count, "clients that left").await;
    }

    pub(super) fn open_gate(&self) {
        self.facts.gate.send_replace(true);
    }
}

impl Facts {
    async fn serve(self: Arc<Self>, mut socket: TcpStream) {
        let request = read_request(&mut socket).await;
        let script = self.scripts.lock().unwrap().next().expect("a script for every connection");
        self.requests.lock().unwrap().push(request);
        self.asked.send_modify(|count| *count += 1);
        for step in script {
            match step {
                Step::Send(bytes) => {
                    // A client that has left cannot be written to; that it left is noted below.
                    let _ = socket.write_all(&bytes).await;
                    let _ = socket.flush().await;
                }
                Step::Flood(bytes) => while socket.write_all(&bytes).await.is_ok() {},
                Step::Gate => {
                    let _ = self.gate.subscribe().wait_for(|open| *open).await;
                }
                Step::Close => return,
            }
        }
        let mut rest = [0; 64];
        while matches!(socket.read(&mut rest).await, Ok(1..)) {}
        self.left.send_modify(|count| *count += 1);
    }
}

async fn reached(counter: &watch::Sender<usize>, count: usize, what: &str) {
    let mut counter = counter.subscribe();
    let waiting = counter.wait_for(|now| *now >= count);
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "there were never {count} {what}");
}

async fn read_request(socket: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        assert_ne!(socket.read_buf(&mut bytes).await.unwrap(), 0, "the client left before its request was whole");
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let length: usize = length.expect("a content-length");
    let mut body = bytes.split_off(head_end + 4);
    while body.len() < length {
        assert_ne!(socket.read_buf(&mut body).await.unwrap(), 0, "the client left before its request was whole");
    }
    (head, serde_json::from_slice(&body).unwrap())
}

/// The head of a stream that ends when the connection does.
pub(super) fn stream_head() -> Step {
    Step::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_vec())
}

/// One event.
pub(super) fn event(data: &str) -> Step {
    Step::Send(format!("data: {data}\n\n").into_bytes())
}

/// One event with a piece of text.
pub(super) fn text(delta: &str) -> Step {
    event(&serde_json::json!({"choices": [{"index": 0, "delta": {"content": delta}}]}).to_string())
}

/// The event that says why the model stopped.
pub(super) fn finish(reason: &str) -> Step {
    event(&serde_json::json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string())
}

/// The event with the provider's count.
pub(super) fn counted(input: u64, output: u64) -> Step {
    let usage = serde_json::json!({"prompt_tokens": input, "completion_tokens": output});
    event(&serde_json::json!({"choices": [], "usage": usage}).to_string())
}

/// A whole answer of one word.
pub(super) fn word(text_of_it: &str) -> Vec<Step> {
    vec![stream_head(), text(text_of_it), finish("stop"), event("[DONE]"), Step::Close]
}

/// An answer that is no stream.
pub(super) fn plain(status: &str, headers: &str, body: &str) -> Vec<Step> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    vec![Step::Send((head + body).into_bytes())]
}
