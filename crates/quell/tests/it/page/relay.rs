//! Stands between the browser and the daemon and passes everything on, but for what a test wants to be otherwise: what agents
//! do, and how the abort of an agent's call is answered. So the page is shown states and answers that a sound daemon reaches
//! only by chance, over the same wire.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::ws::{Message as Down, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio_tungstenite::tungstenite::Message as Up;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// The relay; it ends with the test's runtime.
pub(super) struct Relay {
    pub(super) url: String,
    inner: Arc<Inner>,
}

struct Inner {
    daemon: String,
    statuses: Mutex<BTreeMap<String, String>>,
    aborts: Mutex<HashMap<String, (u16, Value)>>,
    events: broadcast::Sender<Value>,
    /// While it is false, answers about agents that have been fetched wait here.
    flowing: watch::Sender<bool>,
    /// How many of them wait.
    held: watch::Sender<usize>,
    /// While it is true no WebSocket is passed on, and none stays open.
    cut: watch::Sender<bool>,
    /// How many WebSockets are open.
    talks: watch::Sender<usize>,
}

impl Relay {
    /// Before a daemon at this address.
    pub(super) async fn before(daemon: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let inner = Arc::new(Inner {
            daemon: daemon.to_owned(),
            statuses: Mutex::default(),
            aborts: Mutex::default(),
            events: broadcast::channel(64).0,
            flowing: watch::Sender::new(true),
            held: watch::Sender::new(0),
            cut: watch::Sender::new(false),
            talks: watch::Sender::new(0),
        });
        let routes = axum::Router::new().fallback(pass).with_state(Arc::clone(&inner));
        #[expect(clippy::disallowed_methods, reason = "the test's own relay, which ends with its runtime")]
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, inner }
    }

    /// From now on this agent does this, whatever the daemon says of it; its clients are told at once.
    pub(super) fn status(&self, agent: &str, status: &str) {
        self.inner.statuses.lock().unwrap().insert(agent.to_owned(), status.to_owned());
        let active: &[&str] = if status == "idle" { &[] } else { &["r1"] };
        let payload = json!({"agentId": agent, "computeStatus": status, "activeRuns": active});
        // Without a client there is nobody to tell.
        let _ = self.inner.events.send(json!({"type": "event", "event": "agents.changed", "payload": payload}));
    }

    /// From now on the abort of this agent's call is answered so, and does not reach the daemon.
    pub(super) fn answer_abort(&self, agent: &str, status: u16, body: Value) {
        self.inner.aborts.lock().unwrap().insert(agent.to_owned(), (status, body));
    }

    /// Breaks every WebSocket and refuses new ones; answers when none is open any more.
    pub(super) async fn cut(&self) {
        self.inner.cut.send_replace(true);
        self.inner.talks.subscribe().wait_for(|open| *open == 0).await.unwrap();
    }

    /// Lets WebSockets through again.
    pub(super) fn mend(&self) {
        self.inner.cut.send_replace(false);
    }

    /// Holds back answers about agents from now on.
    pub(super) fn hold_lists(&self) {
        self.inner.flowing.send_replace(false);
    }

    /// Waits until an answer about agents is held back.
    pub(super) async fn list_is_held(&self) {
        self.inner.held.subscribe().wait_for(|held| *held > 0).await.unwrap();
    }

    /// Hands out what was held back.
    pub(super) fn release_lists(&self) {
        self.inner.flowing.send_replace(true);
    }
}

