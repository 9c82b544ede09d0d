//! Approvals over HTTP and the WebSocket: listed, answered once, refused to those whose they are not.

use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::AgentId;
use quell_testkit::Behaviour;
use serde_json::{Value, json};

use crate::doors::{House, assert_problem};
use crate::ws::Client;

async fn house() -> House {
    House::with(|plan| {
        let main = plan.engine.agents.get_mut(&AgentId::parse("main").unwrap()).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await
}

/// A run whose call waits, and its approval.
async fn asking(house: &House, session: &str) -> (String, Value) {
    house.model.script(Behaviour::tool_call("c1", "list_files", &json!({"path": "."}))).script(Behaviour::text("done"));
    let run = house.send(session, "list").await;
    house.http.events(&run, 0).await.until("approval.requested").await;
    let list = house.http.get("/api/approvals").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    (run, list["items"][0].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_listed_and_answered_once() {
    let house = house().await;
    let (run, row) = asking(&house, "s").await;
    assert_eq!((&row["runId"], &row["tool"], &row["state"]), (&json!(run), &json!("list_files"), &json!("pending")));
    assert_eq!((&row["sessionKey"], &row["arguments"]), (&json!("s"), &json!({"path": "."})));
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let allow = json!({"decision": "allow"});
    let (reader, other) = (house.api("reader", "read").await, house.api("other", "write").await);
    assert_problem(&reader.post(&path, &allow).await, 403, "forbidden");
    assert_problem(&other.post(&path, &allow).await, 403, "forbidden");
    assert_problem(&house.http.post(&path, &json!({"decision": "perhaps"})).await, 400, "invalid_request");
    assert_problem(&house.http.post("/api/approvals/none", &allow).await, 404, "not_found");
    let answered = house.http.post(&path, &allow).await.expect_status(200);
    assert_eq!((&answered["state"], &answered["by"]["surface"]), (&json!("allowed"), &json!("http")));
    assert_problem(&house.http.post(&path, &allow).await, 409, "conflict");
    assert_eq!(house.ended(&run).await["verdict"]["kind"], "completed");
    assert_eq!(house.http.get("/api/approvals").await.expect_status(200), json!({"items": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_a_stop_is_refused_and_runs_nothing() {
    let house = house().await;
    let (run, row) = asking(&house, "s").await;
    let stopped = house.http.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    assert_eq!(stopped["aborted"], true);
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let late = house.http.post(&path, &json!({"decision": "allow"})).await;
    assert_problem(&late, 409, "conflict");
    assert!(late.body["detail"].as_str().unwrap().contains("settled before (cancelled)"), "{:#}", late.body);
    let view = house.http.get(&format!("/api/runs/{run}")).await.expect_status(200);
    let rows = view["receipt"]["resources"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["kind"] == "approval" && row["how"] == "cancelled"), "{view:#}");
    assert!(rows.iter().all(|row| row["kind"] != "task"), "the tool ran: {view:#}");
    house.finished_run("s").await;
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_websocket_lists_and_answers_them_under_both_names() {
    let house = house().await;
    let mut client = Client::operator(&house, &house.token).await;
    for (method, word) in [("approvals.resolve", "allow"), ("plugin.approval.resolve", "allow-once")] {
        let (run, row) = asking(&house, method).await;
        let own = client.call("approvals.list", json!({})).await;
        let plugin = client.call("plugin.approval.list", json!({})).await;
        assert_eq!((&own["approvals"][0], &plugin[0]["id"]), (&row, &row["id"]));
        assert_eq!(plugin[0]["request"]["toolName"], "list_files");
        let answer = client.call(method, json!({"id": row["id"], "decision": word})).await;
        assert_eq!(answer["approval"]["state"], "allowed");
        assert_eq!(house.ended(&run).await["verdict"]["kind"], "completed");
        let again = client.ask(method, json!({"id": row["id"], "decision": "deny"})).await;
        assert_eq!(again["error"]["details"]["code"], "APPROVAL_ALREADY_RESOLVED", "{again}");
    }
    let unknown = client.ask("approvals.resolve", json!({"id": "none", "decision": "deny"})).await;
    assert_eq!(unknown["error"]["details"]["code"], "APPROVAL_NOT_FOUND", "{unknown}");
}
