//! An editor that does not read for a while.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{AcpFixture, text_prompt};
use crate::prelude::*;

/// Far more than a pipe holds: each piece is a line of about 170 bytes.
const PIECES: usize = 5_000;

fn long_text() -> impl Iterator<Item = String> {
    (0..PIECES).map(|piece| format!("piece {piece} "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_that_read_nothing_until_the_end_gets_everything_in_order() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let long = long_text().fold(ScriptedStream::new(), ScriptedStream::text);
    let command = json!({"command": "echo between"});
    fixture.model.script(long.tool_call("c1", "shell", &command));
    fixture.model.script(ScriptedResponse::text("the end"));
    let mut editor = tokio::process::Command::from(fixture.daemon.home().command(quell_exe()));
    let mut editor = editor.arg("acp").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut input = editor.stdin.take().unwrap();
    let mut output = BufReader::new(editor.stdout.take().unwrap()).lines();
    let mut call = async |id: u64, method: &str, params: Value| {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        input.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    };
    let mut next_line = async || {
        let line = tokio::time::timeout(WAIT_TIMEOUT, output.next_line()).await.expect("a line in time");
        serde_json::from_str::<Value>(&line.unwrap().expect("the process has ended")).unwrap()
    };
    call(1, "initialize", json!({"protocolVersion": 1})).await;
    assert_eq!(next_line().await["result"]["protocolVersion"], 1);
    call(2, "session/new", json!({"cwd": fixture.project(), "mcpServers": []})).await;
    let session = next_line().await["result"]["sessionId"].as_str().unwrap().to_owned();
    call(3, "session/prompt", text_prompt(&session, "write much")).await;
    // The run does not wait for the editor.
    fixture.ended_run(&session).await;
    let (mut text, mut kinds) = (String::new(), Vec::new());
    let answer = loop {
        let line = next_line().await;
        if line["id"] == 3 {
            break line;
        }
        let update = &line["params"]["update"];
        let kind = update["sessionUpdate"].as_str().unwrap().to_owned();
        if kind == "agent_message_chunk" {
            text.push_str(update["content"]["text"].as_str().unwrap());
        }
        if kinds.last() != Some(&kind) {
            kinds.push(kind);
        }
    };
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer:#}");
    let whole: String = long_text().chain(["the end".to_owned()]).collect();
    assert!(
        text == whole,
        "{} of {} bytes came, and end in {:?}",
        text.len(),
        whole.len(),
        text.get(text.len().saturating_sub(40)..)
    );
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool_call").count(), 1, "{kinds:?}");
}
