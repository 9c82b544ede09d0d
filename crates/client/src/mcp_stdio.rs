//! MCP on standard input and output: each line goes to `/mcp` of the daemon, and its answers come back as lines.
//!
//! The program that has started this one ends it by closing its input. What it has not got an answer to is cancelled
//! then, by the end of its connection.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use quell_net::SseDecoder;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::daemon_client::{ClientError, DaemonClient, McpHeaders};
use crate::subcommands::{Exit, SubcommandError};

/// A message holds at most a whole answer or a whole receipt, in one line.
const MAX_EVENT_BYTES: usize = 64 << 20;
/// Lines that wait to be written, and lines that wait to be sent.
const QUEUED_LINES: usize = 64;
/// For the end of the session, when the client has gone.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The version whose requests say everything about themselves.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CONNECTION_FAILED: i64 = -32603;

/// Serves the program at the other end of standard input and output until it closes the input.
///
/// # Errors
/// Only that the streams cannot be used. What the daemon refuses is told to the program, as answers.
pub(crate) async fn serve(client: &DaemonClient) -> Result<Exit, SubcommandError> {
    let (lines_in, mut lines) = mpsc::channel(QUEUED_LINES);
    let (answers, lines_out) = mpsc::channel(QUEUED_LINES);
    thread::Builder::new().name("stdin".to_owned()).spawn(move || read_lines(&lines_in))?;
    let writer = thread::Builder::new().name("stdout".to_owned()).spawn(move || write_lines(lines_out))?;
    let bridge = Arc::new(StdioBridge { client: client.clone(), session: Mutex::default(), answers });
    let mut exchanges: FuturesUnordered<BoxFuture<'static, Option<String>>> = FuturesUnordered::new();
    let mut abort_handles: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        tokio::select! {
            line = lines.recv() => {
                let Some(line) = line else { break };
                let message: Value = serde_json::from_slice(&line).unwrap_or_default();
                if let Some(cancelled) = cancelled_request(&message) {
                    // The end of the connection is the cancel. A message of its own could overtake the call.
                    if let Some(handle) = abort_handles.remove(&cancelled) {
                        handle.abort();
                    }
                    continue;
                }
                let id = message.get("id").filter(|_| message.get("method").is_some()).map(Value::to_string);
                let (handle, registration) = AbortHandle::new_pair();
                if let Some(id) = &id {
                    abort_handles.insert(id.clone(), handle);
                }
                let exchange = Abortable::new(Arc::clone(&bridge).exchange(line, message), registration);
                exchanges.push(Box::pin(async move {
                    let _aborted = exchange.await;
                    id
                }));
            }
            Some(ended) = exchanges.next(), if !exchanges.is_empty() => {
                if let Some(id) = ended {
                    abort_handles.remove(&id);
                }
            }
        }
    }
    drop(exchanges);
    bridge.end_session().await;
    drop(bridge);
    // The thread ends when it has written what is there, or when nobody reads it.
    let _ended = writer.join();
    Ok(Exit::Done)
}

/// The request that a message cancels.
fn cancelled_request(message: &Value) -> Option<String> {
    (message["method"] == "notifications/cancelled").then(|| message["params"]["requestId"].to_string())
}

fn read_lines(lines: &mpsc::Sender<Vec<u8>>) {
    let mut input = std::io::stdin().lock();
    loop {
        let mut line = Vec::new();
        match input.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !line.trim_ascii().is_empty() && lines.blocking_send(line).is_err() {
            return;
        }
    }
}

