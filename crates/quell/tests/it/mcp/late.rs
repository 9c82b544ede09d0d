//! What a server does with a call whose run did not wait for its answer: the stop settles when the server reads, and the
//! receipt is amended when more becomes known.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_engine::mcp::McpConfig;
use quell_protocol::{ResourceKind, RunId, Rung};
use quell_testkit::daemon::Home;
use quell_testkit::gateway::{Gateway, is_ended};
use quell_testkit::{Behaviour, ScriptedModel, leaks, mcp};
use serde_json::{Value, json};

use super::{Scene, call_row};
use crate::harness::{Claim, House, PATIENCE, Watcher, receipt};

/// A server that would have a minute before it is ended for its silence: nothing here waits for that.
fn patient(server: &mut McpConfig) {
    server.grace_ms = Some(60_000);
}

/// A file that does not exist yet.
fn gate(scene: &Scene) -> PathBuf {
    scene.log.with_file_name("gate")
}

impl Scene {
    /// A call that goes on beside its server, stopped; its gate is still closed.
    async fn stopped_beside(&self, tool: &str) -> (RunId, PathBuf) {
        let gate = gate(self);
        let before = mcp::received_of(&self.log, "tools/call").len();
        let run = self.calling("s", tool, json!({"text": gate.display().to_string()})).await;
        self.house.holds(&run, ResourceKind::McpCall).await;
        self.got("tools/call", before + 1).await;
        assert_eq!(self.house.stop(&run).aborted.len(), 1);
        let view = self.house.ended(&run).await;
        let row = call_row(&view);
        assert_eq!(row.how, "unconfirmed", "{row:#?}");
        assert!(receipt(&view).leftovers.is_empty() && receipt(&view).rung == Rung::Cancel, "{view:#?}");
        assert_eq!(amendments(&self.house, &run).await, Vec::<Value>::new());
        (run, gate)
    }
}

