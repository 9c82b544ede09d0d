//! Quell as an MCP server: over HTTP and on standard input and output, in both generations of the protocol, with the
//! official clients and the conformance tests.

mod calls;
mod conformance;
mod official_clients;
mod stdio;

use futures_util::StreamExt;
use reqwest::{RequestBuilder, Response};

use crate::npm_packages::NpmPackages;
use crate::prelude::*;

pub(crate) const STATELESS: &str = "2026-07-28";
const TASKS: &str = "io.modelcontextprotocol/tasks";

pub(crate) const CLIENT_PACKAGES: NpmPackages = NpmPackages {
    name: "mcp-clients",
    files: &[
        ("package.json", include_str!("mcp_server/package.json")),
        ("package-lock.json", include_str!("mcp_server/package-lock.json")),
        ("client.mjs", include_str!("mcp_server/client.mjs")),
        ("conformance.mjs", include_str!("mcp_server/conformance.mjs")),
    ],
};

/// Node from the packages: the conformance tests need a newer one than Debian has.
fn node_path(folder: &Path) -> PathBuf {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    folder.join(format!("node_modules/node-linux-{architecture}/bin/node"))
}

/// A call of a tool without a session. The response is a stream for tools that wait.
pub(crate) fn stateless_call(api: &TestApiClient, tool: &str, arguments: &Value) -> RequestBuilder {
    stateless_request(api, "tools/call", tool, &json!({"name": tool, "arguments": arguments}))
}

/// A request of a client without a session that declares the extension of tasks.
fn task_request(api: &TestApiClient, method: &str, name: &str, params: &Value) -> RequestBuilder {
    request_with(api, method, name, params, task_capabilities())
}

fn stateless_request(api: &TestApiClient, method: &str, name: &str, params: &Value) -> RequestBuilder {
    request_with(api, method, name, params, json!({}))
}

/// A request of a client without a session.
fn stateless_message(id: i64, method: &str, params: &Value, capabilities: Value) -> Value {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "progressToken": "p",
    });
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn task_capabilities() -> Value {
    json!({"extensions": {TASKS: {}}, "elicitation": {}})
}

fn request_with(api: &TestApiClient, method: &str, name: &str, params: &Value, capabilities: Value) -> RequestBuilder {
    let message = stateless_message(1, method, params, capabilities);
    let request = api.request(Method::POST, "/mcp").header("mcp-protocol-version", STATELESS);
    request.header("mcp-method", method).header("mcp-name", name).json(&message)
}

/// The answer to a request that is no stream.
async fn answer_of(request: RequestBuilder) -> Value {
    request.send().await.unwrap().json().await.unwrap()
}

fn initialize_message() -> Value {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

/// A session of a client.
pub(crate) struct TestMcpSession {
    api: TestApiClient,
    id: String,
}

impl TestMcpSession {
    fn initialize(api: &TestApiClient) -> RequestBuilder {
        api.request(Method::POST, "/mcp").json(&initialize_message())
    }

    pub(crate) async fn begin(api: &TestApiClient) -> Self {
        let response = Self::initialize(api).send().await.unwrap();
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        Self { api: api.clone(), id }
    }

    fn with_headers(&self, method: Method) -> RequestBuilder {
        let request = self.api.request(method, "/mcp").header("mcp-session-id", &self.id);
        request.header("mcp-protocol-version", "2025-11-25")
    }

    fn request(&self, id: i64, method: &str, params: &Value) -> RequestBuilder {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.with_headers(Method::POST).json(&message)
    }

    pub(crate) fn call(&self, id: i64, tool: &str, arguments: &Value) -> RequestBuilder {
        let meta = json!({"progressToken": id});
        self.request(id, "tools/call", &json!({"name": tool, "arguments": arguments, "_meta": meta}))
    }

    pub(crate) async fn cancel(&self, id: i64) {
        let params = json!({"requestId": id, "reason": "enough"});
        let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let response = self.with_headers(Method::POST).json(&message).send().await.unwrap();
        assert_eq!(response.status(), 202);
    }

    fn resume(&self, event_id: &str) -> RequestBuilder {
        self.with_headers(Method::GET).header("last-event-id", event_id)
    }
}

/// A message of a stream, with the id of its event.
#[derive(Debug)]
pub(crate) struct StreamedMessage {
    event_id: String,
    pub(crate) message: Value,
}

/// The messages of a response stream, one after the other.
pub(crate) struct MessageStream {
    pieces: std::pin::Pin<Box<dyn futures_util::Stream<Item = String> + Send>>,
    unread: String,
}

impl MessageStream {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let pieces =
            response.bytes_stream().map(|piece| String::from_utf8_lossy(&piece.unwrap_or_default()).into_owned());
        Self { pieces: Box::pin(pieces), unread: String::new() }
    }

    /// `None` at the end of the stream. Comments and events without data are left out.
    pub(crate) async fn next(&mut self) -> Option<StreamedMessage> {
        loop {
            while let Some((event, rest)) = self.unread.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                let (event_id, data) = (field("id: ").to_owned(), field("data: ").to_owned());
                self.unread = rest.to_owned();
                if !data.is_empty() {
                    return Some(StreamedMessage { event_id, message: serde_json::from_str(&data).unwrap() });
                }
            }
            self.unread.push_str(&self.pieces.next().await?);
        }
    }

    async fn read_to_end(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(streamed) = self.next().await {
            messages.push(streamed.message);
        }
        messages
    }
}
