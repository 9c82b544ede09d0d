//! Test support: the official client in a Node of its own, with `quell acp` below it.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::npm_packages::{self, NpmPackages};
use crate::prelude::*;

const PACKAGES: NpmPackages = NpmPackages {
    name: "acp-clients",
    files: &[
        ("package.json", include_str!("acp_client/package.json")),
        ("package-lock.json", include_str!("acp_client/package-lock.json")),
        ("client.mjs", include_str!("acp_client/client.mjs")),
    ],
};

/// The folder with the packages, and the Node in it: acpx needs 22.13 or later.
pub async fn packages_and_node() -> (PathBuf, PathBuf) {
    let folder = npm_packages::install_packages(&PACKAGES).await;
    let node = format!("node_modules/node-linux-{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" });
    let node = folder.join(node).join("bin/node");
    (folder, node)
}

pub struct AcpTestClient {
    _node: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    request_count: u64,
    /// What was read while something else was waited for, in order.
    seen: Vec<Value>,
}

impl AcpTestClient {
    /// Starts the client, and `quell acp` with these arguments below it, in the home of the daemon; initialises them.
    pub async fn start(daemon: &TestDaemon, args: &[&str]) -> Self {
        let mut client = Self::spawn(daemon, "1", args).await;
        let capabilities = json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false});
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        let hello = client.call("initialize", params).await.unwrap();
        assert_fields(&hello, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
        client
    }

    /// The same with version 2 of the protocol. `asked` is the version in the request.
    pub async fn start_version_2(daemon: &TestDaemon, asked: u64) -> Self {
        let mut client = Self::spawn(daemon, "2", &[]).await;
        let info = json!({"name": "it-acp", "version": "1"});
        let params = json!({"protocolVersion": asked, "info": info, "capabilities": {}});
        let hello = client.call("initialize", params).await.unwrap();
        assert_fields(&hello, &json!({"protocolVersion": 2, "capabilities": {"session": {"prompt": {"image": {}}}}}));
        client
    }

    async fn spawn(daemon: &TestDaemon, version: &str, args: &[&str]) -> Self {
        let (folder, node) = packages_and_node().await;
        let mut command = npm_packages::program_command(node.to_str().unwrap());
        command.arg(folder.join("client.mjs")).arg(version).arg(quell_exe()).arg("acp").args(args);
        let home = daemon.home().command(quell_exe());
        let variables = home.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(variables).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut node = command.spawn().unwrap();
        let (input, output) = (node.stdin.take().unwrap(), node.stdout.take().unwrap());
        let output = BufReader::new(output).lines();
        Self { _node: node, input, output, request_count: 0, seen: Vec::new() }
    }

    async fn act(&mut self, action: Value) {
        self.input.write_all(format!("{action}\n").as_bytes()).await.unwrap();
        self.input.flush().await.unwrap();
    }

    /// Sends a request; returns its number.
    pub async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.request_count += 1;
        let id = self.request_count;
        self.act(json!({"do": "request", "id": id, "method": method, "params": params})).await;
        id
    }

    /// Sends a request and waits for its answer; returns the result, or the error.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    pub async fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let line = self.wait_for("an answer", |line| line["answer"] == id).await;
        if line["error"].is_null() { Ok(line["result"].clone()) } else { Err(line["error"].clone()) }
    }

    pub async fn notify(&mut self, method: &str, params: Value) {
        self.act(json!({"do": "notify", "method": method, "params": params})).await;
    }

    /// Cancels a request by `$/cancel_request`.
    pub async fn cancel_request(&mut self, id: u64) {
        self.act(json!({"do": "abort", "id": id})).await;
    }

    pub async fn permit(&mut self, permission: &Value, outcome: Value) {
        self.act(json!({"do": "permit", "permission": permission["permission"], "outcome": outcome})).await;
    }

    pub async fn send_raw(&mut self, line: &str) {
        self.act(json!({"do": "raw", "line": line})).await;
    }

    /// Closes the standard input of `quell acp`.
    pub async fn close_input(&mut self) {
        self.act(json!({"do": "close"})).await;
    }

    pub async fn kill9(&mut self) {
        self.act(json!({"do": "kill"})).await;
    }

    /// Waits until a line that was not returned yet has these properties; the others stay.
    pub async fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let at = self.find_line(what, wanted).await;
        self.seen.remove(at)
    }

    /// Waits for a line with these properties and takes the updates up to it, in order.
    pub async fn updates_until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let at = self.find_line(what, wanted).await;
        let (updates, others): (Vec<Value>, _) = self.seen.drain(..=at).partition(|line| line["update"].is_object());
        self.seen.splice(..0, others);
        updates.into_iter().map(|line| line["update"].clone()).collect()
    }

    /// The place of such a line in `seen`.
    async fn find_line(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> usize {
        if let Some(at) = self.seen.iter().position(&wanted) {
            return at;
        }
        let found = tokio::time::timeout(WAIT_TIMEOUT, async {
            loop {
                let line = self.output.next_line().await.unwrap().expect("the client has ended");
                let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                let is_wanted = wanted(&line);
                self.seen.push(line);
                if is_wanted {
                    return self.seen.len() - 1;
                }
            }
        });
        let Ok(at) = found.await else { panic!("no {what} came; seen: {:#?}", self.seen) };
        at
    }

    pub async fn wait_update(&mut self, kind: &str) -> Value {
        let line = self.wait_for(kind, |line| line["update"]["sessionUpdate"] == kind).await;
        line["update"].clone()
    }

    /// Takes the updates that came so far, in order.
    pub fn take_updates(&mut self) -> Vec<Value> {
        let (updates, others) = self.seen.drain(..).partition(|line| line["update"].is_object());
        self.seen = others;
        let updates: Vec<Value> = updates;
        updates.into_iter().map(|line| line["update"].clone()).collect()
    }
}

/// The text of the updates of this kind, joined.
pub fn joined_text(updates: &[Value], kind: &str) -> String {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
    chunks.map(|update| update["content"]["text"].as_str().unwrap_or_default()).collect()
}
