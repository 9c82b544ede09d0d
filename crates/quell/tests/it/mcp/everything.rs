//! The official test server, `@modelcontextprotocol/server-everything`, over its pipes and over streamable HTTP.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use quell_engine::mcp::McpConfig;
use quell_protocol::{ResourceKind, RunId};
use quell_testkit::{Behaviour, leaks};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout};

use super::call_row;
use super::late::amended;
use crate::harness::{Claim, House, PATIENCE, message, receipt};
use crate::node::{self, Packages};

const SERVER: Packages = Packages {
    name: "mcp-everything",
    files: &[
        ("package.json", include_str!("npm/package.json")),
        ("package-lock.json", include_str!("npm/package-lock.json")),
    ],
};

fn program(folder: &Path) -> PathBuf {
    folder.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

async fn over_pipes() -> House {
    let folder = node::install(&SERVER).await;
    let server = McpConfig {
        command: Some("node".to_owned()),
        args: vec![program(&folder).display().to_string(), "stdio".to_owned()],
        ..McpConfig::default()
    };
    house(server).await
}

async fn house(server: McpConfig) -> House {
    House::with(Claim::shared().await, |config| {
        config.mcp.insert("all".to_owned(), server);
    })
    .await
}

async fn answer(house: &House, tool: &str, arguments: Value) -> String {
    house.model.script(Behaviour::tool_call(format!("call-{tool}"), format!("all__{tool}"), &arguments));
    house.model.script(Behaviour::text("fine"));
    assert_eq!(house.ask("s", "do it").await.output.as_deref(), Some("fine"));
    let messages = house.last_messages();
    let result = messages.iter().rfind(|message| message["role"] == "tool");
    result.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
}

async fn long_operation(house: &House, steps: u32) -> RunId {
    let arguments = json!({"duration": 60, "steps": steps});
    house.model.script(Behaviour::tool_call("long", "all__trigger-long-running-operation", &arguments));
    let run = house.send(message("s", "take your time")).await;
    house.holds(&run, ResourceKind::McpCall).await;
    run
}

/// Which process of the server answers, by its own mark in its environment.
async fn instance(house: &House) -> String {
    let text = answer(house, "get-env", json!({})).await;
    let env: Value = serde_json::from_str(&text).unwrap();
    env["QUELL_RUN_ID"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn its_tools_work() {
    if node::is_skipped() {
        return;
    }
    let house = over_pipes().await;
    assert_eq!(answer(&house, "echo", json!({"message": "hello"})).await, "Echo: hello");
    assert_eq!(answer(&house, "get-sum", json!({"a": 2, "b": 3})).await, "The sum of 2 and 3 is 5.");
    let weather = answer(&house, "get-structured-content", json!({"location": "New York"})).await;
    assert_eq!(weather.matches("temperature").count(), 1, "{weather}");
    let image = answer(&house, "get-tiny-image", json!({})).await;
    assert!(image.contains("[an image, image/png, ") && image.len() < 1000, "{image}");
    let links = answer(&house, "get-resource-links", json!({"count": 2})).await;
    assert_eq!(links.matches("[a link to the resource ").count(), 2, "{links}");
    let refused = answer(&house, "get-sum", json!({"a": "two"})).await;
    assert!(refused.contains("Invalid arguments"), "{refused}");
    let long = answer(&house, "trigger-long-running-operation", json!({"duration": 0.2, "steps": 2})).await;
    assert!(long.starts_with("Long running operation completed"), "{long}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_long_operation_is_cancelled_and_the_connection_kept() {
    if node::is_skipped() {
        return;
    }
    let house = over_pipes().await;
    let before = instance(&house).await;
    let run = long_operation(&house, 1).await;
    house.stop(&run);
    let view = house.ended(&run).await;
    // A stop that is there before the call was sent cancels it for certain.
    assert!(matches!(call_row(&view).how.as_str(), "unconfirmed" | "cancelled"), "{view:#?}");
    assert_eq!(instance(&house).await, before);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_long_operation_goes_on_after_the_cancel_so_it_is_restarted() {
    if node::is_skipped() {
        return;
    }
    let house = over_pipes().await;
    let before = instance(&house).await;
    let run = long_operation(&house, 600).await;
    house.printed(&run, "progress: 3 of 600").await;
    house.stop(&run);
    let view = house.ended(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    let kinds: Vec<Value> = amended(&house, &run, 2).await.iter().map(|found| found["kind"].clone()).collect();
    assert_eq!(kinds, ["late_progress", "server_ended"]);
    assert_ne!(instance(&house).await, before);
    house.close().await;
}

/// The server in its HTTP mode.
struct OverHttp {
    url: String,
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl OverHttp {
    async fn start() -> Self {
        let folder = node::install(&SERVER).await;
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let mut server = node::command("node");
        server.arg(program(&folder)).arg("streamableHttp").env("PORT", port.to_string()).stdout(Stdio::piped());
        let mut child = server.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listens =
            move || std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string());
        leaks::settled(PATIENCE, listens).await;
        Self { url: format!("http://127.0.0.1:{port}/mcp"), lines, _child: child }
    }

    /// Waits until it has printed this.
    async fn says(&mut self, text: &str) {
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
        let found = tokio::time::timeout(PATIENCE, reading).await;
        assert_eq!(found, Ok(true), "it did not say {text:?}: {seen:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_it_is_called_cancelled_and_its_session_closed() {
    if node::is_skipped() {
        return;
    }
    let mut server = OverHttp::start().await;
    let house = house(McpConfig { url: Some(server.url.clone()), ..McpConfig::default() }).await;
    assert_eq!(answer(&house, "get-sum", json!({"a": 2, "b": 3})).await, "The sum of 2 and 3 is 5.");
    let run = long_operation(&house, 600).await;
    house.printed(&run, "progress: 3 of 600").await;
    house.stop(&run);
    let view = house.ended(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert_eq!(answer(&house, "echo", json!({"message": "hello"})).await, "Echo: hello");
    house.close().await;
    server.says("Received session termination request").await;
}
