//! Test support: the MCP server of the testkit in a configuration, and what a call of it leaves.

use quell_engine::engine::Caller;
use quell_mcp::McpConfig;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow};
use quell_protocol::question::parse_answer_fields;
use quell_protocol::{Resource, SandboxMode};
use quell_testkit::mcp;

use crate::prelude::*;

pub fn test_server_config(marker: &ProcessMarker, log: &Path) -> McpConfig {
    let env = [("MCP_LOG", log.display().to_string()), ("MCP_MARK", marker.as_str().to_owned())];
    McpConfig {
        command: Some("sh".to_owned()),
        args: vec!["-c".to_owned(), mcp::SERVER_SCRIPT.to_owned()],
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        // It writes its log outside of the workdir.
        sandbox: Some(SandboxMode::Off),
        ..McpConfig::default()
    }
}

/// A section for a configuration file whose server lies in this folder.
pub fn config_section(folder: &Path, env: &str) -> String {
    let script = folder.join("server.sh");
    std::fs::write(&script, mcp::SERVER_SCRIPT).unwrap();
    format!("[mcp.test]\ncommand = \"sh\"\nargs = [{script:?}]\nenv = {{ {env} }}\nsandbox = \"off\"\n")
}

/// The only row of the receipt that is a call; the wait for a server's start does not count.
pub fn call_row(view: &RunView) -> &Resource {
    let is_call = |row: &&Resource| row.kind == ResourceKind::McpCall && !row.label.ends_with(": start");
    let mut rows = receipt_of(view).resources.iter().filter(is_call);
    let row = rows.next().unwrap_or_else(|| panic!("no call: {view:#?}"));
    assert!(rows.next().is_none(), "{view:#?}");
    row
}

/// The last tool result that the model got.
pub fn last_result(test_engine: &TestEngine) -> String {
    let messages = test_engine.last_messages();
    let result = messages.iter().rfind(|message| message["role"] == "tool");
    result.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
}

/// Waits until the receipt of a run has `count` amendments, and returns them.
pub async fn wait_amendments(test: &TestEngine, run: &RunId, count: usize) -> Vec<Value> {
    poll_until("amendments of the receipt", async || {
        let found = read_amendments(test, run).await;
        (found.len() >= count).then_some(found)
    })
    .await
}

pub async fn read_amendments(test: &TestEngine, run: &RunId) -> Vec<Value> {
    let view = test.engine.find_run(run).await.unwrap().unwrap();
    let receipt = serde_json::to_value(receipt_of(&view)).unwrap();
    receipt["amendments"].as_array().cloned().unwrap_or_default()
}

/// Waits until a call waits for a person.
pub async fn wait_question(test: &TestEngine) -> ApprovalRow {
    poll_until("a question", async || test.engine.pending_approvals().into_iter().next()).await
}

/// The user as a person, without the right to allow calls.
pub fn user_without_rights() -> Caller {
    Caller { grants: quell_protocol::api::Grants::NONE, verified_person: true, ..alice() }
}

pub fn answer_with_fields(words: &str) -> ApprovalAnswer {
    ApprovalAnswer::with_fields(parse_answer_fields(words).unwrap())
}
