//! The official test server, `@modelcontextprotocol/server-everything`, over stdio and streamable HTTP.

use std::process::Stdio;

use quell_mcp::McpConfig;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout};

use super::call_row;
use super::late_answers::wait_amendments;
use crate::npm_packages::{self, NpmPackages};
use crate::prelude::*;

const SERVER_PACKAGES: NpmPackages = NpmPackages {
    name: "mcp-everything",
    files: &[
        ("package.json", include_str!("npm/package.json")),
        ("package-lock.json", include_str!("npm/package-lock.json")),
    ],
};

fn server_program(folder: &Path) -> PathBuf {
    folder.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

/// `None` where tests with packages of npm are skipped.
async fn start_over_pipes() -> Option<TestEngine> {
    if npm_packages::is_skipped() {
        return None;
    }
    let folder = npm_packages::install_packages(&SERVER_PACKAGES).await;
    let server = McpConfig {
        command: Some("node".to_owned()),
        args: vec![server_program(&folder).display().to_string(), "stdio".to_owned()],
        ..McpConfig::default()
    };
    Some(start_engine(server).await)
}

async fn start_engine(server: McpConfig) -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.mcp.insert("all".to_owned(), server);
    })
    .await
}

async fn call_tool(test: &TestEngine, tool: &str, arguments: Value) -> String {
    test.model.script(ScriptedResponse::tool_call(format!("call-{tool}"), format!("all__{tool}"), &arguments));
    test.model.script(ScriptedResponse::text("fine"));
    assert_eq!(test.run_message("s", "do it").await.output.as_deref(), Some("fine"));
    let messages = test.last_messages();
    let result = messages.iter().rfind(|message| message["role"] == "tool");
    result.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
}

async fn start_long_operation(test: &TestEngine, steps: u32) -> RunId {
    let arguments = json!({"duration": 60, "steps": steps});
    test.model.script(ScriptedResponse::tool_call("long", "all__trigger-long-running-operation", &arguments));
    let run = test.send(submission("s", "take your time")).await;
    test.wait_resource_held(&run, ResourceKind::McpCall).await;
    run
}

/// Identifies the server process by the `QUELL_RUN_ID` in its environment.
async fn server_instance(test: &TestEngine) -> String {
    let text = call_tool(test, "get-env", json!({})).await;
    let env: Value = serde_json::from_str(&text).unwrap();
    env["QUELL_RUN_ID"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn its_tools_work() {
    let Some(test) = start_over_pipes().await else { return };
    assert_eq!(call_tool(&test, "echo", json!({"message": "hello"})).await, "Echo: hello");
    assert_eq!(call_tool(&test, "get-sum", json!({"a": 2, "b": 3})).await, "The sum of 2 and 3 is 5.");
    let weather = call_tool(&test, "get-structured-content", json!({"location": "New York"})).await;
    assert_eq!(weather.matches("temperature").count(), 1, "{weather}");
    let image = call_tool(&test, "get-tiny-image", json!({})).await;
    assert!(image.contains("[an image, image/png, ") && image.len() < 1000, "{image}");
    let links = call_tool(&test, "get-resource-links", json!({"count": 2})).await;
    assert_eq!(links.matches("[a link to the resource ").count(), 2, "{links}");
    let refused = call_tool(&test, "get-sum", json!({"a": "two"})).await;
    assert!(refused.contains("Invalid arguments"), "{refused}");
    let long = call_tool(&test, "trigger-long-running-operation", json!({"duration": 0.2, "steps": 2})).await;
    assert!(long.starts_with("Long running operation completed"), "{long}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_long_operation_is_cancelled_and_the_connection_kept() {
    let Some(test) = start_over_pipes().await else { return };
    let before = server_instance(&test).await;
    let run = start_long_operation(&test, 1).await;
    test.stop(&run);
    let view = test.wait_ended(&run).await;
    // A stop before the call is sent certainly cancels it.
    assert!(matches!(call_row(&view).how.as_str(), "unconfirmed" | "cancelled"), "{view:#?}");
    assert_eq!(server_instance(&test).await, before);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_long_operation_goes_on_after_the_cancel_so_it_is_restarted() {
    let Some(test) = start_over_pipes().await else { return };
    let before = server_instance(&test).await;
    let run = start_long_operation(&test, 600).await;
    test.wait_printed(&run, "progress: 3 of 600").await;
    test.stop(&run);
    let view = test.wait_ended(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    let kinds: Vec<Value> = wait_amendments(&test, &run, 2).await.iter().map(|found| found["kind"].clone()).collect();
    assert_eq!(kinds, ["late_progress", "server_ended"]);
    assert_ne!(server_instance(&test).await, before);
    test.close().await;
}

/// The server in its HTTP mode.
struct OfficialHttpServer {
    url: String,
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl OfficialHttpServer {
    async fn start() -> Self {
        let folder = npm_packages::install_packages(&SERVER_PACKAGES).await;
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let mut server = npm_packages::program_command("node");
        server.arg(server_program(&folder)).arg("streamableHttp").env("PORT", port.to_string()).stdout(Stdio::piped());
        let mut child = server.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listens =
            move || std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string());
        leaks::wait_until(WAIT_TIMEOUT, listens).await;
        Self { url: format!("http://127.0.0.1:{port}/mcp"), lines, _child: child }
    }

    /// Waits until the server has printed this.
    async fn wait_output(&mut self, text: &str) {
        let mut seen = Vec::new();
        let reading = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                seen.push(line);
                if seen.last().unwrap().contains(text) {
                    return true;
                }
            }
            false
        };
        let found = tokio::time::timeout(WAIT_TIMEOUT, reading).await;
        assert_eq!(found, Ok(true), "the server did not print {text:?}: {seen:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_it_is_called_cancelled_and_its_session_closed() {
    if npm_packages::is_skipped() {
        return;
    }
    let mut server = OfficialHttpServer::start().await;
    let test = start_engine(McpConfig { url: Some(server.url.clone()), ..McpConfig::default() }).await;
    assert_eq!(call_tool(&test, "get-sum", json!({"a": 2, "b": 3})).await, "The sum of 2 and 3 is 5.");
    let run = start_long_operation(&test, 600).await;
    test.wait_printed(&run, "progress: 3 of 600").await;
    test.stop(&run);
    let view = test.wait_ended(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert_eq!(call_tool(&test, "echo", json!({"message": "hello"})).await, "Echo: hello");
    test.close().await;
    server.wait_output("Received session termination request").await;
}
