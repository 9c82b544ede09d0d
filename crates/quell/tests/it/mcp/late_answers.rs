//! Answers that arrive after a stop amend the receipt. The stop settles as soon as the server reads.

use quell_mcp::McpConfig;
use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};
use quell_testkit::mcp;

use super::{McpFixture, call_row, config_section};
use crate::prelude::*;

/// A server that would be ended for its silence after a minute, for which no test waits.
fn set_long_grace(server: &mut McpConfig) {
    server.grace_ms = Some(60_000);
}

/// A file that does not exist yet.
fn gate_path(fixture: &McpFixture) -> PathBuf {
    fixture.log.with_file_name("gate")
}

impl McpFixture {
    /// Stops a run whose call goes on in the background of the server, and returns the run and the closed gate.
    async fn stop_pending_call(&self, tool: &str) -> (RunId, PathBuf) {
        let gate = gate_path(self);
        let calls_before = mcp::received_messages_of(&self.log, "tools/call").len();
        let run = self.start_call("s", tool, json!({"text": gate.display().to_string()})).await;
        self.wait_resource_held(&run, ResourceKind::McpCall).await;
        self.wait_messages("tools/call", calls_before + 1).await;
        assert_eq!(self.stop(&run).aborted.len(), 1);
        let view = self.wait_ended(&run).await;
        let row = call_row(&view);
        assert_eq!(row.how, "unconfirmed", "{row:#?}");
        assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).rung == Rung::Cancel, "{view:#?}");
        assert_eq!(read_amendments(self, &run).await, Vec::<Value>::new());
        (run, gate)
    }
}

/// Waits until the receipt of a run has `count` amendments, and returns them.
pub(super) async fn wait_amendments(test: &TestEngine, run: &RunId, count: usize) -> Vec<Value> {
    poll_until("amendments of the receipt", async || {
        let found = read_amendments(test, run).await;
        (found.len() >= count).then_some(found)
    })
    .await
}

async fn read_amendments(test: &TestEngine, run: &RunId) -> Vec<Value> {
    let view = test.engine.find_run(run).await.unwrap().unwrap();
    let receipt = serde_json::to_value(receipt_of(&view)).unwrap();
    receipt["amendments"].as_array().cloned().unwrap_or_default()
}

