//! Agent status and the abort of model calls over HTTP (rows B3 to B6 of docs/design/requirements.md).

use crate::prelude::*;

async fn compute_status(server: &TestServer, agent: &str) -> Value {
    server.http.get(&format!("/api/agents/{agent}")).await.expect_status(200)["computeStatus"].clone()
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
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_answers_when_the_agent_is_idle_again() {
    let (server, run) = TestServer::start_streaming().await;
    assert_eq!(compute_status(&server, "main").await, "waiting_llm");
    let answer = server.http.post("/api/agent/main/abort", &json!({})).await.expect_status(200);
    assert_eq!(answer, json!({"ok": true, "agentId": "main", "aborted": true, "runIds": [run]}));
    assert_eq!(compute_status(&server, "main").await, "idle");
    let verdict = json!({"kind": "aborted", "reason": "user"});
    assert_fields(&server.http.run_view(&run).await, &json!({"verdict": verdict}));
    server.run_to_end("s").await;
    server.model.assert_histories_valid();
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
        let nothing =
            json!({"ok": true, "agentId": "team/writer", "aborted": false, "runIds": [], "reason": "not_waiting_llm"});
        assert_eq!(server.http.send(request).await.expect_status(200), nothing);
    }
    assert_eq!(compute_status(&server, "team%2Fwriter").await, "idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_session_chooses_its_agent() {
    let server = TestServer::start().await;
    let run = server.run_to_end("agent:team/writer:user-1").await;
    assert_eq!(server.http.run_view(&run).await["agent"], "team/writer");
}
