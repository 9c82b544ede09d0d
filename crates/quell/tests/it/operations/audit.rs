//! The list of who did what: every kind of deed through every door, with its origin; no stop waits for it, nothing is lost.

use std::time::{Duration, Instant};

use quell_engine::proc::{WardenExe, base_environment};
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::AgentId;
use quell_protocol::audit::Action;
use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Answer, Api, Daemon};
use quell_testkit::model::Behaviour;
use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::{exe, run};
use crate::doors::{House, assert_problem};
use crate::harness::PATIENCE;
use crate::ws::Client;

/// Waits until the list holds `n` entries behind `after`; they are written by a task of the engine.
pub(crate) async fn entries(api: &Api, after: u64, n: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let list = api.get(&format!("/api/audit?after={after}")).await.expect_status(200);
        let items = list["items"].as_array().unwrap();
        if items.len() >= n {
            assert_eq!(items.len(), n, "{list:#}");
            return items.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{n} entries never came: {list:#}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Who, through which door, what, to what.
fn told(row: &Value) -> (&str, &str, &str, &str) {
    let word = |name: &str| row[name].as_str().unwrap_or_default();
    (word("principal"), word("surface"), word("action"), word("target"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_are_written_down_with_who_what_and_from_where() {
    let house = House::open().await;
    let first = house.streaming_run("s").await;
    let body = json!({"reason": "lunch"});
    let _ = house.http.post(&format!("/api/runs/{first}/stop?wait=1"), &body).await.expect_status(200);
    let rows = entries(&house.http, 0, 1).await;
    assert_eq!(told(&rows[0]), ("admin", "http", "stop", format!("run {first}").as_str()), "{rows:#?}");
    assert_eq!((&rows[0]["seq"], &rows[0]["from"]), (&json!(1), &json!("127.0.0.1")));
    assert_eq!(rows[0]["detail"], format!("stopped: {first}; reason: lunch"));
    assert!(rows[0]["at"].as_str().unwrap().ends_with('Z'), "{rows:#?}");

    // Behind a proxy on this machine both are kept; a peer elsewhere could not say so. It gives nobody any access.
    let second = house.streaming_run("s").await;
    let stop = house.http.request(Method::POST, "/api/sessions/s/stop?wait=1");
    let stop = stop.header("x-forwarded-for", "127.0.0.1").header("x-forwarded-for", "10.0.0.1, 203.0.113.9");
    let _ = house.http.send(stop).await.expect_status(200);
    let third = house.streaming_run("t").await;
    let mut client = Client::operator(&house, &house.token).await;
    client.call("chat.abort", json!({"sessionKey": "t"})).await;
    house.ended(&third).await;
    let rows = entries(&house.http, 1, 2).await;
    assert_eq!(told(&rows[0]), ("admin", "http", "stop", "session s"));
    assert_eq!(rows[0]["from"], "127.0.0.1, forwarded for 10.0.0.1, 203.0.113.9");
    assert!(rows[0]["detail"].as_str().unwrap().contains(&second));
    assert_eq!((told(&rows[1]), &rows[1]["from"]), (("admin", "ws", "stop", "session t"), &json!("127.0.0.1")));
    let outsider = house.http.with_token("").request(Method::GET, "/api/audit").header("x-forwarded-for", "127.0.0.1");
    assert_problem(&house.http.send(outsider).await, 401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_nothing_is_not_written_down() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    house.forgotten(&run).await;
    for path in [format!("/api/runs/{run}/stop"), "/api/sessions/s/stop".to_owned(), "/api/stop".to_owned()] {
        let _ = house.http.post(&path, &json!({})).await.expect_status(200);
    }
    let _ = house.http.delete("/api/tokens/nobody").await.expect_status(404);
    let _ = house.http.delete("/api/sessions/none").await.expect_status(404);
    let text = house.post_run("s", &json!({"text": "/stop"})).await;
    assert_eq!(text.status, 200, "{text:?}");
    // The hold comes behind them in the order of the list, so that none of them is only late.
    let _ = house.http.put("/api/hold", &json!({"reason": "upgrade"})).await.expect_status(200);
    let rows = entries(&house.http, 0, 1).await;
    assert_eq!((told(&rows[0]), &rows[0]["detail"]), (("admin", "http", "hold", ""), &json!("upgrade")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_force_behind_a_stop_is_a_deed_of_its_own() {
    let house = House::with(|plan| {
        plan.engine.warden = WardenExe::Path(env!("CARGO_BIN_EXE_quell").into());
        plan.engine.environment = base_environment(std::env::vars_os());
        (plan.engine.stop.term, plan.engine.stop.grace) = (PATIENCE, PATIENCE * 2);
    })
    .await;
    let deaf = json!({"command": "trap '' TERM; echo armed; while :; do sleep 1; done"});
    house.model.script(Behaviour::tool_call("c1", "shell", &deaf));
    let run = house.send("s", "do not listen").await;
    house.http.events(&run, 0).await.until("tool.output").await;
    let path = format!("/api/runs/{run}/stop");
    let _ = house.http.post(&path, &json!({})).await.expect_status(202);
    // Again, as gently: that adds nothing.
    let _ = house.http.post(&path, &json!({})).await.expect_status(202);
    let _ = house.http.post(&format!("{path}?wait=1"), &json!({"force": true})).await.expect_status(200);
    let rows = entries(&house.http, 0, 2).await;
    assert_eq!(rows[0]["detail"], format!("stopped: {run}; reason: user"));
    assert_eq!(rows[1]["detail"], format!("ending before: {run}; forced; reason: user"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_other_deed_is_written_down() {
    let house = House::with(|plan| {
        let main = plan.engine.agents.get_mut(&AgentId::parse("main").unwrap()).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let http = &house.http;
    house.finished_run("s").await;
    let export = http.request(Method::GET, "/api/sessions/s/export").send().await.unwrap().text().await.unwrap();
    let writer = house.api("writer", "write").await;
    for (decision, session) in [("allow", "a"), ("deny", "b")] {
        house.model.script(Behaviour::tool_call("c1", "list_files", &json!({}))).script(Behaviour::text("done"));
        let run = house.send(session, "list").await;
        http.events(&run, 0).await.until("approval.requested").await;
        let id = http.get("/api/approvals").await.expect_status(200)["items"][0]["id"].as_str().unwrap().to_owned();
        let path = format!("/api/approvals/{id}");
        let _ = http.post(&path, &json!({"decision": decision})).await.expect_status(200);
        house.ended(&run).await;
    }
    let _ = http.post("/api/sessions/s/reset", &json!({})).await.expect_status(200);
    let _ = http.delete("/api/sessions/s").await.expect_status(204);
    let import = http.request(Method::POST, "/api/import").body(export);
    let _ = http.send(import).await.expect_status(201);
    let _ = http.delete("/api/hold").await.expect_status(200);
    let _ = http.delete("/api/tokens/writer").await.expect_status(204);
    let rows = entries(http, 0, 8).await;
    let told: Vec<_> = rows.iter().map(|row| (told(row).2, told(row).3)).collect();
    assert_eq!(told[0], ("create_token", "token writer"));
    assert!(told[1].0 == "approve" && told[2].0 == "deny" && told[1].1.starts_with("approval "), "{told:?}");
    assert_eq!(
        told[3..6],
        [("reset_session", "session s"), ("delete_session", "session s"), ("import_session", "session s")]
    );
    assert_eq!(told[6..], [("lift_hold", ""), ("revoke_token", "token writer")]);
    assert!(rows[1]["detail"].as_str().unwrap().contains("tool: list_files"), "{:#}", rows[1]);
    let words: Vec<&str> = Action::ALL.iter().map(|action| action.as_str()).collect();
    assert!(told.iter().all(|(action, _)| words.contains(action)));
    // Tokens that may only write or look do not see it.
    assert_problem(&writer.get("/api/audit").await, 401, "unauthorized");
    let other = house.api("other", "write").await;
    assert_problem(&other.get("/api/audit").await, 403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_read_in_pages_and_survives_its_daemon() {
    let house = House::open().await;
    for held in [true, false, true, false, true] {
        let answer: Answer =
            if held { house.http.put("/api/hold", &json!({})).await } else { house.http.delete("/api/hold").await };
        let _ = answer.expect_status(200);
    }
    // Also what was noted in the moment before the end.
    let house = house.reopen().await;
    let mut path = "/api/audit?limit=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = house.http.get(&path).await.expect_status(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|row| row["seq"].as_u64().unwrap()));
        let Some(next) = page["nextCursor"].as_str() else { break };
        path = format!("/api/audit?limit=2&after={next}");
    }
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    assert_problem(&house.http.get("/api/audit?after=x").await, 400, "invalid_request");
}

fn refuse(daemon: &Daemon) -> rusqlite::Connection {
    let other = rusqlite::Connection::open(daemon.home().data().join("quell.db")).unwrap();
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'not now'); END";
    other.busy_timeout(PATIENCE).unwrap();
    other.execute_batch(trigger).unwrap();
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_no_list_and_what_was_refused_is_written_later_or_is_in_the_log() {
    let model = ScriptedModel::start().await;
    let config = format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    );
    let daemon = Daemon::start(exe(), &config).await;
    let (http, other) = (daemon.http(), refuse(&daemon));
    model.script(Behaviour::silent_mid_stream("begun"));
    let body = json!({"text": "go on for ever"});
    let run_id =
        http.post("/api/sessions/s/runs", &body).await.expect_status(202)["runId"].as_str().unwrap().to_owned();
    model.request(0).resting().await;
    let stopped = http.post(&format!("/api/runs/{run_id}/stop?wait=1"), &json!({})).await.expect_status(200);
    assert_eq!(stopped["state"], "ended", "{stopped:#}");
    other.execute_batch("DROP TRIGGER refuse").unwrap();
    let rows = entries(&http, 0, 1).await;
    assert_eq!(told(&rows[0]).3, format!("run {run_id}"));

    let shown = run(daemon.home().command(exe()).arg("audit"));
    assert!(shown.code == 0 && shown.out.contains(&format!("stop  run {run_id}")), "{shown:?}");
    let none = run(daemon.home().command(exe()).args(["audit", "--after", "1", "--json"]));
    assert_eq!((none.code, none.out.as_str()), (0, "[]\n"), "{none:?}");

    let _other = refuse(&daemon);
    let _ = http.put("/api/hold", &json!({"reason": "the last deed"})).await.expect_status(200);
    daemon.stop().await;
    let log = daemon.output();
    let line = log.lines().find(|line| line.contains("only here")).unwrap_or_else(|| panic!("it is lost: {log}"));
    for part in ["ERROR", "admin", "hold", "the last deed", "127.0.0.1"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}