/// Waits until the receipt of a run has so many amendments, and answers them.
pub(super) async fn amended(house: &House, run: &RunId, count: usize) -> Vec<Value> {
    let waited = async {
        loop {
            let found = amendments(house, run).await;
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waited).await;
    waited.unwrap_or_else(|_| panic!("the receipt of {run} was not amended {count} times"))
}

async fn amendments(house: &House, run: &RunId) -> Vec<Value> {
    let view = house.engine.run(run).await.unwrap().unwrap();
    let receipt = serde_json::to_value(receipt(&view)).unwrap();
    receipt["amendments"].as_array().cloned().unwrap_or_default()
}

fn open(gate: &Path) {
    std::fs::write(gate, "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_settles_as_soon_as_the_server_reads_on() {
    let scene = Scene::with(patient).await;
    let before = scene.answer("s", "pid").await;
    let ends = [("wait", "unconfirmed"), ("decline", "cancelled"), ("finish", "finished")];
    for (calls, (tool, how)) in (2..).zip(ends) {
        let run = scene.calling("s", tool, json!({})).await;
        scene.house.holds(&run, ResourceKind::McpCall).await;
        scene.got("tools/call", calls).await;
        scene.house.stop(&run);
        let view = scene.house.ended(&run).await;
        // With the grace waited for, the forced stop had come first and had ended the server.
        assert_eq!(call_row(&view).how, how, "{tool}: {view:#?}");
        assert!(receipt(&view).leftovers.is_empty() && receipt(&view).rung <= Rung::Cancel, "{view:#?}");
    }
    assert_eq!(scene.answer("s", "pid").await, before, "the server was not kept");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_pings_reads_all_the_same() {
    let scene = Scene::with(|server| {
        patient(server);
        server.env.insert("MCP_NO_PING".to_owned(), "1".to_owned());
    })
    .await;
    let before = scene.answer("s", "pid").await;
    let run = scene.calling("s", "wait", json!({})).await;
    scene.got("tools/call", 2).await;
    scene.house.stop(&run);
    let view = scene.house.ended(&run).await;
    assert_eq!(call_row(&view).how, "unconfirmed", "{view:#?}");
    assert_eq!(scene.answer("s", "pid").await, before, "the server was not kept");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_late_amends_the_receipt_and_costs_the_server() {
    let scene = Scene::with(patient).await;
    let (run, gate) = scene.stopped_beside("late").await;
    // The message after the stop did not wait, and has the same server.
    let before = scene.answer("s", "pid").await;
    assert_eq!(amendments(&scene.house, &run).await, Vec::<Value>::new());
    open(&gate);
    let found = amended(&scene.house, &run, 1).await;
    assert_eq!(
        (&found[0]["kind"], &found[0]["resource"]),
        (&json!("late_result"), &json!(call_number(&scene, &run).await))
    );
    assert!(found[0]["text"].as_str().unwrap().contains("MCP server test finished the call"), "{found:#?}");
    assert!(found[0]["at"]["ms"].as_f64().unwrap() > 0.0, "{found:#?}");
    assert_ne!(scene.answer("s", "pid").await, before, "the server was kept");
    assert!(!super::shown(&scene.house).contains("finished in secret"), "a late result reached the model");
    scene.close().await;
}

async fn call_number(scene: &Scene, run: &RunId) -> u64 {
    let view = scene.house.engine.run(run).await.unwrap().unwrap();
    call_row(&view).id
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_that_comes_late_amends_the_receipt_and_ends_the_server() {
    // Long enough for the ping on a busy machine; progress counts as late after half of it.
    let scene = Scene::with(|server| server.grace_ms = Some(2000)).await;
    let before = scene.answer("s", "pid").await;
    let (run, gate) = scene.stopped_beside("drip").await;
    open(&gate);
    let found = amended(&scene.house, &run, 2).await;
    let kinds: Vec<&Value> = found.iter().map(|amendment| &amendment["kind"]).collect();
    assert_eq!(kinds, ["late_progress", "server_ended"], "{found:#?}");
    assert!(found[0]["text"].as_str().unwrap().contains("went on with the call after its cancel"), "{found:#?}");
    scene.mark.gone(PATIENCE).await;
    assert_ne!(scene.answer("s", "pid").await, before);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_comes_late_confirms_the_cancel() {
    let scene = Scene::with(patient).await;
    let before = scene.answer("s", "pid").await;
    let (run, gate) = scene.stopped_beside("sorry").await;
    let mut watcher = Watcher::of(&scene.house.engine);
    open(&gate);
    let found = amended(&scene.house, &run, 1).await;
    assert_eq!(found[0]["kind"], "confirmed", "{found:#?}");
    assert!(watcher.events(&run).is_empty(), "something followed the end of the run");
    assert_eq!(scene.answer("s", "pid").await, before, "a server that obeyed was ended");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_call_does_not_cost_the_call_of_another_session() {
    let scene = Scene::with(|server| {
        patient(server);
        server.shared = true;
    })
    .await;
    let before = scene.answer("two", "pid").await;
    let (run, gate) = scene.stopped_beside("late").await;
    let other = scene.calling("two", "finish", json!({})).await;
    scene.house.holds(&other, ResourceKind::McpCall).await;
    scene.got("tools/call", 3).await;
    open(&gate);
    amended(&scene.house, &run, 1).await;
    // New calls go elsewhere, the one that was there goes on.
    assert_ne!(scene.answer("one", "pid").await, before);
    scene.servers(2).await;
    let rows = scene.house.engine.live(&other).unwrap().scope.ledger().rows();
    assert!(rows.iter().any(|row| row.kind == ResourceKind::McpCall && row.released.is_none()), "{rows:#?}");
    scene.house.stop(&other);
    assert_eq!(call_row(&scene.house.ended(&other).await).how, "finished");
    scene.servers(1).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_not_told_twice_when_it_comes_with_its_structure() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "twice").await, "hello");
    scene.close().await;
}

/// The call takes too long, and its run goes on: what becomes known before the end stands in the first receipt.
#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_known_while_the_run_goes_on_is_in_its_receipt() {
    let scene = Scene::with(|server| {
        patient(server);
        server.call_timeout_s = Some(1);
    })
    .await;
    let gate = gate(&scene);
    scene.house.model.script(Behaviour::tool_call("c1", "test__late", &json!({"text": gate.display().to_string()})));
    scene.house.model.script(Behaviour::silent_mid_stream("I wait"));
    let run = scene.house.send(crate::harness::message("s", "do it")).await;
    scene.got("notifications/cancelled", 1).await;
    scene.house.text_came(&run).await;
    open(&gate);
    scene.servers(0).await;
    scene.house.stop(&run);
    let view = scene.house.ended(&run).await;
    let found = serde_json::to_value(receipt(&view)).unwrap();
    assert_eq!(found["amendments"][0]["kind"], "late_result", "{found:#}");
    assert_eq!(call_row(&view).how, "unconfirmed");
    scene.close().await;
}

/// What a person and a program are told: an event beside the run's own, the run's view, and its portrait in a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn an_amendment_is_told_and_outlives_the_daemon() {
    let _claim = Claim::shared().await;
    let (exe, folder, model) =
        (Path::new(env!("CARGO_BIN_EXE_quell")), tempfile::tempdir().unwrap(), ScriptedModel::start().await);
    let [script, gate, log] = ["server.sh", "gate", "log"].map(|name| folder.path().join(name));
    std::fs::write(&script, mcp::SERVER).unwrap();
    let home = Home::new(&format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n\n[agents.main]\nmodel = \"scripted/model\"\n\n\
         [mcp.test]\ncommand = \"sh\"\nargs = [\"{}\"]\nenv = {{ MCP_LOG = \"{}\" }}\n",
        model.base_url(),
        script.display(),
        log.display(),
    ));
    let daemon = home.start(exe).await;
    let mut gateway = Gateway::connect(&daemon).await;
    model.script(Behaviour::tool_call("c1", "test__late", &json!({"text": gate.display().to_string()})));
    gateway.begin("late-1").await;
    let at_server = move || (!mcp::received_of(&log, "tools/call").is_empty()).then_some(()).ok_or("no call");
    leaks::settled(PATIENCE, move || at_server().map_err(str::to_owned)).await;
    gateway.send("runs.stop", json!({"runId": "late-1"})).await;
    let (_, ended) = gateway.until(is_ended).await;
    let told = ended["payload"]["receipt"].clone();
    assert_eq!((&told["amendments"], &told["leftovers"]), (&json!([]), &json!([])), "{told:#}");
    open(&gate);
    let (_, frame) = gateway.until(|frame| frame["event"] == "run.amended").await;
    assert_eq!(frame["payload"]["runId"], "late-1");
    assert_eq!(frame["payload"]["amendment"]["kind"], "late_result", "{frame:#}");
    let told = |answer: Value| answer["receipt"]["amendments"].clone();
    let now = told(daemon.http().get("/api/runs/late-1").await.expect_status(200));
    assert_eq!(now, json!([frame["payload"]["amendment"]]));
    drop(gateway);
    daemon.kill9().await;
    let daemon = home.start(exe).await;
    assert_eq!(told(daemon.http().get("/api/runs/late-1").await.expect_status(200)), now);
    let shown = tokio::task::spawn_blocking({
        let mut command = home.command(exe);
        command.args(["runs", "show", "late-1"]);
        move || command.output().unwrap()
    });
    let shown = String::from_utf8(shown.await.unwrap().stdout).unwrap();
    assert!(shown.contains(" later: the MCP server test finished the call all the same"), "{shown}");
    assert!(shown.contains("1 MCP call told to cancel, not confirmed"), "{shown}");
    daemon.stop().await;
}
