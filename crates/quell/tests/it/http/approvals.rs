//! Approvals over HTTP and WebSocket: listed, answered once, refused to callers without the right.

use quell_kernel::approval::ApprovalPolicy;

use crate::prelude::*;
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
    (run, server.http.wait_approval().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_listed_and_answered_once() {
    let server = start_server().await;
    let (run, row) = start_asking_run(&server, "s").await;
    assert_fields(&row, &json!({"runId": run, "state": "pending", "sessionKey": "s"}));
    assert_fields(&row, &json!({"tool": "list_files", "arguments": {"path": "."}}));
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let allow = json!({"decision": "allow"});
    for scope in ["read", "write"] {
        assert_problem(&server.api_with_new_token(scope, scope).await.post(&path, &allow).await, 403, "forbidden");
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
