//! Answers that arrive after a stop amend the receipt.

use quell_test_support::mcp_servers::{read_amendments, wait_amendments};
use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};

use super::*;
use crate::test_engine::skip_time;

/// A file that does not exist yet.
fn gate_path(fixture: &McpFixture) -> PathBuf {
    fixture.log.with_file_name("gate")
}

impl McpFixture {
    /// Stops a run whose call goes on in the background of the server, and returns the run and the closed gate.
    async fn stop_pending_call(&self, tool: &str) -> (RunId, PathBuf) {
        let gate = gate_path(self);
        let calls_before = mcp::received_messages_of(&self.log, "tools/call").len();
        let text = json!({"text": gate.display().to_string()});
        let run = self.start_held_call("s", tool, text, calls_before + 1).await;
        let view = self.stop_to_end(&run).await;
        assert_eq!((call_row(&view).how.as_str(), receipt_of(&view).rung), ("unconfirmed", Rung::Cancel), "{view:#?}");
        assert_eq!(read_amendments(self, &run).await, Vec::<Value>::new());
        (run, gate)
    }
}

#[rstest]
#[case::a_result("late", &["late_result"], "MCP server test finished the call")]
#[case::progress("drip", &["late_progress", "server_ended"], "went on with the call after its cancel")]
#[case::a_refusal("sorry", &["confirmed"], "")]
#[tokio::test]
async fn what_comes_late_amends_the_receipt_and_may_cost_the_server(
    #[case] tool: &str,
    #[case] kinds: &[&str],
    #[case] says: &str,
) {
    let fixture = McpFixture::start_with(|server| {
        server.grace_ms = Some(LONG_GRACE_MS);
        set_env(server, &["MCP_WORKER"]);
    })
    .await;
    let before = fixture.call_and_answer("s", "pid").await;
    let (run, gate) = fixture.stop_pending_call(tool).await;
    // The message after the stop did not wait, and uses the same server.
    assert_eq!(fixture.call_and_answer("s", "pid").await, before);
    assert_eq!(read_amendments(&fixture, &run).await, Vec::<Value>::new());
    let mut watcher = NoticeRecorder::subscribe(&fixture.engine);
    // Progress counts as late after half of the grace.
    skip_time(Duration::from_millis(LONG_GRACE_MS)).await;
    std::fs::write(&gate, "").unwrap();
    let found = wait_amendments(&fixture, &run, kinds.len()).await;
    assert_eq!(found.iter().map(|amendment| &amendment["kind"]).collect::<Vec<_>>(), kinds, "{found:#?}");
    let call = call_row(&fixture.engine.find_run(&run).await.unwrap().unwrap()).id;
    assert_eq!(found[0]["resource"], call, "{found:#?}");
    assert!(found[0]["text"].as_str().unwrap().contains(says), "{found:#?}");
    assert!(found[0]["at"]["ms"].as_f64().unwrap() > 0.0, "{found:#?}");
    assert!(watcher.run_events(&run).is_empty(), "an event followed the end of the run");
    if kinds.contains(&"server_ended") {
        fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    }
    // Only a server that obeyed is kept.
    assert_eq!(fixture.call_and_answer("s", "pid").await == before, kinds == ["confirmed"]);
    assert!(!last_request_text(&fixture).contains("finished in secret"), "a late result reached the model");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_call_does_not_cost_the_call_of_another_session() {
    let fixture = McpFixture::start_with(|server| {
        server.grace_ms = Some(LONG_GRACE_MS);
        server.shared = true;
        set_env(server, &["MCP_WORKER"]);
    })
    .await;
    let before = fixture.call_and_answer("two", "pid").await;
    let (run, gate) = fixture.stop_pending_call("late").await;
    let other = fixture.start_held_call("two", "finish", json!({}), 3).await;
    std::fs::write(&gate, "").unwrap();
    wait_amendments(&fixture, &run, 1).await;
    // New calls go to another server; the other session's call continues on the old one.
    assert_ne!(fixture.call_and_answer("one", "pid").await, before);
    fixture.wait_servers(2).await;
    assert!(fixture.holds_call(&other));
    assert_eq!(call_row(&fixture.stop_and_wait(&other).await).how, "finished");
    fixture.wait_servers(1).await;
    fixture.close().await;
}

/// The call times out and its run continues: amendments before the end of the run are in the first receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_during_the_run_is_in_its_receipt() {
    let fixture = McpFixture::start_with(|server| {
        server.grace_ms = Some(LONG_GRACE_MS);
        server.call_timeout_s = Some(1);
        set_env(server, &["MCP_WORKER"]);
    })
    .await;
    let gate = gate_path(&fixture);
    fixture.model.script(ScriptedResponse::tool_call("c1", "test__late", &json!({"text": gate.display().to_string()})));
    fixture.model.script(ScriptedResponse::silent_mid_stream("I wait"));
    let run = fixture.send(submission("s", "do it")).await;
    fixture.wait_messages("notifications/cancelled", 1).await;
    fixture.wait_text(&run).await;
    std::fs::write(&gate, "").unwrap();
    fixture.wait_servers(0).await;
    let view = fixture.stop_and_wait(&run).await;
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
    let section = config_section(folder.path(), &format!("MCP_LOG = {log:?}, MCP_WORKER = \"1\""));
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
    std::fs::write(&gate, "").unwrap();
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
