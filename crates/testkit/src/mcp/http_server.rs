//! An MCP server over streamable HTTP that injects the faults of real servers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::pending;

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::authorization::{AuthorizationState, CLIENT_ID};
use crate::fake_server::http1::RawHttpRequest;
use crate::fake_server::{FakeHttpReply, FakePort, SharedState, serve_http};

/// More than 16 MiB.
const HUGE_BODY_BYTES: usize = 17_000_000;

/// Fault that is injected into one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpFault {
    /// This status and no answer.
    Status(u16),
    /// An event stream that ends without the answer.
    Cut,
    /// An event stream that could be resumed, and ends without the answer.
    CutResumable,
    /// A body that is longer than any client accepts.
    Huge,
    /// No answer until the client disconnects.
    Silent,
}

/// A server with one tool, `echo`, which returns its argument `text`. Each `initialize` opens a session.
#[derive(Debug)]
pub struct FakeMcpServer {
    port: FakePort,
    state: SharedState<FakeMcpState>,
}

#[derive(Debug, Clone, Default)]
struct FakeMcpState {
    queued_faults: HashMap<String, VecDeque<McpFault>>,
    default_faults: HashMap<String, McpFault>,
    /// What each message was, and its `authorization` header.
    received: Vec<(String, Option<String>)>,
    connections: usize,
    /// Number of messages that are unanswered now.
    unanswered: usize,
    opened_sessions: usize,
    sessions: BTreeSet<String>,
    /// Present if the server asks for a sign-in.
    authorization: Option<AuthorizationState>,
}

impl FakeMcpServer {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let state = SharedState::default();
        let port = FakePort::start(&state, serve_connection);
        Self { port, state }
    }

    /// Starts it with an authorization server at the same address, whose tokens live for so many seconds.
    pub async fn start_with_sign_in(token_lifetime_s: u64) -> Self {
        let server = Self::start().await;
        let origin = server.port.url();
        let authorization = AuthorizationState::new(origin, token_lifetime_s);
        server.state.update(|state| state.authorization = Some(authorization));
        server
    }

    /// The kinds of grants of the authorization server so far.
    pub fn grants(&self) -> Vec<String> {
        self.state.with_state(|state| state.authorization.iter().flat_map(|known| known.grants.clone()).collect())
    }

    /// From now on, refresh tokens are refused.
    pub fn refuse_refresh(&self) {
        self.state.update(|state| state.authorization.iter_mut().for_each(|known| known.refuses_refresh = true));
    }

    /// Clients cannot register themselves any more; the id of the only client is returned.
    pub fn require_client(&self, secret: &str) -> &'static str {
        self.update_authorization(|known| known.client_secret = Some(secret.to_owned()));
        CLIENT_ID
    }

    /// Names another authorization server from now on.
    pub fn name_authorization_server(&self, url: &str) {
        self.update_authorization(|known| known.elsewhere = Some(url.to_owned()));
    }

    /// Publishes nothing about its sign-in from now on.
    pub fn hide_metadata(&self) {
        self.update_authorization(|known| known.missing_paths = Some("/.well-known/"));
    }

    /// The last access token is valid no more.
    pub fn revoke_token(&self) {
        self.update_authorization(|known| known.is_revoked = true);
    }

    /// Grants tokens, and holds the answers back until they are released.
    pub fn hold_token_answers(&self) {
        self.update_authorization(|known| known.holds_answers = true);
    }

    pub fn release_token_answers(&self) {
        self.update_authorization(|known| known.holds_answers = false);
    }

    /// Waits until this many tokens have been granted, whether or not the answers are sent.
    pub async fn wait_grants(&self, count: usize) {
        let is_granted =
            |state: &FakeMcpState| state.authorization.as_ref().is_some_and(|known| known.grants.len() >= count);
        self.state.wait_for("a grant", is_granted).await;
    }

    fn update_authorization(&self, change: impl FnOnce(&mut AuthorizationState)) {
        self.state.update(|state| state.authorization.as_mut().map(change));
    }

    pub fn url(&self) -> String {
        self.port.url() + "/mcp"
    }

    /// Injects a fault into the next message of this method, or request of this HTTP method.
    pub fn fault_next(&self, what: &str, manner: McpFault) {
        self.state.update(|state| state.queued_faults.entry(what.to_owned()).or_default().push_back(manner));
    }

    /// Injects a fault into every message of this method, or request of this HTTP method, after the queued ones.
    pub fn fault_always(&self, what: &str, manner: McpFault) {
        self.state.update(|state| state.default_faults.insert(what.to_owned(), manner));
    }

    /// Number of received messages of this method, or requests of this HTTP method.
    pub fn received_count(&self, what: &str) -> usize {
        self.state.with_state(|state| state.received_count(what))
    }

    /// The `authorization` headers of the messages of this method.
    pub fn authorizations_of(&self, what: &str) -> Vec<Option<String>> {
        let of_method = |state: &FakeMcpState| {
            state.received.iter().filter(|(got, _)| got == what).map(|(_, header)| header.clone()).collect()
        };
        self.state.with_state(of_method)
    }

    /// Waits until it has received this many of them.
    pub async fn wait_received(&self, what: &'static str, count: usize) {
        self.state.wait_for(what, |state| state.received_count(what) >= count).await;
    }

    /// Waits until a message stays unanswered.
    pub async fn wait_unanswered(&self) {
        self.state.wait_for("a message", |state| state.unanswered > 0).await;
    }

    /// Waits until no connection and no session is open.
    pub async fn wait_idle(&self) {
        let is_idle = |state: &FakeMcpState| state.connections == 0 && state.sessions.is_empty();
        self.state.wait_for("the end of connections and sessions", is_idle).await;
    }

    /// Refuses new connections; open ones stay.
    pub async fn refuse_connections(&self) {
        self.port.close().await;
    }

    /// Listens again after [`Self::refuse_connections`].
    pub fn accept_connections(&self) {
        self.port.listen_again();
    }
}

