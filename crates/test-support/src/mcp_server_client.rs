//! Test support: a client of Quell as an MCP server, over HTTP, with and without a session.

use futures_util::StreamExt;
use reqwest::{RequestBuilder, Response};

use crate::prelude::*;

pub const STATELESS: &str = "2026-07-28";

/// A call of a tool without a session. The response is a stream for tools that wait.
pub fn stateless_call(api: &TestApiClient, tool: &str, arguments: &Value) -> RequestBuilder {
    stateless_request(api, "tools/call", tool, &json!({"name": tool, "arguments": arguments}))
}

pub fn stateless_request(api: &TestApiClient, method: &str, name: &str, params: &Value) -> RequestBuilder {
    request_with(api, method, name, params, json!({}))
}

/// A request of a client without a session.
pub fn stateless_message(id: i64, method: &str, params: &Value, capabilities: Value) -> Value {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "progressToken": "p",
    });
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub fn request_with(
    api: &TestApiClient,
    method: &str,
    name: &str,
    params: &Value,
    capabilities: Value,
) -> RequestBuilder {
    let message = stateless_message(1, method, params, capabilities);
    let request = api.request(Method::POST, "/mcp").header("mcp-protocol-version", STATELESS);
    request.header("mcp-method", method).header("mcp-name", name).json(&message)
}

pub fn initialize_message() -> Value {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

/// A session of a client.
pub struct TestMcpSession {
    api: TestApiClient,
    pub id: String,
}

impl TestMcpSession {
    pub fn initialize(api: &TestApiClient) -> RequestBuilder {
        api.request(Method::POST, "/mcp").json(&initialize_message())
    }

    pub async fn begin(api: &TestApiClient) -> Self {
        let response = Self::initialize(api).send().await.unwrap();
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        Self { api: api.clone(), id }
    }

    pub fn with_headers(&self, method: Method) -> RequestBuilder {
        let request = self.api.request(method, "/mcp").header("mcp-session-id", &self.id);
        request.header("mcp-protocol-version", "2025-11-25")
    }

    pub fn request(&self, id: i64, method: &str, params: &Value) -> RequestBuilder {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.with_headers(Method::POST).json(&message)
    }

    pub fn call(&self, id: i64, tool: &str, arguments: &Value) -> RequestBuilder {
        let meta = json!({"progressToken": id});
        self.request(id, "tools/call", &json!({"name": tool, "arguments": arguments, "_meta": meta}))
    }

    pub async fn cancel(&self, id: i64) {
        let params = json!({"requestId": id, "reason": "enough"});
        let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let response = self.with_headers(Method::POST).json(&message).send().await.unwrap();
        assert_eq!(response.status(), 202);
    }

    pub fn resume(&self, event_id: &str) -> RequestBuilder {
        self.with_headers(Method::GET).header("last-event-id", event_id)
    }
}

/// A message of a stream, with the id of its event.
#[derive(Debug)]
pub struct StreamedMessage {
    pub event_id: String,
    pub message: Value,
}

/// The messages of a response stream, one after the other.
pub struct MessageStream {
    pieces: std::pin::Pin<Box<dyn futures_util::Stream<Item = String> + Send>>,
    unread: String,
}

impl MessageStream {
    pub fn of(response: Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let pieces =
            response.bytes_stream().map(|piece| String::from_utf8_lossy(&piece.unwrap_or_default()).into_owned());
        Self { pieces: Box::pin(pieces), unread: String::new() }
    }

    /// `None` at the end of the stream. Comments and events without data are left out.
    pub async fn next(&mut self) -> Option<StreamedMessage> {
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

    pub async fn read_to_end(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(streamed) = self.next().await {
            messages.push(streamed.message);
        }
        messages
    }
}
