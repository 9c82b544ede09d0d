//! HTTP server on loopback whose answers the test scripts and whose requests it records.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::stream;
use quell_protocol::{EventKind, Problem, RunEvent, RunId, SessionKey};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::daemon_client::{DaemonClient, DaemonTarget, ReconnectPolicy};

#[derive(Debug, Clone)]
pub struct ScriptedDaemonRequest {
    /// Method and path with query: `GET /api/runs?state=active`.
    pub route: String,
    pub last_event_id: Option<String>,
    pub token: Option<String>,
    pub surface: Option<String>,
    pub body: Value,
}

pub enum ScriptedDaemonReply {
    Json(u16, Value),
    Raw(u16, &'static str),
    Problem(Problem),
    Stream(mpsc::Receiver<ScriptedStreamPiece>),
    Silence,
}

/// A part of an event stream. Dropping the sender ends the stream cleanly.
pub enum ScriptedStreamPiece {
    Event(Box<RunEvent>),
    Text(String),
    /// Breaks the connection. Pieces that are not yet written out may be lost with it: wait until they have been seen.
    Break,
}

pub fn event_piece(seq: u64, kind: EventKind) -> ScriptedStreamPiece {
    ScriptedStreamPiece::Event(Box::new(RunEvent {
        run_id: RunId::parse("r1").unwrap(),
        session_key: SessionKey::parse("cli:default").unwrap(),
        seq,
        at: "2026-03-01T12:00:00.000000Z".into(),
        kind,
    }))
}

pub fn text_delta_piece(seq: u64, text: &str) -> ScriptedStreamPiece {
    event_piece(seq, EventKind::TextDelta { text: text.into() })
}

/// A stream that ends after these pieces.
pub fn stream_of(pieces: Vec<ScriptedStreamPiece>) -> mpsc::Receiver<ScriptedStreamPiece> {
    let (sender, receiver) = mpsc::channel(pieces.len().max(1));
    for piece in pieces {
        sender.try_send(piece).unwrap_or_else(|_| panic!("the channel is as long as the pieces"));
    }
    receiver
}

impl ScriptedStreamPiece {
    fn bytes(self) -> io::Result<Bytes> {
        match self {
            Self::Event(event) => {
                let data = serde_json::to_string(&event)?;
                Ok(format!("id: {}\nevent: {}\ndata: {data}\n\n", event.seq, event.name()).into())
            }
            Self::Text(text) => Ok(text.into()),
            Self::Break => Err(io::Error::other("cut by the test")),
        }
    }
}

pub struct ScriptedDaemon {
    pub addr: SocketAddr,
    requests: watch::Receiver<Vec<ScriptedDaemonRequest>>,
}

impl ScriptedDaemon {
    /// A daemon that answers each request with `reply`.
    pub fn start(reply: impl Fn(&ScriptedDaemonRequest) -> ScriptedDaemonReply + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let (request_log, requests) = watch::channel(Vec::new());
        let state = Arc::new((reply, request_log));
        let app = Router::new().fallback(move |request: Request| {
            let state = state.clone();
            async move {
                let asked = read_request(request).await;
                let reply = state.0(&asked);
                state.1.send_modify(|all| all.push(asked));
                Ok::<_, Infallible>(respond(reply).await)
            }
        });
        #[expect(clippy::disallowed_methods, reason = "ends with the runtime of the test")]
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { addr, requests }
    }

