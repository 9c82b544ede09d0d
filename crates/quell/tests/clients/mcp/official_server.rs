//! The official test server, `@modelcontextprotocol/server-everything`, over stdio and streamable HTTP.

use std::process::Stdio;

use quell_test_support::mcp_servers::wait_amendments;
use quell_test_support::npm_packages::{self, NpmPackages};
use tokio::net::TcpListener;
use tokio::process::Child;

use super::*;

pub(super) const SERVER_PACKAGES: NpmPackages = NpmPackages {
    name: "mcp-servers",
    files: &[
        ("package.json", include_str!("npm/package.json")),
        ("package-lock.json", include_str!("npm/package-lock.json")),
    ],
};

pub(super) fn server_program(folder: &Path) -> PathBuf {
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
    Some(start_engine(server, &[folder]).await)
}

/// `readable` are the files of the server, which a sandbox hides where the checkout is in /tmp.
pub(super) async fn start_engine(server: McpConfig, readable: &[PathBuf]) -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        for agent in config.agents.values_mut() {
            agent.readable.extend_from_slice(readable);
        }
        config.mcp.insert("all".to_owned(), server);
    })
    .await
}

pub(super) async fn call_tool(test: &TestEngine, tool: &str, arguments: Value) -> String {
    test.model.script(ScriptedResponse::tool_call(format!("call-{tool}"), format!("all__{tool}"), &arguments));
    test.model.script(ScriptedResponse::text("fine"));
    assert_eq!(test.run_message("s", "do it").await.output.as_deref(), Some("fine"));
    last_result(test)
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
async fn its_long_operation_is_cancelled_and_it_is_restarted_if_it_goes_on() {
    let Some(test) = start_over_pipes().await else { return };
    let before = server_instance(&test).await;
    let run = start_long_operation(&test, 1).await;
    let view = test.stop_and_wait(&run).await;
    // A stop before the call is sent certainly cancels it.
    assert!(matches!(call_row(&view).how.as_str(), "unconfirmed" | "cancelled"), "{view:#?}");
    assert_eq!(server_instance(&test).await, before, "the connection was not kept");
    let run = start_long_operation(&test, 600).await;
    test.wait_printed(&run, "progress: 3 of 600").await;
    let view = test.stop_and_wait(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    let kinds: Vec<Value> = wait_amendments(&test, &run, 2).await.iter().map(|found| found["kind"].clone()).collect();
    assert_eq!(kinds, ["late_progress", "server_ended"]);
    assert_ne!(server_instance(&test).await, before);
    test.close().await;
}

/// Starts the server in its HTTP mode, which prints to this file; returns its URL and its process.
async fn start_over_http(output: &Path) -> (String, Child) {
    let folder = npm_packages::install_packages(&SERVER_PACKAGES).await;
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let mut server = npm_packages::program_command("node");
    server.arg(server_program(&folder)).arg("streamableHttp").env("PORT", port.to_string());
    server.stdout(std::fs::File::create(output).unwrap()).stderr(Stdio::null());
    let child = server.spawn().unwrap();
    let listens = async || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
    poll_until("the server's port", listens).await;
    (format!("http://127.0.0.1:{port}/mcp"), child)
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_it_is_called_cancelled_and_its_session_closed() {
    if npm_packages::is_skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let (url, _server) = start_over_http(&output).await;
    let test = start_engine(McpConfig { url: Some(url), ..McpConfig::default() }, &[]).await;
    assert_eq!(call_tool(&test, "get-sum", json!({"a": 2, "b": 3})).await, "The sum of 2 and 3 is 5.");
    let run = start_long_operation(&test, 600).await;
    test.wait_printed(&run, "progress: 3 of 600").await;
    let view = test.stop_and_wait(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert_eq!(call_tool(&test, "echo", json!({"message": "hello"})).await, "Echo: hello");
    test.close().await;
    let is_closed = async || {
        std::fs::read_to_string(&output).unwrap().contains("Received session termination request").then_some(())
    };
    poll_until("the end of the session", is_closed).await;
}
