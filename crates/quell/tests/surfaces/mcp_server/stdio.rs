//! `quell mcp`, which finds the daemon of its user by the Unix socket, driven line by line.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::*;

struct StdioMcpClient {
    program: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl StdioMcpClient {
    fn start(daemon: &TestDaemon) -> Self {
        let mut command = daemon.home().command(quell_exe());
        command.arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        let (input, output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        Self { program, input, lines: BufReader::new(output).lines() }
    }

    async fn send(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        self.input.flush().await.unwrap();
    }

    /// Sends a line and returns the next answer; progress is left out.
    async fn ask(&mut self, line: &str) -> Value {
        self.send(line).await;
        loop {
            let answer = tokio::time::timeout(WAIT_TIMEOUT, self.lines.next_line()).await.expect("no answer");
            let answer: Value = serde_json::from_str(&answer.unwrap().expect("the program has ended")).unwrap();
            if answer.get("method").is_none() {
                return answer;
            }
        }
    }

    async fn begin_session(&mut self) {
        self.ask(&initialize_message().to_string()).await;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_at_the_unix_socket_is_no_person_that_allows_calls() {
    let (model, daemon) = start_daemon("approvals = { list_files = \"ask\" }\n").await;
    model.script(list_files_call()).script(ScriptedResponse::text("not listed"));
    let mut client = StdioMcpClient::start(&daemon);
    let mut ask = async |id: i64, method: &str, params: Value| {
        client.ask(&stateless_message(id, method, &params, task_capabilities()).to_string()).await
    };
    let created = ask(1, "tools/call", json!({"name": "run_agent", "arguments": {"message": "go"}})).await;
    let task = created["result"]["taskId"].as_str().unwrap().to_owned();
    let approval = daemon.api().wait_approval().await["id"].as_str().unwrap().to_owned();
    let answer = |decision: &str| {
        let response = json!({&approval: {"action": "accept", "content": {"decision": decision}}});
        json!({"taskId": task, "inputResponses": response})
    };
    let allowed = ask(2, "tasks/update", answer("allow")).await;
    assert_fields(&allowed, &json!({"error": {"code": 403, "data": {"code": "forbidden"}}}));
    assert_fields(&ask(3, "tasks/update", answer("deny")).await, &json!({"result": {"resultType": "complete"}}));
    let ended = daemon.api().wait_ended(&task).await;
    assert_fields(&ended, &json!({"verdict": {"kind": "completed"}, "output": "not listed"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_no_message_is_answered() {
    let (_model, daemon) = start_daemon("").await;
    let mut client = StdioMcpClient::start(&daemon);
    client.begin_session().await;
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for (line, code) in [("{".to_owned(), -32700), (json!([request]).to_string(), -32600)] {
        let answer = client.ask(&line).await;
        assert_eq!((&answer["error"]["code"], answer.get("id")), (&json!(code), None), "{answer:#}");
    }
    assert_eq!(client.ask(&request.to_string()).await, json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_stops_its_call_and_frees_its_watch() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::silent_mid_stream("begun"));
    let other = daemon.api().send_message("other", "look").await;
    let request = model.wait_for_requests(1).await[0].clone();
    request.wait_streaming().await;
    let mut client = StdioMcpClient::start(&daemon);
    client.begin_session().await;
    model.script(ScriptedResponse::silent_mid_stream("begun"));
    let call = |id: i64, tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    client.send(&call(1, "watch_run", json!({"run": other})).to_string()).await;
    client.send(&call(2, "run_agent", json!({"message": "go"})).to_string()).await;
    model.wait_for_requests(2).await[1].wait_streaming().await;
    client.program.start_kill().unwrap();
    client.program.wait().await.unwrap();
    model.wait_for_requests(2).await[1].wait_client_left().await;
    let ended = calls::ended_run(&daemon.api(), "go").await;
    let verdict = json!({"kind": "aborted", "reason": "disconnect"});
    assert_fields(&ended, &json!({"surface": "mcp", "verdict": verdict, "receipt": {"leftovers": []}}));
    // It had only looked on.
    assert_eq!(daemon.api().run_view(&other).await["state"], "running");
    daemon.api().stop_run(&other).await;
    model.wait_for_connections(0).await;
}