    /// A daemon that answers from a table of `METHOD /path` and JSON; everything else is 404.
    pub fn with_replies(table: Vec<(&'static str, Value)>) -> Self {
        Self::start(move |asked| match table.iter().find(|(what, _)| *what == asked.route) {
            Some((_, value)) => ScriptedDaemonReply::Json(200, value.clone()),
            None => ScriptedDaemonReply::Problem(not_found_problem()),
        })
    }

    /// A daemon that accepts a message as run `r1` and sends these event streams, one per connection. It also accepts a
    /// stop of the run.
    pub fn with_run(streams: Vec<mpsc::Receiver<ScriptedStreamPiece>>) -> Self {
        let streams = Mutex::new(VecDeque::from(streams));
        Self::start(move |asked| {
            let what = asked.route.as_str();
            if what.starts_with("GET /api/runs/r1/events") {
                return match streams.lock().unwrap().pop_front() {
                    Some(stream) => ScriptedDaemonReply::Stream(stream),
                    None => ScriptedDaemonReply::Problem(Problem::new(
                        quell_protocol::ErrorCode::TooManyConnections,
                        "none left",
                    )),
                };
            }
            match what {
                "POST /api/sessions/cli:default/runs" => ScriptedDaemonReply::Json(202, accepted_answer("running")),
                "POST /api/runs/r1/stop" => ScriptedDaemonReply::Json(202, stop_ticket("ending")),
                _ => ScriptedDaemonReply::Problem(not_found_problem()),
            }
        })
    }

    /// A client with a short reconnect policy.
    pub fn client(&self) -> DaemonClient {
        install_tls_provider();
        let policy = ReconnectPolicy {
            initial_pause: Duration::from_millis(1),
            max_pause: Duration::from_millis(4),
            give_up_after: Duration::from_millis(200),
        };
        DaemonClient::discover(&self.target()).unwrap().with_reconnect_policy(policy)
    }

    pub fn target(&self) -> DaemonTarget {
        DaemonTarget { url: Some(format!("http://{}", self.addr)), token: Some("secret".into()), data_dir: None }
    }

    pub fn requests(&self) -> Vec<ScriptedDaemonRequest> {
        self.requests.borrow().clone()
    }

    /// Waits until this route was requested `times` times; returns the last of these requests.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn wait_for_request(&self, what: &str, times: usize) -> ScriptedDaemonRequest {
        let mut asked = self.requests.clone();
        let matching = |all: &Vec<ScriptedDaemonRequest>| {
            all.iter().filter(|asked| asked.route == what).cloned().collect::<Vec<_>>()
        };
        let all = asked.wait_for(|all| matching(all).len() >= times).await.unwrap();
        matching(&all).pop().unwrap()
    }
}

/// The client needs a TLS provider even for plain HTTP. A second installation fails, which is fine.
pub fn install_tls_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

pub fn accepted_answer(state: &str) -> Value {
    json!({"runId": "r1", "sessionKey": "cli:default", "state": state})
}

pub fn stop_ticket(state: &str) -> Value {
    json!({
        "runId": "r1", "state": state, "aborted": true, "runIds": ["r1"],
        "verdict": {"kind": "aborted", "reason": "user"},
    })
}

pub fn not_found_problem() -> Problem {
    Problem::new(quell_protocol::ErrorCode::RunNotFound, "no run has this id")
}

/// A run as JSON, with the fields that the test changes.
pub fn run_view(run: &str, change: Value) -> Value {
    let mut view = json!({
        "runId": run, "sessionKey": "cli:default", "agent": "main", "state": "running", "phase": "waiting_llm",
        "principal": "admin", "surface": "http", "text": "hello", "acceptedAt": "2026-03-01T11:59:58Z",
        "steps": 1, "usage": {"inputTokens": 10, "outputTokens": 4, "estimated": false}, "seq": 7, "processes": 0,
    });
    for (key, value) in change.as_object().unwrap() {
        view[key] = value.clone();
    }
    view
}

async fn read_request(request: Request) -> ScriptedDaemonRequest {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let what = format!("{} {}", head.method, head.uri);
    let (cursor, token, surface) = (header("last-event-id"), header("authorization"), header("x-quell-surface"));
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into())
    };
    ScriptedDaemonRequest { route: what, last_event_id: cursor, token, surface, body }
}

async fn respond(reply: ScriptedDaemonReply) -> Response {
    let response = |status: u16, kind: &str, body: Body| {
        Response::builder().status(status).header("content-type", kind).body(body).unwrap()
    };
    match reply {
        ScriptedDaemonReply::Json(status, value) => response(status, "application/json", value.to_string().into()),
        ScriptedDaemonReply::Raw(status, text) => response(status, "text/html", text.into()),
        ScriptedDaemonReply::Problem(problem) => {
            let body = serde_json::to_string(&problem).unwrap();
            response(problem.status, "application/problem+json", body.into())
        }
        ScriptedDaemonReply::Stream(pieces) => {
            let body =
                stream::unfold(
                    pieces,
                    |mut pieces| async move { pieces.recv().await.map(|piece| (piece.bytes(), pieces)) },
                );
            response(200, "text/event-stream", Body::from_stream(body))
        }
        ScriptedDaemonReply::Silence => std::future::pending().await,
    }
}
