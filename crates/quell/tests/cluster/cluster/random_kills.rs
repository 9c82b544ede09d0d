//! Nodes are killed at random moments, again and again.

use std::time::Instant;

use quell_testkit::seed::test_seed;

use super::*;

/// Kills in a test run. `QUELL_TEST_KILLS` asks for another number.
const KILLS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_killed_at_random_moments_leave_nothing() {
    let Some(mut cluster) = TestCluster::start(3, Bus::Nats).await else { return };
    let asked = std::env::vars().find(|(name, _)| name == "QUELL_TEST_KILLS");
    let kills = asked.map_or(KILLS, |(name, number)| number.parse().unwrap_or_else(|_| panic!("{name} is {number:?}")));
    let (mut random, mut settled) = (fastrand::Rng::with_seed(test_seed()), Vec::new());
    for kill in 0..kills {
        let (victim, others) = (random.usize(..3), random.usize(1..3));
        let (reader, next) = ((victim + others) % 3, (victim + 3 - others) % 3);
        // A command, a background command, and an answer that streams, each in a session of its own.
        let markers = [ProcessMarker::new(), ProcessMarker::new()];
        let session = |name: &str| format!("{name}-{kill}");
        cluster.model.script(shell_call(commands::ignores_signals(&markers[0])));
        let runs = [cluster.api(victim).send_message(&session("tool"), "work").await, {
            markers[0].wait_for_count(1).await;
            cluster.model.script(background_call(commands::ignores_signals(&markers[1])));
            cluster.model.script(ScriptedResponse::tokens_forever(Duration::from_millis(5)));
            cluster.api(victim).send_message(&session("background"), "work").await
        }];
        let readers =
            [cluster.api(reader).run_events(&runs[0], 0).await, cluster.api(reader).run_events(&runs[1], 0).await];
        // This test is about the moment of the kill, so it waits for no condition.
        tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
        let killed = Instant::now();
        cluster.nodes[victim].kill9().await;
        for marker in &markers {
            marker.wait_gone(WAIT_TIMEOUT).await;
        }
        for events in readers {
            let read = events.read_to_end().await;
            assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1), "kill {kill}");
        }
        settled.push(killed.elapsed());
        for name in ["tool", "background"] {
            cluster.complete_run(next, &session(name)).await;
        }
        cluster.nodes[victim] = cluster.homes[victim].start(quell_exe()).await;
    }
    settled.sort_unstable();
    let (median, longest) = (settled[settled.len() / 2], settled[settled.len() - 1]);
    eprintln!("{kills} kills: settled after {median:?} (median), {longest:?} (longest)");
    assert_eq!(cluster.server.sql("SELECT count(*) FROM runs WHERE state IN ('accepted', 'started')"), "0");
    cluster.model.assert_histories_valid();
}
