//! PostgreSQL ends, or its disk is full, while all nodes are at work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use super::*;

/// No outage of these tests lasts longer than the time for which work goes on without a renewal.
const LONG_LEASE_MS: u64 = 20_000;
/// Each gets one message after the other.
const SESSIONS: usize = 6;

/// Sends messages to a session, each to another node, until told to end. Returns the runs that were accepted.
async fn keep_sending(apis: Vec<TestApiClient>, session: String, is_done: Arc<AtomicBool>) -> Vec<String> {
    let (mut accepted, mut open) = (Vec::new(), None);
    while open.is_some() || !is_done.load(Ordering::Relaxed) {
        let api = &apis[accepted.len() % apis.len()];
        match &open {
            None => {
                let answer = api.post_run(&session, &json!({"text": "a question"})).await;
                match (answer.status, answer.problem_code()) {
                    (202, _) => open = Some(answer.body["runId"].as_str().unwrap().to_owned()),
                    (503, Some("store_unavailable" | "node_unreachable")) => {}
                    _ => panic!("{answer:?}"),
                }
            }
            Some(run) => {
                let answer = api.get(&format!("/api/runs/{run}")).await;
                if answer.status == 200 && answer.body["state"] == "ended" {
                    accepted.extend(open.take());
                }
            }
        }
    }
    accepted
}

impl TestCluster {
    async fn wait_for_ended_runs(&self, more: usize) {
        let count = || self.server.sql("SELECT count(*) FROM runs WHERE state = 'ended'").parse::<usize>().unwrap();
        let wanted = count() + more;
        poll_until("more ended runs", async || (count() >= wanted).then_some(())).await;
    }
}

#[rstest]
#[case::killed(TestPostgres::kill)]
#[case::shut_down(TestPostgres::stop)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_ends_under_load_loses_no_end_of_a_run(#[case] end: fn(&mut TestPostgres)) {
    let Some(server) = TestPostgres::start() else { return };
    let Some(mut cluster) = TestCluster::without_nodes(server, Bus::Nats, "").await else { return };
    cluster.lease_ms = LONG_LEASE_MS;
    for _ in 0..3 {
        cluster.start_node("", &[]).await;
    }
    cluster.wait_for_bus().await;
    cluster.model.respond_by_prompt(|prompt, _| match without_time(prompt).as_str() {
        "wait" => gated_response("go"),
        _ => ScriptedStream::new().text("an").text(" answer").into(),
    });
    let mut accepted = Vec::new();
    for node in 0..3 {
        let run = cluster.api(node).send_message(&format!("streaming-{node}"), "wait").await;
        cluster.api(node).run_events(&run, 0).await.wait_for("text.delta").await;
        accepted.push(run);
    }
    let streaming = [0, 1, 2].map(|node| (cluster.api((node + 1) % 3), accepted[node].clone()));
    let mut readers = Vec::new();
    for (api, run) in &streaming {
        readers.push(api.run_events(run, 0).await);
    }
    let (is_done, mut senders) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for session in 0..SESSIONS {
        let apis = (0..3).map(|node| cluster.api((session + node) % 3)).collect();
        senders.spawn(keep_sending(apis, format!("s-{session}"), Arc::clone(&is_done)));
    }
    cluster.wait_for_ended_runs(2 * SESSIONS).await;
    let at = Instant::now();
    end(&mut cluster.server);
    cluster.server.start_again();
    let away = at.elapsed();
    cluster.wait_for_ended_runs(2 * SESSIONS).await;
    is_done.store(true, Ordering::Relaxed);
    cluster.model.open_gate("go");
    for reader in readers {
        let read = reader.read_to_end().await;
        assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("completed", 1));
    }
    accepted.extend(senders.join_all().await.into_iter().flatten());
    for (number, run) in accepted.iter().enumerate() {
        let read = cluster.api(number % 3).run_events(run, 0).await.read_to_end().await;
        read.assert_valid();
        assert_eq!(read.verdict(), "completed");
    }
    eprintln!("{} messages, the database was away for {away:?}", accepted.len());
    // A node tries again after 10 s to store an end that the database has refused.
    let open = "SELECT count(*) FROM runs WHERE state IN ('accepted', 'started')";
    poll_until("all ends are stored", async || (cluster.server.sql(open) == "0").then_some(())).await;
    assert!(cluster.nodes.iter().all(|node| !node.has_exited()));
    cluster.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_database_refuses_messages_and_no_stop() {
    let Some(server) = TestPostgres::start_on_small_disk() else { return };
    let Some(mut cluster) = TestCluster::without_nodes(server, Bus::Nats, "").await else { return };
    for _ in 0..3 {
        cluster.start_node("", &[]).await;
    }
    cluster.wait_for_bus().await;
    let markers = [0; 3].map(|_| ProcessMarker::new());
    let mut runs = Vec::new();
    for (node, marker) in markers.iter().enumerate() {
        runs.push(cluster.start_command(node, &format!("s-{node}"), marker).await);
    }
    cluster.server.fill_disk();
    // It cannot be compressed, and fits into no page that is there.
    let mut random = fastrand::Rng::with_seed(1);
    let text: String = std::iter::repeat_with(|| random.alphanumeric()).take(100_000).collect();
    for node in 0..3 {
        let refused = cluster.api(node).post_run(&format!("new-{node}"), &json!({"text": text})).await;
        assert_problem(&refused, 503, "store_unavailable");
        assert!(refused.body["detail"].as_str().unwrap().contains("No space left on device"), "{refused:?}");
        // A result of the last second is told again.
        let ready = async || (cluster.api(node).get("/readyz").await.status == 503).then_some(());
        poll_until("a node that takes no messages is not ready", ready).await;
    }
    for (node, marker) in markers.iter().enumerate() {
        let at = Instant::now();
        let (api, body) = (cluster.api((node + 1) % 3), json!({}));
        let path = format!("/api/sessions/s-{node}/stop");
        let (stopped, _) = tokio::join!(api.post(&path, &body), marker.wait_gone(WAIT_TIMEOUT));
        let stopped_after = at.elapsed();
        eprintln!("stopped on node-{node} after {stopped_after:?}");
        assert_fields(&stopped.expect_status(200), &json!({"aborted": true, "runIds": [runs[node]]}));
    }
    cluster.server.free_disk();
    for (node, run) in runs.iter().enumerate() {
        let read = cluster.api((node + 2) % 3).run_events(run, 0).await.read_to_end().await;
        assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
        poll_until("readiness", async || (cluster.api(node).get("/readyz").await.status == 200).then_some(())).await;
        cluster.complete_run((node + 1) % 3, &format!("s-{node}")).await;
        cluster.complete_run(node, &format!("new-{node}")).await;
    }
    assert!(cluster.nodes.iter().all(|node| !node.has_exited()));
    cluster.model.assert_histories_valid();
}

