//! An MCP server over streamable HTTP, by hand, that fails in the ways in which such servers do.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::leaks;
use crate::model::wire_http::{Incoming, plain, read_request};

const PATIENCE: Duration = Duration::from_secs(20);
/// The head of an event stream.
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
/// More than 16 MiB.
const HUGE: usize = 17_000_000;

/// How one message is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// With this status and no answer.
    Status(u16),
    /// With an event stream that ends without the answer.
    Cut,
    /// With an event stream that could be taken up again, and ends without the answer.
    Torn,
    /// With a body that is longer than anybody takes.
    Huge,
    /// Not at all, until the client leaves.
    Silent,
}

/// A server with one tool, `echo`, which answers its argument `text`. It opens a session with each `initialize`.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stage: Arc<Stage>,
    /// False while connections are refused.
    listens: watch::Sender<bool>,
    listening: watch::Receiver<bool>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Stage {
    facts: Mutex<Facts>,
    connections: watch::Sender<usize>,
    /// Messages that are left without an answer now.
    silences: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Facts {
    manners: HashMap<String, VecDeque<Manner>>,
    always: HashMap<String, Manner>,
    got: Vec<String>,
    /// With which `authorization` each of them came.
    keys: Vec<Option<String>>,
    opened: usize,
    sessions: BTreeSet<String>,
}

impl HttpServer {
    /// Starts it on a free port.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn start() -> Self {
        let listener = match listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
            Ok(listener) => listener,
            Err(error) => panic!("no port for the MCP server: {error}"),
        };
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (stage, mut task) = (Arc::<Stage>::default(), JoinSet::new());
        let (listens, orders) = watch::channel(true);
        let (is, listening) = watch::channel(true);
        task.spawn(accept(listener, Arc::clone(&stage), orders, is));
        Self { address, stage, listens, listening, _task: task }
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The next message of this method, or request of this HTTP method, is taken in this manner.
    pub fn next(&self, what: &str, manner: Manner) {
        self.stage.facts().manners.entry(what.to_owned()).or_default().push_back(manner);
    }

    /// Every message of this method, or request of this HTTP method, is taken in this manner, but for the next ones.
    pub fn always(&self, what: &str, manner: Manner) {
        self.stage.facts().always.insert(what.to_owned(), manner);
    }

    /// How many messages of this method, or requests of this HTTP method, it got.
    #[must_use]
    pub fn got(&self, what: &str) -> usize {
        self.stage.facts().got.iter().filter(|got| *got == what).count()
    }

    /// With which `authorization` the messages of this method came.
    #[must_use]
    pub fn keys_of(&self, what: &str) -> Vec<Option<String>> {
        let facts = self.stage.facts();
        facts.got.iter().zip(&facts.keys).filter(|(got, _)| *got == what).map(|(_, key)| key.clone()).collect()
    }

    /// Waits until it has got so many of them.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn has_got(&self, what: &'static str, count: usize) {
        let stage = Arc::clone(&self.stage);
        leaks::settled(PATIENCE, move || {
            let facts = stage.facts();
            let got = facts.got.iter().filter(|got| *got == what).count();
            if got >= count { Ok(()) } else { Err(format!("{got} of {what}: {:#?}", facts.got)) }
        })
        .await;
    }

    /// Waits until a message is left without an answer.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn is_talked_to(&self) {
        let mut silences = self.stage.silences.subscribe();
        let waited = timeout(PATIENCE, silences.wait_for(|count| *count > 0)).await;
        assert!(matches!(waited, Ok(Ok(_))), "nobody talks to the MCP server");
    }

    /// Waits until neither a connection nor a session is open.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn is_left_alone(&self) {
        let stage = Arc::clone(&self.stage);
        leaks::settled(PATIENCE, move || {
            let (connections, sessions) = (*stage.connections.borrow(), stage.facts().sessions.clone());
            let alone = connections == 0 && sessions.is_empty();
            if alone { Ok(()) } else { Err(format!("{connections} connections, sessions {sessions:?}")) }
        })
        .await;
    }

    /// Refuses new connections, and keeps those that there are.
    ///
    /// # Cancel safety
    /// Safe: the order is given at once.
    pub async fn refuse(&self) {
        self.switch(false).await;
    }

    /// Takes connections again.
    ///
    /// # Cancel safety
    /// Safe: the order is given at once.
    pub async fn listen(&self) {
        self.switch(true).await;
    }

    async fn switch(&self, on: bool) {
        self.listens.send_replace(on);
        let done = self.listening.clone().wait_for(|listening| *listening == on).await.is_ok();
        assert!(done, "the MCP server is gone");
    }
}

