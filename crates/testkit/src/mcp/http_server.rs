//! An MCP server over streamable HTTP that injects the faults of real servers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::WAIT_TIMEOUT;
use crate::leaks;
use crate::model::http1::{RawHttpRequest, plain_response, read_request};
use crate::model::server::{bind_free_port, bind_listener};

const EVENT_STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
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
    address: SocketAddr,
    shared: Arc<FakeMcpShared>,
    /// False while connections are refused.
    accept_switch: watch::Sender<bool>,
    accepting: watch::Receiver<bool>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct FakeMcpShared {
    state: Mutex<FakeMcpState>,
    connections: watch::Sender<usize>,
    /// Number of messages that are unanswered now.
    unanswered: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct FakeMcpState {
    queued_faults: HashMap<String, VecDeque<McpFault>>,
    default_faults: HashMap<String, McpFault>,
    received: Vec<String>,
    /// The `authorization` header of each received message.
    authorizations: Vec<Option<String>>,
    opened_sessions: usize,
    sessions: BTreeSet<String>,
}

impl FakeMcpServer {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = bind_free_port();
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (stage, mut task) = (Arc::<FakeMcpShared>::default(), JoinSet::new());
        let (listens, orders) = watch::channel(true);
        let (is, listening) = watch::channel(true);
        task.spawn(accept_loop(listener, Arc::clone(&stage), orders, is));
        Self { address, shared: stage, accept_switch: listens, accepting: listening, _task: task }
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Injects a fault into the next message of this method, or request of this HTTP method.
    pub fn fault_next(&self, what: &str, manner: McpFault) {
        self.shared.lock_state().queued_faults.entry(what.to_owned()).or_default().push_back(manner);
    }

    /// Injects a fault into every message of this method, or request of this HTTP method, after the queued ones.
    pub fn fault_always(&self, what: &str, manner: McpFault) {
        self.shared.lock_state().default_faults.insert(what.to_owned(), manner);
    }

    /// Number of received messages of this method, or requests of this HTTP method.
    pub fn received_count(&self, what: &str) -> usize {
        self.shared.lock_state().received.iter().filter(|got| *got == what).count()
    }

    /// The `authorization` headers of the messages of this method.
    pub fn authorizations_of(&self, what: &str) -> Vec<Option<String>> {
        let facts = self.shared.lock_state();
        facts
            .received
            .iter()
            .zip(&facts.authorizations)
            .filter(|(got, _)| *got == what)
            .map(|(_, key)| key.clone())
            .collect()
    }

    /// Waits until it has received this many of them.
    pub async fn wait_received(&self, what: &'static str, count: usize) {
        let stage = Arc::clone(&self.shared);
        leaks::wait_until(WAIT_TIMEOUT, move || {
            let facts = stage.lock_state();
            let got = facts.received.iter().filter(|got| *got == what).count();
            if got >= count { Ok(()) } else { Err(format!("{got} of {what}: {:#?}", facts.received)) }
        })
        .await;
    }

    /// Waits until a message stays unanswered.
    pub async fn wait_unanswered(&self) {
        let mut silences = self.shared.unanswered.subscribe();
        let waited = timeout(WAIT_TIMEOUT, silences.wait_for(|count| *count > 0)).await;
        assert!(matches!(waited, Ok(Ok(_))), "nobody talks to the MCP server");
    }

    /// Waits until no connection and no session is open.
    pub async fn wait_idle(&self) {
        let stage = Arc::clone(&self.shared);
        leaks::wait_until(WAIT_TIMEOUT, move || {
            let (connections, sessions) = (*stage.connections.borrow(), stage.lock_state().sessions.clone());
            let alone = connections == 0 && sessions.is_empty();
            if alone { Ok(()) } else { Err(format!("{connections} connections, sessions {sessions:?}")) }
        })
        .await;
    }

    /// Refuses new connections; open ones stay.
    pub async fn refuse_connections(&self) {
        self.set_accepting(false).await;
    }

    pub async fn accept_connections(&self) {
        self.set_accepting(true).await;
    }

    async fn set_accepting(&self, on: bool) {
        self.accept_switch.send_replace(on);
        let done = self.accepting.clone().wait_for(|listening| *listening == on).await.is_ok();
        assert!(done, "the MCP server is gone");
    }
}

impl FakeMcpShared {
    /// A poisoned lock means that another thread of the same test has panicked; the state is still valid.
    fn lock_state(&self) -> MutexGuard<'_, FakeMcpState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept_loop(
    listener: TcpListener,
    stage: Arc<FakeMcpShared>,
    mut orders: watch::Receiver<bool>,
    listening: watch::Sender<bool>,
) {
    let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
    let (mut listener, mut connections) = (Some(listener), JoinSet::new());
    loop {
        let next = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        // A dropped accept leaves the connection in the backlog; `changed` keeps an order until it is read.
        tokio::select! {
            accepted = next => if let Ok((stream, _)) = accepted {
                connections.spawn(serve_connection(stream, Arc::clone(&stage)));
            },
            changed = orders.changed() => {
                if changed.is_err() {
                    return;
                }
                let on = *orders.borrow_and_update();
                match (on, &listener) {
                    (true, Some(_)) => {}
                    (true, None) => match bind_listener(address) {
                        Ok(opened) => listener = Some(opened),
                        Err(error) => panic!("the port is taken: {error}"),
                    },
                    (false, _) => listener = None,
                }
                listening.send_replace(on);
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(mut stream: TcpStream, stage: Arc<FakeMcpShared>) {
    stage.connections.send_modify(|count| *count += 1);
    // Many tests let the client disconnect in the middle.
    let _ = serve_requests(&mut stream, &stage).await;
    stage.connections.send_modify(|count| *count -= 1);
}

async fn serve_requests(stream: &mut TcpStream, stage: &FakeMcpShared) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        let message: Value = serde_json::from_slice(&incoming.body).unwrap_or_default();
        let what = message["method"].as_str().unwrap_or(&incoming.method).to_owned();
        let manner = {
            let mut facts = stage.lock_state();
            facts.received.push(what.clone());
            facts.authorizations.push(incoming.header("authorization").map(str::to_owned));
            let queued = facts.queued_faults.get_mut(&what).and_then(VecDeque::pop_front);
            queued.or_else(|| facts.default_faults.get(&what).copied())
        };
        match manner {
            None => stream.write_all(&build_response(stage, &incoming, &message)).await?,
            Some(McpFault::Status(code)) => {
                stream.write_all(&plain_response(code, &text_plain_header(), "as the test wants")).await?
            }
            Some(McpFault::Cut) => return stream.write_all(EVENT_STREAM_HEAD.as_bytes()).await,
            Some(McpFault::CutResumable) => {
                return stream.write_all(format!("{EVENT_STREAM_HEAD}id: 1\ndata:\n\n").as_bytes()).await;
            }
            Some(McpFault::Huge) => stream.write_all(&plain_response(200, &[], &"x".repeat(HUGE_BODY_BYTES))).await?,
            Some(McpFault::Silent) => {
                stage.unanswered.send_modify(|count| *count += 1);
                let left = wait_client_disconnect(stream, &mut buffer).await;
                stage.unanswered.send_modify(|count| *count -= 1);
                return left;
            }
        }
    }
    Ok(())
}

fn text_plain_header() -> [(String, String); 1] {
    [("content-type".to_owned(), "text/plain".to_owned())]
}

async fn wait_client_disconnect(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<()> {
    while reader.read_buf(buffer).await? > 0 {}
    Ok(())
}

/// The regular answer.
fn build_response(stage: &FakeMcpShared, incoming: &RawHttpRequest, message: &Value) -> Vec<u8> {
    let session = incoming.header("mcp-session-id");
    match incoming.method.as_str() {
        "POST" => {}
        "DELETE" => {
            let known = session.is_some_and(|session| stage.lock_state().sessions.remove(session));
            return plain_response(if known { 200 } else { 404 }, &text_plain_header(), "");
        }
        // It sends nothing on its own.
        _ => return plain_response(405, &text_plain_header(), ""),
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => {
            let mut facts = stage.lock_state();
            facts.opened_sessions += 1;
            let session = format!("session-{}", facts.opened_sessions);
            facts.sessions.insert(session.clone());
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "test", "version": "1"}});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
            return plain_response(200, &[("mcp-session-id".to_owned(), session)], &body);
        }
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}),
        _ if message["id"].is_null() => return plain_response(202, &text_plain_header(), ""),
        _ => json!({}),
    };
    plain_response(200, &[], &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string())
}