fn open_gate(gate: &Path) {
    std::fs::write(gate, "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_settles_as_soon_as_the_server_reads_on() {
    let fixture = McpFixture::start_with(set_long_grace).await;
    let before = fixture.call_and_answer("s", "pid").await;
    let ends = [("wait", "unconfirmed"), ("decline", "cancelled"), ("finish", "finished")];
    for (calls, (tool, how)) in (2..).zip(ends) {
        let run = fixture.start_call("s", tool, json!({})).await;
        fixture.wait_resource_held(&run, ResourceKind::McpCall).await;
        fixture.wait_messages("tools/call", calls).await;
        fixture.stop(&run);
        let view = fixture.wait_ended(&run).await;
        // If the stop waited for the grace, the forced stop would have ended the server first.
        assert_eq!(call_row(&view).how, how, "{tool}: {view:#?}");
        assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).rung <= Rung::Cancel, "{view:#?}");
    }
    assert_eq!(fixture.call_and_answer("s", "pid").await, before, "the server was restarted");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_pings_reads_all_the_same() {
    let fixture = McpFixture::start_with(|server| {
        set_long_grace(server);
        server.env.insert("MCP_NO_PING".to_owned(), "1".to_owned());
    })
    .await;
    let before = fixture.call_and_answer("s", "pid").await;
    let run = fixture.start_call("s", "wait", json!({})).await;
    fixture.wait_messages("tools/call", 2).await;
    fixture.stop(&run);
    let view = fixture.wait_ended(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert_eq!(fixture.call_and_answer("s", "pid").await, before, "the server was restarted");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_late_amends_the_receipt_and_costs_the_server() {
    let fixture = McpFixture::start_with(set_long_grace).await;
    let (run, gate) = fixture.stop_pending_call("late").await;
    // The message after the stop did not wait, and uses the same server.
    let before = fixture.call_and_answer("s", "pid").await;
    assert_eq!(read_amendments(&fixture, &run).await, Vec::<Value>::new());
    open_gate(&gate);
    let found = wait_amendments(&fixture, &run, 1).await;
    assert_eq!(
        (&found[0]["kind"], &found[0]["resource"]),
        (&json!("late_result"), &json!(call_row_id(&fixture, &run).await))
    );
    assert!(found[0]["text"].as_str().unwrap().contains("MCP server test finished the call"), "{found:#?}");
    assert!(found[0]["at"]["ms"].as_f64().unwrap() > 0.0, "{found:#?}");
    assert_ne!(fixture.call_and_answer("s", "pid").await, before, "the server was not restarted");
    assert!(!super::last_request_text(&fixture).contains("finished in secret"), "a late result reached the model");
    fixture.close().await;
}

async fn call_row_id(fixture: &McpFixture, run: &RunId) -> u64 {
    let view = fixture.engine.find_run(run).await.unwrap().unwrap();
    call_row(&view).id
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_that_comes_late_amends_the_receipt_and_ends_the_server() {
    // Long enough for the ping on a busy machine; progress counts as late after half of it.
    let fixture = McpFixture::start_with(|server| server.grace_ms = Some(2000)).await;
    let before = fixture.call_and_answer("s", "pid").await;
    let (run, gate) = fixture.stop_pending_call("drip").await;
    open_gate(&gate);
    let found = wait_amendments(&fixture, &run, 2).await;
    let kinds: Vec<&Value> = found.iter().map(|amendment| &amendment["kind"]).collect();
    assert_eq!(kinds, ["late_progress", "server_ended"], "{found:#?}");
    assert!(found[0]["text"].as_str().unwrap().contains("went on with the call after its cancel"), "{found:#?}");
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    assert_ne!(fixture.call_and_answer("s", "pid").await, before);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_comes_late_confirms_the_cancel() {
    let fixture = McpFixture::start_with(set_long_grace).await;
    let before = fixture.call_and_answer("s", "pid").await;
    let (run, gate) = fixture.stop_pending_call("sorry").await;
    let mut watcher = NoticeRecorder::subscribe(&fixture.engine);
    open_gate(&gate);
    let found = wait_amendments(&fixture, &run, 1).await;
    assert_eq!(found[0]["kind"], "confirmed", "{found:#?}");
    assert!(watcher.run_events(&run).is_empty(), "an event followed the end of the run");
    assert_eq!(fixture.call_and_answer("s", "pid").await, before, "a server that obeyed was ended");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_call_does_not_cost_the_call_of_another_session() {
    let fixture = McpFixture::start_with(|server| {
        set_long_grace(server);
        server.shared = true;
    })
    .await;
    let before = fixture.call_and_answer("two", "pid").await;
    let (run, gate) = fixture.stop_pending_call("late").await;
    let other = fixture.start_held_call("two", "finish", json!({}), 3).await;
    open_gate(&gate);
    wait_amendments(&fixture, &run, 1).await;
    // New calls go to another server; the other session's call continues on the old one.
    assert_ne!(fixture.call_and_answer("one", "pid").await, before);
    fixture.wait_servers(2).await;
    assert!(fixture.holds_call(&other));
    fixture.stop(&other);
    assert_eq!(call_row(&fixture.wait_ended(&other).await).how, "finished");
    fixture.wait_servers(1).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_not_told_twice_when_it_comes_with_its_structure() {
    let fixture = McpFixture::start().await;
    assert_eq!(fixture.call_and_answer("s", "twice").await, "hello");
    fixture.close().await;
}

/// The call times out and its run continues: amendments before the end of the run are in the first receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_during_the_run_is_in_its_receipt() {
    let fixture = McpFixture::start_with(|server| {
        set_long_grace(server);
        server.call_timeout_s = Some(1);
    })
    .await;
    let gate = gate_path(&fixture);
    fixture.model.script(ScriptedResponse::tool_call("c1", "test__late", &json!({"text": gate.display().to_string()})));
    fixture.model.script(ScriptedResponse::silent_mid_stream("I wait"));
    let run = fixture.send(submission("s", "do it")).await;
    fixture.wait_messages("notifications/cancelled", 1).await;
    fixture.wait_text(&run).await;
    open_gate(&gate);
    fixture.wait_servers(0).await;
    fixture.stop(&run);
    let view = fixture.wait_ended(&run).await;
    let found = serde_json::to_value(receipt_of(&view)).unwrap();
    assert_eq!(found["amendments"][0]["kind"], "late_result", "{found:#}");
    assert_eq!(call_row(&view).how, "unconfirmed");
    fixture.close().await;
}

/// An amendment is sent as an event beside the run's own events, and shown in the run's view and in the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn an_amendment_is_told_and_outlives_the_daemon() {
    let _process_lock = ProcessLock::shared().await;
    let (exe, folder, model) = (quell_exe(), tempfile::tempdir().unwrap(), ScriptedModel::start().await);
    let [gate, log] = ["gate", "log"].map(|name| folder.path().join(name));
    let section = config_section(folder.path(), &format!("MCP_LOG = {log:?}"));
    let home = DaemonHome::new(&config_toml(&model, &section));
    let daemon = home.start(exe).await;
    let mut gateway = GatewayTestClient::connect(&daemon).await;
    model.script(ScriptedResponse::tool_call("c1", "test__late", &json!({"text": gate.display().to_string()})));
    gateway.start_run("late-1").await;
    poll_until("the call", async || (!mcp::received_messages_of(&log, "tools/call").is_empty()).then_some(())).await;
    gateway.send_request("runs.stop", json!({"runId": "late-1"})).await;
    let (_, ended) = gateway.wait_for_frame(is_run_ended).await;
    let receipt = ended["payload"]["receipt"].clone();
    assert_eq!((&receipt["amendments"], &receipt["leftovers"]), (&json!([]), &json!([])), "{receipt:#}");
    open_gate(&gate);
    let (_, frame) = gateway.wait_for_frame(|frame| frame["event"] == "run.amended").await;
    assert_eq!(frame["payload"]["runId"], "late-1");
    assert_eq!(frame["payload"]["amendment"]["kind"], "late_result", "{frame:#}");
    let amendments = |answer: Value| answer["receipt"]["amendments"].clone();
    let now = amendments(daemon.api().get("/api/runs/late-1").await.expect_status(200));
    assert_eq!(now, json!([frame["payload"]["amendment"]]));
    drop(gateway);
    daemon.kill9().await;
    let daemon = home.start(exe).await;
    assert_eq!(amendments(daemon.api().get("/api/runs/late-1").await.expect_status(200)), now);
    let shown = run_cli(&home, &["runs", "show", "late-1"]).out;
    assert!(shown.contains(" later: the MCP server test finished the call all the same"), "{shown}");
    assert!(shown.contains("1 MCP call told to cancel, not confirmed"), "{shown}");
    daemon.stop().await;
}
