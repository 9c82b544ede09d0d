//! Answers while the daemon shuts down and after a restart.

use serde_json::json;

use crate::test_server::{TestServer, assert_fields, assert_problem};

#[tokio::test(flavor = "multi_thread")]
async fn a_closing_daemon_says_so() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    server.wait_forgotten(&run).await;
    server.engine.shut_down().await;
    assert_eq!(server.http.get("/healthz").await.status, 200);
    assert_problem(&server.http.get("/readyz").await, 503, "shutting_down");
    assert_problem(&server.post_run("agent:main:s", &json!({"text": "x"})).await, 503, "shutting_down");
    assert_problem(&server.http.get(&format!("/api/runs/{run}")).await, 503, "store_unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_told_the_end_before_the_daemon_goes() {
    let (server, run) = TestServer::start_streaming().await;
    let events = server.http.run_events(&run, 0).await;
    server.engine.shut_down().await;
    let log = events.read_to_end().await;
    log.assert_valid();
    assert_eq!(log.events.last().unwrap().data["verdict"]["reason"], "shutdown");
    assert_eq!(log.receipt()["leftovers"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_before_a_restart_is_still_shown() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    let server = server.restart().await;
    assert_fields(&server.http.run_view(&run).await, &json!({"state": "ended", "output": "done"}));
    let log = server.http.run_events(&run, 0).await.read_to_end().await;
    log.assert_valid();
}
