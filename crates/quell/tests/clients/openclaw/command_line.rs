//! `openclaw gateway`, `openclaw agent` and `openclaw acp`, unmodified.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::clients::{CLIENT_TIMEOUT, OpenClawFixture, assert_stopped_cleanly};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_commands_reach_the_daemon() {
    let Some(openclaw) = OpenClawFixture::start("").await else { return };
    let health = openclaw.run(&["gateway", "call", "health"]).await;
    assert!(health.contains("\"ok\": true"), "{health}");
    let models = openclaw.run(&["gateway", "call", "models.list", "--json"]).await;
    assert!(models.contains("\"scripted\""), "{models}");
    let status = openclaw
        .run(&[
            "gateway",
            "status",
            "--url",
            &super::clients::web_socket_url(&openclaw.daemon),
            "--token",
            openclaw.daemon.token(),
        ])
        .await;
    assert!(status.contains("Connectivity probe: ok"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_command_waits_for_the_answer_and_stops() {
    let Some(openclaw) = OpenClawFixture::start("").await else { return };
    openclaw.model.script(ScriptedResponse::text("the answer"));
    let answer = openclaw.run(&["agent", "--session-key", "agent:main:cli", "-m", "hello", "--json"]).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["status"], "ok", "{answer:#}");
    assert_eq!(answer["result"]["payloads"][0]["text"], "the answer", "{answer:#}");

    openclaw.model.script(ScriptedResponse::silent_mid_stream("it goes on"));
    let mut command = openclaw.command(&["agent", "--agent", "main", "-m", "go on"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    openclaw.model.wait_for_requests(2).await;
    let pid = i32::try_from(child.id().unwrap()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_stopped_cleanly(&openclaw.wait_newest_run_ended().await);
    child.wait().await.unwrap();
}

/// An ACP client of `openclaw acp`: one JSON object per line.
struct AcpClient {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    calls: u64,
}

impl AcpClient {
    fn start(openclaw: &OpenClawFixture) -> Self {
        let mut command = openclaw.command(&["acp"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { _process: process, input, output: BufReader::new(output).lines(), calls: 0 }
    }

    async fn write(&mut self, message: Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn request(&mut self, method: &str, params: Value) -> u64 {
        self.calls += 1;
        self.write(json!({"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params})).await;
        self.calls
    }

    /// The next message that is wanted.
    async fn next(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let find = async {
            loop {
                let line = self.output.next_line().await.unwrap().expect("the program has ended");
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                if wanted(&message) {
                    return message;
                }
            }
        };
        tokio::time::timeout(CLIENT_TIMEOUT, find).await.expect("no such message came")
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.next(|message| message["id"] == id && message.get("method").is_none()).await["result"].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_acp_command_prompts_streams_and_cancels() {
    let Some(openclaw) = OpenClawFixture::start("").await else { return };
    let mut acp = AcpClient::start(&openclaw);
    acp.call("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})).await;
    let session = acp.call("session/new", json!({"cwd": "/tmp", "mcpServers": []})).await["sessionId"].clone();
    let prompt = |text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});

    openclaw.model.script(ScriptedResponse::text("the answer"));
    let id = acp.request("session/prompt", prompt("hello")).await;
    acp.next(|message| message["params"]["update"]["content"]["text"] == "the answer").await;
    let done = acp.next(|message| message["id"] == id).await;
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");

    openclaw.model.script(ScriptedResponse::silent_mid_stream("it goes on"));
    let id = acp.request("session/prompt", prompt("go on")).await;
    acp.next(|message| message["params"]["update"]["content"]["text"] == "it goes on").await;
    acp.write(json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})).await;
    let done = acp.next(|message| message["id"] == id).await;
    assert_eq!(done["result"]["stopReason"], "cancelled", "{done}");
    assert_stopped_cleanly(&openclaw.wait_newest_run_ended().await);
}
