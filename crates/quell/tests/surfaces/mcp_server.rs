//! Quell as an MCP server: over HTTP and on standard input and output, in both generations of the protocol.

mod calls;
mod stdio;

use quell_test_support::mcp_server_client::{
    MessageStream, TestMcpSession, initialize_message, request_with, stateless_call, stateless_message,
    stateless_request,
};
use reqwest::RequestBuilder;

use crate::prelude::*;

const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A request of a client without a session that declares the extension of tasks.
fn task_request(api: &TestApiClient, method: &str, name: &str, params: &Value) -> RequestBuilder {
    request_with(api, method, name, params, task_capabilities())
}

fn task_capabilities() -> Value {
    json!({"extensions": {TASKS: {}}, "elicitation": {}})
}

/// The answer to a request that is no stream.
async fn answer_of(request: RequestBuilder) -> Value {
    request.send().await.unwrap().json().await.unwrap()
}
