//! What the door says while the daemon closes and after.

use serde_json::json;

use crate::doors::{House, assert_problem};

#[tokio::test(flavor = "multi_thread")]
async fn a_closing_daemon_says_so() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    house.forgotten(&run).await;
    house.engine.shut_down().await;
    assert_eq!(house.http.get("/healthz").await.status, 200);
    assert_problem(&house.http.get("/readyz").await, 503, "shutting_down");
    assert_problem(&house.post_run("agent:main:s", &json!({"text": "x"})).await, 503, "shutting_down");
    assert_problem(&house.http.get(&format!("/api/runs/{run}")).await, 503, "store_unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_told_the_end_before_the_daemon_goes() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let events = house.http.events(&run, 0).await;
    house.engine.shut_down().await;
    let log = events.to_end().await;
    log.assert_sound();
    assert_eq!(log.events.last().unwrap().data["verdict"]["reason"], "shutdown");
    assert_eq!(log.receipt()["leftovers"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_before_a_restart_is_still_shown() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    let house = house.reopen().await;
    let view = house.http.get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!((&view["state"], &view["output"]), (&json!("ended"), &json!("done")));
    let log = house.http.events(&run, 0).await.to_end().await;
    log.assert_sound();
}
