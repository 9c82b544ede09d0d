//! A scripted daemon on loopback: real HTTP, answers made by the test, every request kept for the test to read.

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

use crate::link::{Link, Patience, Target};

/// A request, as the daemon got it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Method and path with query: `GET /api/runs?state=active`.
    pub(crate) what: String,
    pub(crate) cursor: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) surface: Option<String>,
    pub(crate) body: Value,
}

/// What the daemon answers.
pub(crate) enum Reply {
    Json(u16, Value),
    Raw(u16, &'static str),
    Problem(Problem),
    Stream(mpsc::Receiver<Piece>),
    /// Never answers.
    Silence,
}

/// A part of an event stream. Dropping the sender ends the stream in good order.
pub(crate) enum Piece {
    Event(Box<RunEvent>),
    Text(String),
    /// The connection breaks. What was not yet written out may be lost with it: wait until the earlier pieces are seen.
    Cut,
}

/// One event of run `r1`.
pub(crate) fn event(seq: u64, kind: EventKind) -> Piece {
    Piece::Event(Box::new(RunEvent {
        run_id: RunId::parse("r1").unwrap(),
        session_key: SessionKey::parse("cli:default").unwrap(),
        seq,
        at: "2026-03-01T12:00:00.000000Z".into(),
        kind,
    }))
}

pub(crate) fn delta(seq: u64, text: &str) -> Piece {
    event(seq, EventKind::TextDelta { text: text.into() })
}

impl Piece {
    fn bytes(self) -> io::Result<Bytes> {
        match self {
            Self::Event(event) => {
                let data = serde_json::to_string(&event)?;
                Ok(format!("id: {}\nevent: {}\ndata: {data}\n\n", event.seq, event.name()).into())
            }
            Self::Text(text) => Ok(text.into()),
            Self::Cut => Err(io::Error::other("cut by the test")),
        }
    }
}

pub(crate) struct Daemon {
    pub(crate) addr: SocketAddr,
    asked: watch::Receiver<Vec<Asked>>,
}

impl Daemon {
    /// A daemon that answers each request by `reply`.
    pub(crate) async fn start(reply: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, asked) = watch::channel(Vec::new());
        let state = Arc::new((reply, tell));
        let app = Router::new().fallback(move |request: Request| {
            let state = state.clone();
            async move {
                let asked = read(request).await;
                let reply = state.0(&asked);
                state.1.send_modify(|all| all.push(asked));
                Ok::<_, Infallible>(respond(reply).await)
            }
        });
        #[expect(clippy::disallowed_methods, reason = "the daemon of a test lives as long as its runtime")]
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { addr, asked }
    }

    /// A daemon that answers by a table of `METHOD /path` and JSON; what is not in it is not found.
    pub(crate) async fn of(table: Vec<(&'static str, Value)>) -> Self {
        Self::start(move |asked| match table.iter().find(|(what, _)| *what == asked.what) {
            Some((_, value)) => Reply::Json(200, value.clone()),
            None => Reply::Problem(not_found()),
        })
        .await
    }

    /// A daemon that takes a message as run `r1` and then shows these streams of events, one per connection; stops and reads
    /// of the run are answered too.
    pub(crate) async fn with_run(streams: Vec<mpsc::Receiver<Piece>>) -> Self {
        let streams = Mutex::new(VecDeque::from(streams));
        Self::start(move |asked| {
            let what = asked.what.as_str();
            if what.starts_with("GET /api/runs/r1/events") {
                return match streams.lock().unwrap().pop_front() {
                    Some(stream) => Reply::Stream(stream),
                    None => Reply::Problem(Problem::new(quell_protocol::ErrorCode::TooManyConnections, "none left")),
                };
            }
            match what {
                "POST /api/sessions/cli:default/runs" => Reply::Json(202, accepted("running")),
                "POST /api/runs/r1/stop" => Reply::Json(202, ticket("ending")),
                _ => Reply::Problem(not_found()),
            }
        })
        .await
    }

    /// A link to it that loses its patience fast.
    pub(crate) fn link(&self) -> Link {
        provide_tls();
        let patience = Patience {
            first: Duration::from_millis(1),
            longest: Duration::from_millis(4),
            give_up: Duration::from_millis(200),
        };
        Link::discover(&self.target()).unwrap().with_patience(patience)
    }

    pub(crate) fn target(&self) -> Target {
        Target { url: Some(format!("http://{}", self.addr)), token: Some("secret".into()), data_dir: None }
    }

    /// Every request so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    /// Waits until `what` was asked `times` times, and gives the last of them.
    pub(crate) async fn asked_for(&self, what: &str, times: usize) -> Asked {
        let mut asked = self.asked.clone();
        let matching = |all: &Vec<Asked>| all.iter().filter(|asked| asked.what == what).cloned().collect::<Vec<_>>();
        let all = asked.wait_for(|all| matching(all).len() >= times).await.unwrap();
        matching(&all).pop().unwrap()
    }
}

/// Link clients need a TLS provider, even for plain HTTP; a second installation is refused, which is fine.
pub(crate) fn provide_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

pub(crate) fn accepted(state: &str) -> Value {
    json!({"runId": "r1", "sessionKey": "cli:default", "state": state})
}

pub(crate) fn ticket(state: &str) -> Value {
    json!({
        "runId": "r1", "state": state, "aborted": true, "runIds": ["r1"],
        "verdict": {"kind": "aborted", "reason": "user"},
    })
}

pub(crate) fn not_found() -> Problem {
    Problem::new(quell_protocol::ErrorCode::RunNotFound, "no run has this id")
}

/// A view of a run, with what a test wants to be different.
pub(crate) fn view(run: &str, change: Value) -> Value {
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

async fn read(request: Request) -> Asked {
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
    Asked { what, cursor, token, surface, body }
}

async fn respond(reply: Reply) -> Response {
    let response = |status: u16, kind: &str, body: Body| {
        Response::builder().status(status).header("content-type", kind).body(body).unwrap()
    };
    match reply {
        Reply::Json(status, value) => response(status, "application/json", value.to_string().into()),
        Reply::Raw(status, text) => response(status, "text/html", text.into()),
        Reply::Problem(problem) => {
            let body = serde_json::to_string(&problem).unwrap();
            response(problem.status, "application/problem+json", body.into())
        }
        Reply::Stream(pieces) => {
            let body =
                stream::unfold(
                    pieces,
                    |mut pieces| async move { pieces.recv().await.map(|piece| (piece.bytes(), pieces)) },
                );
            response(200, "text/event-stream", Body::from_stream(body))
        }
        Reply::Silence => std::future::pending().await,
    }
}
