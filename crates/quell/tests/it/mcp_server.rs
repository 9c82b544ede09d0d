//! Quell as an MCP server: over HTTP and on standard input and output, in both generations of the protocol, with the
//! official clients and the conformance tests.

mod calls;
mod conformance;
mod official_clients;
mod stdio;

use quell_test_support::mcp_server_client::{
    MessageStream, STATELESS, TestMcpSession, initialize_message, request_with, stateless_call, stateless_message,
    stateless_request,
};
use reqwest::RequestBuilder;

use crate::prelude::*;
use quell_test_support::npm_packages::NpmPackages;

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
