//! A scripted HTTP server for tests of model calls; counts requests and disconnects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long a test waits for an event before it fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// One step on a connection, after the request was read.
#[derive(Debug, Clone)]
pub(super) enum FakeServerStep {
    Send(Vec<u8>),
    /// Sends these bytes repeatedly until the client disconnects.
    Flood(Vec<u8>),
    /// Waits until the test calls `open_gate`.
    Gate,
    Close,
}

/// A scripted server. Each connection plays the next script; after its script it stays silent until the client
/// disconnects.
pub(super) struct FakeModelServer {
    address: String,
    state: Arc<FakeServerState>,
}

struct FakeServerState {
    scripts: Mutex<std::vec::IntoIter<Vec<FakeServerStep>>>,
    requests: Mutex<Vec<(String, Value)>>,
    request_count: watch::Sender<usize>,
    disconnect_count: watch::Sender<usize>,
    gate: watch::Sender<bool>,
}

impl FakeModelServer {
    pub(super) async fn start(scripts: Vec<Vec<FakeServerStep>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let facts = Arc::new(FakeServerState {
            scripts: Mutex::new(scripts.into_iter()),
            requests: Mutex::default(),
            request_count: watch::Sender::new(0),
            disconnect_count: watch::Sender::new(0),
            gate: watch::Sender::new(false),
        });
        let serving = Arc::clone(&facts);
        #[expect(clippy::disallowed_methods, reason = "a test's server ends with the test's runtime")]
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(socket));
            }
        });
        Self { address, state: facts }
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Heads and bodies of the requests so far.
    pub(super) fn requests(&self) -> Vec<(String, Value)> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(super) async fn wait_for_requests(&self, count: usize) {
        wait_for_count(&self.state.request_count, count, "requests").await;
    }

    pub(super) async fn wait_for_disconnects(&self, count: usize) {
        wait_for_count(&self.state.disconnect_count, count, "clients that left").await;
    }

    pub(super) fn open_gate(&self) {
        self.state.gate.send_replace(true);
    }
}

impl FakeServerState {
    async fn serve(self: Arc<Self>, mut socket: TcpStream) {
        let request = read_request(&mut socket).await;
        let script = self.scripts.lock().unwrap().next().expect("a script for every connection");
        self.requests.lock().unwrap().push(request);
        self.request_count.send_modify(|count| *count += 1);
        for step in script {
            match step {
                FakeServerStep::Send(bytes) => {
                    // Writing to a disconnected client fails; the disconnect is counted below.
                    let _ = socket.write_all(&bytes).await;
                    let _ = socket.flush().await;
                }
                FakeServerStep::Flood(bytes) => while socket.write_all(&bytes).await.is_ok() {},
                FakeServerStep::Gate => {
                    let _ = self.gate.subscribe().wait_for(|open| *open).await;
                }
                FakeServerStep::Close => return,
            }
        }
        let mut rest = [0; 64];
        while matches!(socket.read(&mut rest).await, Ok(1..)) {}
        self.disconnect_count.send_modify(|count| *count += 1);
    }
}

async fn wait_for_count(counter: &watch::Sender<usize>, count: usize, what: &str) {
    let mut counter = counter.subscribe();
    let waiting = counter.wait_for(|now| *now >= count);
    assert!(tokio::time::timeout(TEST_TIMEOUT, waiting).await.is_ok(), "there were never {count} {what}");
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
    let length: usize = length.unwrap_or_default();
    let mut body = bytes.split_off(head_end + 4);
    while body.len() < length {
        assert_ne!(socket.read_buf(&mut body).await.unwrap(), 0, "the client left before its request was whole");
    }
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    (head, body)
}

/// The head of a streamed response that ends with its connection.
pub(super) fn stream_head() -> FakeServerStep {
    FakeServerStep::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_vec())
}

pub(super) fn event_step(data: &str) -> FakeServerStep {
    FakeServerStep::Send(format!("data: {data}\n\n").into_bytes())
}

/// An event with a piece of text.
pub(super) fn text_step(delta: &str) -> FakeServerStep {
    event_step(&serde_json::json!({"choices": [{"index": 0, "delta": {"content": delta}}]}).to_string())
}

pub(super) fn finish_step(reason: &str) -> FakeServerStep {
    event_step(&serde_json::json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string())
}

/// An event with the provider's token counts.
pub(super) fn usage_step(input: u64, output: u64) -> FakeServerStep {
    let usage = serde_json::json!({"prompt_tokens": input, "completion_tokens": output});
    event_step(&serde_json::json!({"choices": [], "usage": usage}).to_string())
}

pub(super) fn one_word_answer(answer_text: &str) -> Vec<FakeServerStep> {
    vec![stream_head(), text_step(answer_text), finish_step("stop"), event_step("[DONE]"), FakeServerStep::Close]
}

/// A response that is not a stream.
pub(super) fn plain_response(status: &str, headers: &str, body: &str) -> Vec<FakeServerStep> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    vec![FakeServerStep::Send((head + body).into_bytes())]
}