impl FakeMcpState {
    fn received_count(&self, what: &str) -> usize {
        self.received.iter().filter(|(got, _)| got == what).count()
    }

    /// Records a message; returns the fault of its answer.
    fn receive(&mut self, what: &str, incoming: &RawHttpRequest) -> Option<McpFault> {
        self.received.push((what.to_owned(), incoming.header("authorization").map(str::to_owned)));
        let queued = self.queued_faults.get_mut(what).and_then(VecDeque::pop_front);
        queued.or_else(|| self.default_faults.get(what).copied())
    }
}

async fn serve_connection(stream: TcpStream, state: SharedState<FakeMcpState>) {
    let _connected = state.count(|state| &mut state.connections);
    serve_http(stream, |incoming| answer_request(&state, incoming)).await;
}

async fn answer_request(state: &SharedState<FakeMcpState>, incoming: RawHttpRequest) -> Option<FakeHttpReply> {
    let refusal = state.update(|state| state.authorization.as_mut().and_then(|known| known.reply(&incoming)));
    if refusal.is_some() {
        if incoming.path == "/token" {
            let is_held = |state: &FakeMcpState| state.authorization.as_ref().is_some_and(|known| known.holds_answers);
            state.wait_for("the release of an answer", |state| !is_held(state)).await;
        }
        return refusal;
    }
    let message: Value = serde_json::from_slice(&incoming.body).unwrap_or_default();
    let what = message["method"].as_str().unwrap_or(&incoming.method);
    Some(match state.update(|state| state.receive(what, &incoming)) {
        None => state.update(|state| build_reply(state, &incoming, &message)),
        Some(McpFault::Status(code)) => text_reply(code, "as the test wants"),
        Some(McpFault::Cut) => cut_event_stream(""),
        Some(McpFault::CutResumable) => cut_event_stream("id: 1\ndata:\n\n"),
        Some(McpFault::Huge) => FakeHttpReply::new(200, "x".repeat(HUGE_BODY_BYTES)),
        Some(McpFault::Silent) => {
            let _unanswered = state.count(|state| &mut state.unanswered);
            pending().await
        }
    })
}

/// An event stream that ends with the connection.
fn cut_event_stream(text: &str) -> FakeHttpReply {
    let stream = FakeHttpReply { closes: true, ..FakeHttpReply::new(200, text) };
    stream.with_header("content-type", "text/event-stream")
}

fn text_reply(status: u16, text: &str) -> FakeHttpReply {
    FakeHttpReply::new(status, text).with_header("content-type", "text/plain")
}

fn build_reply(state: &mut FakeMcpState, incoming: &RawHttpRequest, message: &Value) -> FakeHttpReply {
    match incoming.method.as_str() {
        "POST" => {}
        "DELETE" => {
            let known = incoming.header("mcp-session-id").is_some_and(|session| state.sessions.remove(session));
            return text_reply(if known { 200 } else { 404 }, "");
        }
        // It sends nothing on its own.
        _ => return text_reply(405, ""),
    }
    let answer =
        |result: Value| FakeHttpReply::json(200, &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => {
            state.opened_sessions += 1;
            let session = format!("session-{}", state.opened_sessions);
            state.sessions.insert(session.clone());
            let server = json!({"name": "test", "version": "1"});
            answer(json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}))
                .with_header("mcp-session-id", session)
        }
        "tools/list" => answer(json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})),
        "tools/call" => answer(json!({"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]})),
        _ if message["id"].is_null() => text_reply(202, ""),
        _ => answer(json!({})),
    }
}