/// The database refuses the hold while it takes everything else. Meanwhile somebody lifts it at another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_stored_late_does_not_replace_a_newer_word() {
    let Some(cluster) = TestCluster::start(3, Bus::Nats).await else { return };
    cluster.wait_for_bus().await;
    cluster.server.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full'; END$$;
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON hold FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let stopped = cluster.api(1).post("/api/stop", &json!({"hold": true})).await.expect_status(200);
    assert!(stopped["held"] == true && stopped["holdProblem"].as_str().unwrap().contains("no space"), "{stopped:#}");
    for node in 0..3 {
        let hold = cluster.api(node).get("/api/hold").await.expect_status(200);
        assert_fields(&hold, &json!({"held": true, "unstored": true}));
        assert_problem(&cluster.api(node).post_run("s", &json!({"text": "hello"})).await, 503, "held");
    }
    // One transaction, so that the node which retries cannot come before.
    cluster.server.sql(
        "BEGIN; LOCK TABLE hold; DROP TRIGGER refuse ON hold;
         INSERT INTO hold (held) VALUES (false) ON CONFLICT (only_row) DO UPDATE SET revision = hold.revision + 1;
         COMMIT",
    );
    cluster.api(0).delete("/api/hold").await.expect_status(200);
    for node in 0..3 {
        let lifted = async || {
            let hold = cluster.api(node).get("/api/hold").await.expect_status(200);
            (hold["held"] == false && hold.get("unstored").is_none()).then_some(())
        };
        poll_until("the hold is lifted", lifted).await;
    }
    for node in 0..3 {
        cluster.complete_run(node, &format!("s-{node}")).await;
    }
    let has_given_up = async || log_of(&cluster.homes[1]).contains("the newer word is in force").then_some(());
    poll_until("the node that held everything sees the newer word", has_given_up).await;
    assert_eq!(cluster.server.sql("SELECT held FROM hold"), "f");
}
