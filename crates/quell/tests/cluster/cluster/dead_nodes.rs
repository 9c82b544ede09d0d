//! A node that is killed, stopped or cut off: nothing of it survives its lease, and others go on with its sessions.

use std::time::Instant;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_a_killed_node_are_sealed_by_another_and_readers_see_one_end() {
    settle_killed_node().await;
}

/// Returns the time from the kill to the end that a reader sees; `None` where a server is switched off for the tests.
async fn settle_killed_node() -> Option<Duration> {
    let mut cluster = TestCluster::start(3, Bus::Nats).await?;
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    let reader = cluster.api(2).run_events(&run, 0).await;
    let killed = Instant::now();
    cluster.nodes.remove(0).kill9().await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    let read = reader.read_to_end().await;
    let settled_after = killed.elapsed();
    assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
    let view = cluster.api(0).run_view(&run).await;
    let by = json!({"principal": "node node-0", "surface": "daemon"});
    assert_fields(
        &view,
        &json!({"state": "ended", "verdict": {"kind": "aborted", "reason": "daemon_stopped", "by": by}}),
    );
    cluster.complete_run(1, "s").await;
    assert_eq!(cluster.owner("s"), "node-2");
    cluster.model.assert_histories_valid();
    Some(settled_after)
}

/// It waits until the lease has ended, also without an idempotency key, and is carried out once.
#[rstest]
#[case::with_nats(Bus::Nats)]
#[case::without(Bus::Database)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_for_the_session_of_a_dead_node_waits_until_it_is_free(#[case] bus: Bus) {
    let Some(mut cluster) = TestCluster::start(3, bus).await else { return };
    cluster.complete_run(0, "s").await;
    assert_eq!(cluster.owner("s"), "node-0");
    cluster.nodes.remove(0).kill9().await;
    cluster.model.script(ScriptedResponse::text("an answer"));
    let answer = cluster.api(1).post_run("s", &json!({"text": "a question"})).await;
    assert!(matches!(answer.status, 200 | 202), "{answer:?}");
    let run = answer.body["runId"].as_str().unwrap();
    assert_eq!(cluster.api(0).run_events(run, 0).await.read_to_end().await.verdict(), "completed");
    assert_eq!(cluster.server.sql("SELECT count(*) FROM runs"), "2");
    cluster.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_run_on_a_dead_node_is_answered_when_its_lease_has_ended() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    cluster.nodes.remove(0).kill9().await;
    let silent = cluster.api(0).post(&format!("/api/runs/{run}/stop"), &json!({})).await;
    assert_problem(&silent, 503, "node_unreachable");
    let detail = silent.body["detail"].as_str().unwrap();
    assert!(detail.contains("node-0") && detail.contains("The stop is stored"), "{detail}");
    let stopped = cluster.api(0).post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    assert_fields(&stopped, &json!({"state": "ended", "verdict": {"kind": "aborted"}}));
    cluster.wait_stops_forgotten().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_node_loses_its_processes_and_writes_nothing_when_it_wakes() {
    settle_suspended_node().await;
}

/// Returns the time from the suspension to the end that a reader sees; `None` where a server is switched off for the
/// tests.
async fn settle_suspended_node() -> Option<Duration> {
    let mut cluster = TestCluster::start(2, Bus::Nats).await?;
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "s", &marker).await;
    let stopped = cluster.nodes.remove(0);
    let suspended = stopped.suspend();
    let suspended_at = Instant::now();
    let read = cluster.api(0).run_events(&run, 0).await.read_to_end().await;
    assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
    let settled_after = suspended_at.elapsed();
    assert_eq!(marker.marked_processes(), [], "another node has ended a run whose command is alive");
    cluster.complete_run(0, "s").await;
    let history = cluster.server.sql("SELECT count(*) FROM history");
    drop(suspended);
    assert!(!stopped.wait_exit().await.success(), "a node that has lost its lease ends");
    assert_eq!(cluster.server.sql("SELECT count(*) FROM history"), history);
    cluster.complete_run(0, "s").await;
    cluster.model.assert_histories_valid();
    Some(settled_after)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_gives_its_sessions_back_at_once() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    cluster.complete_run(0, "s").await;
    assert!(cluster.nodes.remove(0).stop().await.success());
    assert_eq!(cluster.server.sql("SELECT count(*) FROM nodes"), "1");
    cluster.complete_run(0, "s").await;
    assert_eq!(cluster.owner("s"), "node-1");
}

mod timing {
    use super::*;

    /// The target is the lease and a second.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn another_node_settles_what_a_dead_one_has_left() {
        let (killed, suspended) = (settle_killed_node().await, settle_suspended_node().await);
        let (Some(killed), Some(suspended)) = (killed, suspended) else { return };
        report_time(&format!("a killed node is settled, with a lease of {LEASE:?}"), killed);
        report_time(&format!("a suspended node is settled, with a lease of {LEASE:?}"), suspended);
    }
}