fn write_lines(mut lines: mpsc::Receiver<String>) {
    let mut output = std::io::stdout().lock();
    while let Some(line) = lines.blocking_recv() {
        // Nobody reads: the input ends, too.
        if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

struct StdioBridge {
    client: DaemonClient,
    session: Mutex<StdioSession>,
    answers: mpsc::Sender<String>,
}

/// What the messages so far have told.
#[derive(Default)]
struct StdioSession {
    id: Option<HeaderValue>,
    version: Option<String>,
    /// The line that has begun the session. A daemon that was restarted gets it again.
    initialize: Option<Vec<u8>>,
}

impl StdioBridge {
    fn lock_session(&self) -> std::sync::MutexGuard<'_, StdioSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one message and writes what comes back.
    async fn exchange(self: Arc<Self>, line: Vec<u8>, message: Value) {
        let answered = self.send(line, &message).await;
        let (Err(problem), true) = (answered, wants_answer(&message)) else { return };
        let error = json!({"code": CONNECTION_FAILED, "message": problem});
        let mut answer = json!({"jsonrpc": "2.0", "error": error});
        add_id(&mut answer, &message);
        self.write(answer.to_string()).await;
    }

    async fn send(&self, line: Vec<u8>, message: &Value) -> Result<(), String> {
        let mut response = self.post(line.clone(), message).await.map_err(|error| error.to_string())?;
        if response.status() == StatusCode::NOT_FOUND && message["method"] != "initialize" && self.begin_again().await {
            response = self.post(line, message).await.map_err(|error| error.to_string())?;
        }
        if message["method"] == "initialize" && response.status().is_success() {
            self.lock_session().initialize = serde_json::to_vec(message).ok();
            self.keep_session(&response);
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/event-stream") {
            return self.write_events(response).await;
        }
        let is_problem = kind.starts_with("application/problem+json");
        let body = response.bytes().await.map_err(|error| error.to_string())?;
        let Ok(mut answer) = serde_json::from_slice::<Value>(&body) else { return Ok(()) };
        if is_problem {
            return Err(answer["detail"].as_str().unwrap_or("the daemon refused the request").to_owned());
        }
        if wants_answer(message) {
            if message["method"] == "initialize" {
                self.lock_session().version = answer["result"]["protocolVersion"].as_str().map(str::to_owned);
            }
            add_id(&mut answer, message);
            self.write(answer.to_string()).await;
        }
        Ok(())
    }

    async fn post(&self, line: Vec<u8>, message: &Value) -> Result<Response, ClientError> {
        let named = message["params"]["_meta"][VERSION_KEY].as_str();
        let headers = {
            let session = self.lock_session();
            McpHeaders {
                version: named.map(str::to_owned).or_else(|| session.version.clone()),
                session: session.id.clone().filter(|_| named.is_none()),
                method: named.and(message["method"].as_str()).map(str::to_owned),
                name: named.and_then(|_| routed_name(message)).map(str::to_owned),
            }
        };
        self.client.post_mcp(line, headers).await
    }

    /// Begins the session again after a restart of the daemon; false if there was none.
    async fn begin_again(&self) -> bool {
        let Some(line) = self.lock_session().initialize.clone() else { return false };
        self.lock_session().id = None;
        let message = serde_json::from_slice(&line).unwrap_or_default();
        match self.post(line, &message).await {
            Ok(response) if response.status().is_success() => {
                self.keep_session(&response);
                true
            }
            _ => false,
        }
    }

    fn keep_session(&self, response: &Response) {
        self.lock_session().id = response.headers().get("mcp-session-id").cloned();
    }

    async fn write_events(&self, mut response: Response) -> Result<(), String> {
        let mut decoder = SseDecoder::new(MAX_EVENT_BYTES, MAX_EVENT_BYTES);
        let mut has_answer = false;
        while let Some(piece) = response.chunk().await.map_err(|error| error.to_string())? {
            let mut rest = &piece[..];
            while let Some(event) = decoder.next_event(&mut rest).map_err(|error| error.to_string())? {
                if !event.data.is_empty() {
                    let message: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    has_answer |= message.get("id").is_some();
                    self.write(event.data).await;
                }
            }
        }
        // A stream without an answer belongs to a cancelled call, or the daemon has ended.
        if has_answer || self.lock_session().id.is_some() {
            Ok(())
        } else {
            Err("the daemon ended the call".to_owned())
        }
    }

    async fn write(&self, line: String) {
        // Fails only when nobody reads.
        let _written = self.answers.send(line).await;
    }

    async fn end_session(&self) {
        let (id, version) = {
            let mut session = self.lock_session();
            (session.id.take(), session.version.clone())
        };
        if let Some(id) = id {
            let headers = McpHeaders { version, session: Some(id), method: None, name: None };
            // The connections have ended before, which has stopped the calls.
            let _ended = timeout(END_TIMEOUT, self.client.end_mcp_session(headers)).await;
        }
    }
}

/// False for a notification. A line that is no message wants an answer, too: its program waits for one.
fn wants_answer(message: &Value) -> bool {
    message.get("id").is_some() || message.get("method").is_none()
}

/// Adds the id of the request, if the answer has none and the request has one.
fn add_id(answer: &mut Value, message: &Value) {
    if let (None, Some(id)) = (answer.get("id"), message.get("id")) {
        answer["id"] = id.clone();
    }
}

/// The value that the header `Mcp-Name` repeats.
fn routed_name(message: &Value) -> Option<&str> {
    let params = &message["params"];
    let key = match message["method"].as_str()? {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    params[key].as_str()
}
