//! The database or the message bus is away: stops act all the same, and nobody writes twice.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_message_bus_everything_goes_through_the_database() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    cluster.nats.as_mut().unwrap().kill();
    let stopped = cluster.api(1).post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    marker.wait_gone(WAIT_TIMEOUT).await;
    assert_fields(&stopped, &json!({"state": "ended", "verdict": {"kind": "aborted", "reason": "user"}}));
    cluster.complete_run(1, "s").await;
    cluster.nats.as_mut().unwrap().start_again();
    cluster.wait_for_bus().await;
    cluster.complete_run(1, "s").await;
    cluster.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_over_the_bus_acts_while_the_database_is_away() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let marker = ProcessMarker::new();
    cluster.start_command(0, "s", &marker).await;
    cluster.server.kill();
    let (api, body) = (cluster.api(1), json!({}));
    let stop = api.post("/api/sessions/s/stop", &body);
    let (stopped, _) = tokio::join!(stop, marker.wait_gone(WAIT_TIMEOUT));
    assert_fields(&stopped.expect_status(200), &json!({"aborted": true}));
    for node in cluster.nodes.drain(..) {
        assert!(!node.wait_exit().await.success(), "without the database, no node can keep its lease");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_within_the_lease_ends_nothing() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    cluster.model.script(gated_response("go"));
    let run = cluster.api(0).send_message("s", "wait").await;
    cluster.api(0).run_events(&run, 0).await.wait_for("text.delta").await;
    cluster.server.kill();
    cluster.server.start_again();
    cluster.model.open_gate("go");
    let read = cluster.api(0).run_events(&run, 0).await.read_to_end().await;
    assert_eq!(read.verdict(), "completed");
    cluster.complete_run(1, "s").await;
    cluster.model.assert_histories_valid();
}
