//! Test support: a proxy between browser and daemon that rewrites agent statuses and abort answers. It shows the page
//! states and answers that a healthy daemon reaches only by chance, over the same wire.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use axum::body::{Body, Bytes};
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::prelude::*;

/// A proxy that ends with the test's runtime.
pub(super) struct PageProxy {
    pub(super) url: String,
    state: Arc<PageProxyState>,
}

struct PageProxyState {
    daemon: String,
    statuses: Mutex<BTreeMap<String, String>>,
    abort_answers: Mutex<HashMap<String, (u16, Value)>>,
    events: broadcast::Sender<Value>,
    /// While false, fetched answers about agents are held back.
    lists_flowing: watch::Sender<bool>,
    held_lists: watch::Sender<usize>,
    /// While true, no WebSocket is passed on and none stays open.
    websockets_cut: watch::Sender<bool>,
    open_websockets: watch::Sender<usize>,
}

impl PageProxy {
    /// Starts a proxy in front of the daemon at this URL.
    pub(super) async fn start_before(daemon: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(PageProxyState {
            daemon: daemon.to_owned(),
            statuses: Mutex::default(),
            abort_answers: Mutex::default(),
            events: broadcast::channel(64).0,
            lists_flowing: watch::Sender::new(true),
            held_lists: watch::Sender::new(0),
            websockets_cut: watch::Sender::new(false),
            open_websockets: watch::Sender::new(0),
        });
        let routes = axum::Router::new().fallback(proxy_request).with_state(Arc::clone(&state));
        #[expect(clippy::disallowed_methods, reason = "the test's own proxy, which ends with its runtime")]
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, state }
    }

    /// Sets the status of an agent for all later answers, whatever the daemon says, and sends it to the clients at
    /// once.
    pub(super) fn set_agent_status(&self, agent: &str, status: &str) {
        self.state.statuses.lock().unwrap().insert(agent.to_owned(), status.to_owned());
        let active: &[&str] = if status == "idle" { &[] } else { &["r1"] };
        let payload = json!({"agentId": agent, "computeStatus": status, "activeRuns": active});
        // Fails only when no client is connected.
        let _ = self.state.events.send(json!({"type": "event", "event": "agents.changed", "payload": payload}));
    }

    /// Answers aborts of this agent's call with this from now on, without the daemon.
    pub(super) fn set_abort_answer(&self, agent: &str, status: u16, body: Value) {
        self.state.abort_answers.lock().unwrap().insert(agent.to_owned(), (status, body));
    }

    /// Breaks every WebSocket and refuses new ones; returns when none is open.
    pub(super) async fn cut_websockets(&self) {
        self.state.websockets_cut.send_replace(true);
        self.state.open_websockets.subscribe().wait_for(|open| *open == 0).await.unwrap();
    }

    pub(super) fn restore_websockets(&self) {
        self.state.websockets_cut.send_replace(false);
    }

    pub(super) fn hold_lists(&self) {
        self.state.lists_flowing.send_replace(false);
    }

    pub(super) async fn wait_list_held(&self) {
        self.state.held_lists.subscribe().wait_for(|held| *held > 0).await.unwrap();
    }

    pub(super) fn release_lists(&self) {
        self.state.lists_flowing.send_replace(true);
    }
}

async fn proxy_request(State(state): State<Arc<PageProxyState>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    if parts.uri.path() == "/ws" {
        let headers = parts.headers.clone();
        let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await.unwrap();
        if *state.websockets_cut.borrow() {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        return upgrade.on_upgrade(async move |socket| {
            state.open_websockets.send_modify(|open| *open += 1);
            proxy_websocket(&state, socket, headers).await;
            state.open_websockets.send_modify(|open| *open -= 1);
        });
    }
    if let Some(answer) = state.planned_abort_answer(parts.uri.path()) {
        return answer;
    }
    let path = parts.uri.path_and_query().unwrap().as_str().to_owned();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    // The browser follows redirects itself, since they may set cookies.
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    // The host header is kept: the daemon checks that it fits the address that the browser uses.
    let request = client.request(parts.method, format!("{}{path}", state.daemon)).headers(parts.headers).body(body);
    let Ok(answer) = request.send().await else { return StatusCode::BAD_GATEWAY.into_response() };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    let bytes = state.rewrite_body(&path, answer.bytes().await.unwrap()).await;
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Proxies one WebSocket: frames of both sides, and the test's own events in between.
async fn proxy_websocket(state: &PageProxyState, browser: WebSocket, headers: HeaderMap) {
    let mut request = format!("{}/ws", state.daemon.replace("http://", "ws://")).into_client_request().unwrap();
    for name in [header::HOST, header::ORIGIN, header::COOKIE] {
        if let Some(value) = headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    let (daemon, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let ((mut to_daemon, mut from_daemon), (mut to_browser, mut from_browser)) = (daemon.split(), browser.split());
    let (mut events, mut cut) = (state.events.subscribe(), state.websockets_cut.subscribe());
    // Frames and events are complete when received, so none is lost when another branch is taken.
    loop {
        let down = tokio::select! {
            frame = from_browser.next() => {
                let Some(Ok(ws::Message::Text(text))) = frame else { return };
                if to_daemon.send(tungstenite::Message::text(text.as_str())).await.is_err() { return }
                continue;
            }
            frame = from_daemon.next() => match frame {
                Some(Ok(tungstenite::Message::Text(text))) => state.rewrite_text(text.as_str()),
                Some(Ok(tungstenite::Message::Ping(_) | tungstenite::Message::Pong(_))) => continue,
                _ => return,
            },
            event = events.recv() => event.unwrap().to_string(),
            () = wait_true(&mut cut) => return,
        };
        if to_browser.send(ws::Message::text(down)).await.is_err() {
            return;
        }
    }
}

async fn wait_true(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|value| *value).await);
}

impl PageProxyState {
    fn planned_abort_answer(&self, path: &str) -> Option<Response> {
        let agent = path.strip_prefix("/api/agent/")?.strip_suffix("/abort")?;
        let (status, body) = self.abort_answers.lock().unwrap().get(agent).cloned()?;
        let kind = if status == 200 { "application/json" } else { "application/problem+json" };
        Some((StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, kind)], body.to_string()).into_response())
    }

    /// The body as the browser gets it. Answers about agents get the statuses at the time of the daemon's answer, and
    /// may be held back afterwards.
    async fn rewrite_body(&self, path: &str, bytes: Bytes) -> Bytes {
        if !path.starts_with("/api/agents") {
            return bytes;
        }
        let text = self.rewrite_text(std::str::from_utf8(&bytes).unwrap());
        self.held_lists.send_modify(|held| *held += 1);
        self.lists_flowing.subscribe().wait_for(|flowing| *flowing).await.unwrap();
        self.held_lists.send_modify(|held| *held -= 1);
        Bytes::from(text)
    }

    fn rewrite_text(&self, text: &str) -> String {
        let statuses = self.statuses.lock().unwrap();
        match serde_json::from_str(text) {
            Ok(mut value) if !statuses.is_empty() => {
                rewrite_statuses(&mut value, &statuses);
                value.to_string()
            }
            _ => text.to_owned(),
        }
    }
}

fn rewrite_statuses(value: &mut Value, statuses: &BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            let id = fields.get("id").or_else(|| fields.get("agentId")).and_then(Value::as_str);
            if let Some(status) = id.and_then(|id| statuses.get(id))
                && let Some(field) = fields.get_mut("computeStatus")
            {
                *field = Value::from(status.as_str());
            }
            fields.values_mut().for_each(|value| rewrite_statuses(value, statuses));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite_statuses(item, statuses)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
