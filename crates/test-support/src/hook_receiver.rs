//! Test support: an HTTP receiver of webhooks that records requests and replies as told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use ring::hmac;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use quell_protocol::hook::HookBody;

use crate::prelude::*;

pub const SECRET: &str = "correct horse battery staple";

#[derive(Debug, Clone)]
pub enum HookReceiverReply {
    Status(u16, &'static str),
    /// A redirect to another path of the same receiver.
    Redirect,
    Hang,
}

#[derive(Debug, Clone)]
pub struct ReceivedHookRequest {
    pub path: String,
    pub headers: HeaderMap,
    pub text: String,
}

#[derive(Debug, Default)]
struct HookReceiverState {
    received: Vec<ReceivedHookRequest>,
    replies: VecDeque<HookReceiverReply>,
}

type SharedHookReceiverState = Arc<Mutex<HookReceiverState>>;

pub struct HookReceiver {
    address: SocketAddr,
    state: SharedHookReceiverState,
    task: JoinHandle<()>,
}

impl HookReceiver {
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Binds this address, which an earlier receiver may have used.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), SharedHookReceiverState::default());
        let router = Router::new().fallback(record_request).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state, task }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Replies to the next requests; all later ones get 204.
    pub fn queue_replies(&self, replies: impl IntoIterator<Item = HookReceiverReply>) {
        self.state.lock().unwrap().replies.extend(replies);
    }

    /// Waits until `count` requests have arrived, and returns all requests.
    pub async fn wait_received(&self, count: usize) -> Vec<ReceivedHookRequest> {
        poll_until(&format!("{count} requests"), async || {
            let received = self.state.lock().unwrap().received.clone();
            (received.len() >= count).then_some(received)
        })
        .await
    }

    /// Aborts the server, also in the middle of a request.
    pub async fn abort(self) {
        self.task.abort();
        // It ends with the error of an aborted task.
        let _ = self.task.await;
    }
}

async fn record_request(State(state): State<SharedHookReceiverState>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let answer = {
        let mut state = state.lock().unwrap();
        state.received.push(ReceivedHookRequest { path: parts.uri.path().to_owned(), headers: parts.headers, text });
        state.replies.pop_front().unwrap_or(HookReceiverReply::Status(204, ""))
    };
    match answer {
        HookReceiverReply::Status(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        HookReceiverReply::Redirect => (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response(),
        HookReceiverReply::Hang => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            StatusCode::NO_CONTENT.into_response()
        }
    }
}

impl ReceivedHookRequest {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {self:#?}")).to_str().unwrap()
    }

    /// The body, after the checks that a careful receiver makes: headers, timestamp and signature.
    pub fn verified_body(&self) -> HookBody {
        let body: HookBody = serde_json::from_str(&self.text).unwrap();
        let headers = ["quell-event", "quell-delivery", "content-type"].map(|name| self.header(name));
        assert_eq!(headers, [body.event.as_str(), &body.id, "application/json"]);
        let timestamp = self.header("quell-timestamp");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(timestamp.parse::<u64>().unwrap()) < 60, "{timestamp}");
        let signature = self.header("quell-signature").strip_prefix("v1=").unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        let signed = format!("{timestamp}.{}", self.text);
        hmac::verify(&key, signed.as_bytes(), &decode_hex(signature)).unwrap();
        assert!(hmac::verify(&key, self.text.as_bytes(), &decode_hex(signature)).is_err());
        body
    }
}

fn decode_hex(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len(), 64);
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
