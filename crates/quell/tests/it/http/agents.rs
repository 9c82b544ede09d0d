//! Agent status and the abort of model calls over HTTP (rows B3 to B6 of docs/design/requirements.md).

use std::collections::BTreeSet;

use quell_testkit::ScriptedResponse;
use quell_testkit::daemon::TestApiClient;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::test_server::{TestServer, assert_fields, assert_problem, gated_response};

async fn compute_status(api: &TestApiClient, agent: &str) -> Value {
    api.get(&format!("/api/agents/{agent}")).await.expect_status(200)["computeStatus"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_form_a_tree() {
    let server = TestServer::start().await;
    let list = server.http.get("/api/agents").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let main = json!({"id": "main", "children": ["team/writer"], "computeStatus": "idle", "activeRuns": []});
    assert_fields(&list["items"][0], &main);
    let child = server.http.get("/api/agents/team%2Fwriter").await.expect_status(200);
    assert_fields(&child, &json!({"parent": "main", "role": "writer"}));
    assert_problem(&server.http.get("/api/agents/nobody").await, 404, "agent_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_answers_when_the_agent_is_idle_again() {
    let (server, run) = TestServer::start_streaming().await;
    assert_eq!(compute_status(&server.http, "main").await, "waiting_llm");
    let answer = server.http.post("/api/agent/main/abort", &json!({})).await.expect_status(200);
    assert_eq!(answer, json!({"ok": true, "agentId": "main", "aborted": true, "runIds": [run]}));
    assert_eq!(compute_status(&server.http, "main").await, "idle");
    let view = server.http.run_view(&run).await;
    assert_fields(&view["verdict"], &json!({"kind": "aborted", "reason": "user"}));
    server.run_to_end("s").await;
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_leaves_the_next_queued_run_to_go_on() {
    let server = TestServer::start().await;
    let first = server.start_streaming_run("s").await;
    server.model.script(gated_response("go"));
    let second = server.send_message("s", "and then").await;
    let answer = server.http.post("/api/agent/main/abort", &json!({})).await.expect_status(200);
    assert_eq!(answer["runIds"], json!([first]));
    server.model.open_gate("go");
    assert_eq!(server.wait_ended(&second).await["verdict"]["kind"], "completed");
}

#[rstest]
#[case::empty("")]
#[case::object("{}")]
#[case::blank("  \n")]
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_is_not_aborted(#[case] body: &'static str) {
    let server = TestServer::start().await;
    for _ in 0..2 {
        let request = server.http.request(Method::POST, "/api/agent/team%2Fwriter/abort").body(body);
        let answer = server.http.send(request).await.expect_status(200);
        let why = "not_waiting_llm";
        let nothing = json!({"ok": true, "agentId": "team/writer", "aborted": false, "runIds": [], "reason": why});
        assert_eq!(answer, nothing);
    }
    assert_eq!(compute_status(&server.http, "team%2Fwriter").await, "idle");
}

#[rstest]
#[case::blank("/api/agent/%20/abort", 400, "missing_agent_id")]
#[case::empty("/api/agent//abort", 400, "missing_agent_id")]
#[case::unknown("/api/agent/nobody/abort", 404, "agent_not_found")]
#[case::too_long_to_exist("/api/agent/LONG/abort", 404, "agent_not_found")]
#[case::bad_scope("/api/agent/main/abort?scope=all", 400, "invalid_request")]
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_an_abort(#[case] path: &str, #[case] status: u16, #[case] code: &str) {
    let server = TestServer::start().await;
    let path = path.replace("LONG", &"x".repeat(200));
    assert_problem(&server.http.post(&path, &json!({})).await, status, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_scope_run_any_phase_is_stopped_also_the_queue() {
    let server = TestServer::start().await;
    let first = server.start_streaming_run("s").await;
    let queued = server.send_message("s", "later").await;
    let answer = server.http.post("/api/agent/main/abort?scope=run", &json!({})).await.expect_status(200);
    let ids: BTreeSet<&str> = answer["runIds"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(ids, BTreeSet::from([first.as_str(), queued.as_str()]));
    assert_eq!(compute_status(&server.http, "main").await, "idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_engine_is_said_before_everything_else() {
    let server = TestServer::start().await;
    server.engine.shut_down().await;
    for path in ["/api/agent/main/abort", "/api/agent/nobody/abort", "/api/agent/%20/abort", "/api/agent//abort"] {
        assert_problem(&server.http.post(path, &json!({})).await, 500, "society_not_initialized");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_session_chooses_its_agent() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("done"));
    let run = server.send_message("agent:team/writer:user-1", "x").await;
    assert_eq!(server.wait_ended(&run).await["agent"], "team/writer");
    let answer = server.post_run("agent:nobody:user-1", &json!({"text": "x"})).await;
    assert_problem(&answer, 404, "agent_not_found");
}
