//! Approvals over HTTP and WebSocket: listed, answered once, refused to callers without the right.

use quell_kernel::approval::ApprovalPolicy;
use quell_testkit::ScriptedResponse;
use serde_json::{Value, json};

use crate::test_engine::{list_files_call, parse_agent_id};
use crate::test_server::{TestServer, assert_fields, assert_problem};
use crate::ws::WsTestClient;

async fn start_server() -> TestServer {
    TestServer::start_with(|plan| {
        let main = plan.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await
}

/// Starts a run whose call waits for approval, and returns the run id and the approval.
async fn start_asking_run(server: &TestServer, session: &str) -> (String, Value) {
    server.model.script(list_files_call()).script(ScriptedResponse::text("done"));
    let run = server.send_message(session, "list").await;
    server.http.run_events(&run, 0).await.wait_for("approval.requested").await;
    let list = server.http.get("/api/approvals").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    (run, list["items"][0].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_listed_and_answered_once() {
    let server = start_server().await;
    let (run, row) = start_asking_run(&server, "s").await;
    let asked = json!({"runId": run, "tool": "list_files", "state": "pending", "sessionKey": "s"});
    assert_fields(&row, &asked);
    assert_eq!(row["arguments"], json!({"path": "."}));
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let allow = json!({"decision": "allow"});
    for scope in ["read", "write"] {
        let other = server.api_with_new_token(scope, scope).await;
        assert_problem(&other.post(&path, &allow).await, 403, "forbidden");
    }
    assert_problem(&server.http.post(&path, &json!({"decision": "perhaps"})).await, 400, "invalid_request");
    assert_problem(&server.http.post("/api/approvals/none", &allow).await, 404, "not_found");
    let answered = server.http.post(&path, &allow).await.expect_status(200);
    assert_fields(&answered, &json!({"state": "allowed", "by": {"surface": "http"}}));
    assert_problem(&server.http.post(&path, &allow).await, 409, "conflict");
    assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
    assert_eq!(server.http.get("/api/approvals").await.expect_status(200), json!({"items": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_a_stop_is_refused_and_runs_nothing() {
    let server = start_server().await;
    let (run, row) = start_asking_run(&server, "s").await;
    let stopped = server.http.stop_run(&run).await;
    assert_eq!(stopped["aborted"], true);
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let late = server.http.post(&path, &json!({"decision": "allow"})).await;
    assert_problem(&late, 409, "conflict");
    assert!(late.body["detail"].as_str().unwrap().contains("settled before (cancelled)"), "{:#}", late.body);
    let view = server.http.run_view(&run).await;
    let rows = view["receipt"]["resources"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["kind"] == "approval" && row["how"] == "cancelled"), "{view:#}");
    assert!(rows.iter().all(|row| row["kind"] != "task"), "the tool ran: {view:#}");
    server.run_to_end("s").await;
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_websocket_lists_and_answers_them_under_both_names() {
    let server = start_server().await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    for (method, word) in [("approvals.resolve", "allow"), ("plugin.approval.resolve", "allow-once")] {
        let (run, row) = start_asking_run(&server, method).await;
        let own = client.call("approvals.list", json!({})).await;
        let plugin = client.call("plugin.approval.list", json!({})).await;
        assert_eq!((&own["approvals"][0], &plugin[0]["id"]), (&row, &row["id"]));
        assert_eq!(plugin[0]["request"]["toolName"], "list_files");
        let answer = client.call(method, json!({"id": row["id"], "decision": word})).await;
        assert_eq!(answer["approval"]["state"], "allowed");
        assert_eq!(server.wait_ended(&run).await["verdict"]["kind"], "completed");
        let again = client.request(method, json!({"id": row["id"], "decision": "deny"})).await;
        assert_eq!(again["error"]["details"]["code"], "APPROVAL_ALREADY_RESOLVED", "{again}");
    }
    let unknown = client.request("approvals.resolve", json!({"id": "none", "decision": "deny"})).await;
    assert_eq!(unknown["error"]["details"]["code"], "APPROVAL_NOT_FOUND", "{unknown}");
}
