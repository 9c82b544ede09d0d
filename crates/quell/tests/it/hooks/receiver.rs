//! A receiver of webhooks: it keeps what came, and answers as the test says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use quell_protocol::hook::HookBody;
use quell_testkit::leaks;
use ring::hmac;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::harness::PATIENCE;

pub(super) const SECRET: &str = "correct horse battery staple";

/// How a request is answered.
#[derive(Debug, Clone)]
pub(super) enum Manner {
    Status(u16, &'static str),
    /// A redirect to somewhere else on the same receiver.
    Elsewhere,
    /// Never.
    Hang,
}

/// What came with one request.
#[derive(Debug, Clone)]
pub(super) struct Came {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

#[derive(Debug, Default)]
struct Desk {
    came: Vec<Came>,
    answers: VecDeque<Manner>,
}

type Shared = Arc<Mutex<Desk>>;

pub(super) struct ReceivingServer {
    address: SocketAddr,
    desk: Shared,
    task: JoinHandle<()>,
}

impl ReceivingServer {
    pub(super) async fn start() -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// One at this address, where there may have been one before.
    pub(super) async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let (address, desk) = (listener.local_addr().unwrap(), Shared::default());
        let router = Router::new().fallback(take).with_state(Arc::clone(&desk));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, desk, task }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Answers the next requests like this; 204 to all later ones.
    pub(super) fn answers(&self, answers: impl IntoIterator<Item = Manner>) {
        self.desk.lock().unwrap().answers.extend(answers);
    }

    /// What has come, once that are so many.
    pub(super) async fn came(&self, count: usize) -> Vec<Came> {
        let desk = Arc::clone(&self.desk);
        leaks::settled(PATIENCE, move || {
            let came = &desk.lock().unwrap().came;
            if came.len() >= count { Ok(()) } else { Err(format!("{} came, not {count}: {came:#?}", came.len())) }
        })
        .await;
        self.desk.lock().unwrap().came.clone()
    }

    /// Dies in the middle of whatever it does.
    pub(super) async fn die(self) {
        self.task.abort();
        // Aborted: that is what it was told.
        let _ = self.task.await;
    }
}

async fn take(State(desk): State<Shared>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let answer = {
        let mut desk = desk.lock().unwrap();
        desk.came.push(Came { path: parts.uri.path().to_owned(), headers: parts.headers, text });
        desk.answers.pop_front().unwrap_or(Manner::Status(204, ""))
    };
    match answer {
        Manner::Status(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Manner::Elsewhere => (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response(),
        Manner::Hang => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            StatusCode::NO_CONTENT.into_response()
        }
    }
}

impl Came {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {self:#?}")).to_str().unwrap()
    }

    /// The body, after everything was checked that a careful receiver checks.
    pub(super) fn checked(&self) -> HookBody {
        let body: HookBody = serde_json::from_str(&self.text).unwrap();
        assert_eq!((self.header("quell-event"), self.header("quell-delivery")), (body.event.word(), body.id.as_str()));
        assert_eq!(self.header("content-type"), "application/json");
        let timestamp = self.header("quell-timestamp");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(timestamp.parse::<u64>().unwrap()) < 60, "{timestamp}");
        let signature = self.header("quell-signature").strip_prefix("v1=").unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        let signed = format!("{timestamp}.{}", self.text);
        hmac::verify(&key, signed.as_bytes(), &bytes(signature)).unwrap();
        assert!(hmac::verify(&key, self.text.as_bytes(), &bytes(signature)).is_err());
        body
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len(), 64);
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