async fn pass(State(inner): State<Arc<Inner>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    if parts.uri.path() == "/ws" {
        let headers = parts.headers.clone();
        let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await.unwrap();
        if *inner.cut.borrow() {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        return upgrade.on_upgrade(async move |socket| {
            inner.talks.send_modify(|open| *open += 1);
            talk(&inner, socket, headers).await;
            inner.talks.send_modify(|open| *open -= 1);
        });
    }
    if let Some(answer) = inner.planned(parts.uri.path()) {
        return answer;
    }
    let path = parts.uri.path_and_query().unwrap().as_str().to_owned();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    // Redirections are the browser's to follow: they may bring cookies.
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    // The host header goes along: to the daemon the browser is where it believes to be.
    let request = client.request(parts.method, format!("{}{path}", inner.daemon)).headers(parts.headers).body(body);
    let Ok(answer) = request.send().await else { return StatusCode::BAD_GATEWAY.into_response() };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    let bytes = inner.read(&path, answer.bytes().await.unwrap()).await;
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// One WebSocket: frames of both sides, and the test's own events between them.
async fn talk(inner: &Inner, browser: WebSocket, headers: HeaderMap) {
    let mut request = format!("{}/ws", inner.daemon.replace("http://", "ws://")).into_client_request().unwrap();
    for name in [header::HOST, header::ORIGIN, header::COOKIE] {
        if let Some(value) = headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    let (daemon, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let ((mut to_daemon, mut from_daemon), (mut to_browser, mut from_browser)) = (daemon.split(), browser.split());
    let (mut events, mut cut) = (inner.events.subscribe(), inner.cut.subscribe());
    // The frames of both sides are whole when they are handed out, and so are events: none is lost with another arm.
    loop {
        let down = tokio::select! {
            frame = from_browser.next() => {
                let Some(Ok(Down::Text(text))) = frame else { return };
                if to_daemon.send(Up::text(text.as_str())).await.is_err() { return }
                continue;
            }
            frame = from_daemon.next() => match frame {
                Some(Ok(Up::Text(text))) => inner.reworded(text.as_str()),
                Some(Ok(Up::Ping(_) | Up::Pong(_))) => continue,
                _ => return,
            },
            event = events.recv() => event.unwrap().to_string(),
            () = until(&mut cut) => return,
        };
        if to_browser.send(Down::text(down)).await.is_err() {
            return;
        }
    }
}

/// Waits until the cell says true.
async fn until(cell: &mut watch::Receiver<bool>) {
    drop(cell.wait_for(|value| *value).await);
}

impl Inner {
    fn planned(&self, path: &str) -> Option<Response> {
        let agent = path.strip_prefix("/api/agent/")?.strip_suffix("/abort")?;
        let (status, body) = self.aborts.lock().unwrap().get(agent).cloned()?;
        let kind = if status == 200 { "application/json" } else { "application/problem+json" };
        Some((StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, kind)], body.to_string()).into_response())
    }

    /// What the browser reads of an answer. An answer about agents says what is so when it comes from the daemon, and may have
    /// to wait on its way.
    async fn read(&self, path: &str, bytes: Bytes) -> Bytes {
        if !path.starts_with("/api/agents") {
            return bytes;
        }
        let text = self.reworded(std::str::from_utf8(&bytes).unwrap());
        self.held.send_modify(|held| *held += 1);
        self.flowing.subscribe().wait_for(|flowing| *flowing).await.unwrap();
        self.held.send_modify(|held| *held -= 1);
        Bytes::from(text)
    }

    /// A text in which agents do what the test says.
    fn reworded(&self, text: &str) -> String {
        let statuses = self.statuses.lock().unwrap();
        match serde_json::from_str(text) {
            Ok(mut value) if !statuses.is_empty() => {
                reword(&mut value, &statuses);
                value.to_string()
            }
            _ => text.to_owned(),
        }
    }
}

fn reword(value: &mut Value, statuses: &BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            let id = fields.get("id").or_else(|| fields.get("agentId")).and_then(Value::as_str);
            if let Some(status) = id.and_then(|id| statuses.get(id))
                && let Some(said) = fields.get_mut("computeStatus")
            {
                *said = Value::from(status.as_str());
            }
            fields.values_mut().for_each(|value| reword(value, statuses));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| reword(item, statuses)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