impl Stage {
    /// A poisoned lock means that another thread of the same test has panicked; the facts are still facts.
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(64)
}

async fn accept(
    listener: TcpListener,
    stage: Arc<Stage>,
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
        // An accept that is dropped leaves the connection in the backlog; an order stays until it is looked at.
        tokio::select! {
            accepted = next => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, Arc::clone(&stage)));
            },
            changed = orders.changed() => {
                if changed.is_err() {
                    return;
                }
                let on = *orders.borrow_and_update();
                match (on, &listener) {
                    (true, Some(_)) => {}
                    (true, None) => match listen(address) {
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

async fn serve(mut stream: TcpStream, stage: Arc<Stage>) {
    stage.connections.send_modify(|count| *count += 1);
    // A client that leaves in the middle is what many tests are about.
    let _ = exchange(&mut stream, &stage).await;
    stage.connections.send_modify(|count| *count -= 1);
}

async fn exchange(stream: &mut TcpStream, stage: &Stage) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        let message: Value = serde_json::from_slice(&incoming.body).unwrap_or_default();
        let what = message["method"].as_str().unwrap_or(&incoming.method).to_owned();
        let manner = {
            let mut facts = stage.facts();
            facts.got.push(what.clone());
            let key = incoming.headers.iter().find(|(name, _)| name == "authorization");
            facts.keys.push(key.map(|(_, value)| value.clone()));
            let queued = facts.manners.get_mut(&what).and_then(VecDeque::pop_front);
            queued.or_else(|| facts.always.get(&what).copied())
        };
        match manner {
            None => stream.write_all(&answer(stage, &incoming, &message)).await?,
            Some(Manner::Status(code)) => stream.write_all(&plain(code, &text(), "as the test wants")).await?,
            Some(Manner::Cut) => return stream.write_all(STREAM.as_bytes()).await,
            Some(Manner::Torn) => return stream.write_all(format!("{STREAM}id: 1\ndata:\n\n").as_bytes()).await,
            Some(Manner::Huge) => stream.write_all(&plain(200, &[], &"x".repeat(HUGE))).await?,
            Some(Manner::Silent) => {
                stage.silences.send_modify(|count| *count += 1);
                let left = client_leaves(stream, &mut buffer).await;
                stage.silences.send_modify(|count| *count -= 1);
                return left;
            }
        }
    }
    Ok(())
}

fn text() -> [(String, String); 1] {
    [("content-type".to_owned(), "text/plain".to_owned())]
}

async fn client_leaves(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> io::Result<()> {
    while reader.read_buf(buffer).await? > 0 {}
    Ok(())
}

/// The proper answer.
fn answer(stage: &Stage, incoming: &Incoming, message: &Value) -> Vec<u8> {
    let session = incoming.headers.iter().find(|(name, _)| name == "mcp-session-id").map(|(_, value)| value);
    match incoming.method.as_str() {
        "POST" => {}
        "DELETE" => {
            let known = session.is_some_and(|session| stage.facts().sessions.remove(session));
            return plain(if known { 200 } else { 404 }, &text(), "");
        }
        // It sends nothing of its own accord.
        _ => return plain(405, &text(), ""),
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => {
            let mut facts = stage.facts();
            facts.opened += 1;
            let session = format!("session-{}", facts.opened);
            facts.sessions.insert(session.clone());
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "test", "version": "1"}});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
            return plain(200, &[("mcp-session-id".to_owned(), session)], &body);
        }
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}),
        _ if message["id"].is_null() => return plain(202, &text(), ""),
        _ => json!({}),
    };
    plain(200, &[], &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string())
}
