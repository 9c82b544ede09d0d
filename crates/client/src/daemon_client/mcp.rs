//! Send messages of MCP to the daemon, for a program on standard input and output.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response};

use super::{ClientError, DaemonClient};

/// Tells the daemon that the connection ends with the program that asks.
const STDIO_HEADER: &str = "x-quell-stdio";

/// What the headers of a message repeat of it.
#[derive(Debug, Default)]
pub(crate) struct McpHeaders {
    pub(crate) version: Option<String>,
    pub(crate) session: Option<HeaderValue>,
    pub(crate) method: Option<String>,
    pub(crate) name: Option<String>,
}

impl DaemonClient {
    /// Sends a message; the answer may be JSON or a stream, and has any status.
    ///
    /// # Cancel safety
    /// If dropped, the connection ends, which stops the run of a call.
    pub(crate) async fn post_mcp(&self, message: Vec<u8>, headers: McpHeaders) -> Result<Response, ClientError> {
        self.send_mcp(Method::POST, message, headers).await
    }

    pub(crate) async fn end_mcp_session(&self, headers: McpHeaders) -> Result<Response, ClientError> {
        self.send_mcp(Method::DELETE, Vec::new(), headers).await
    }

    async fn send_mcp(&self, method: Method, body: Vec<u8>, headers: McpHeaders) -> Result<Response, ClientError> {
        let mut request = self.build_request(method, &["mcp"], &[])?.header(STDIO_HEADER, "1").body(body);
        request =
            request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = headers.session {
            request = request.header("mcp-session-id", session);
        }
        let McpHeaders { version, method, name, .. } = headers;
        for (header, value) in [("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)] {
            if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()) {
                request = request.header(header, value);
            }
        }
        request.send().await.map_err(|error| self.transport_error(&error))
    }
}
