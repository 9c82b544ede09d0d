//! Nodes whose clocks are minutes apart. Only lists show it: leases are measured by the clock of the database.

use std::time::Instant;

use quell_testkit::clock_offset::clock_offset_script;

use super::*;

/// Minutes of node-0, node-1 and node-2.
const OFFSETS: [i32; 3] = [10, 0, -10];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_whose_clocks_are_minutes_apart_keep_and_lose_leases_in_time() {
    let Some(server) = TestPostgres::start() else { return };
    let Some(mut cluster) = TestCluster::without_nodes(server, Bus::Nats, "").await else { return };
    for minutes in OFFSETS {
        let Some(script) = clock_offset_script(minutes) else { return };
        cluster.start_node_by(&format!("{script}exec \"$@\""), "127.0.0.1:0").await;
    }
    cluster.wait_for_bus().await;
    let epochs = "SELECT string_agg(name || epoch, ' ' ORDER BY name) FROM nodes";
    let (begin, members) = (cluster.server.sql("SELECT clock_timestamp()"), cluster.server.sql(epochs));
    for (node, minutes) in OFFSETS.into_iter().enumerate() {
        let view = cluster.api(node).get("/api/cluster").await.expect_status(200);
        let skew = view["databaseClockSkewMs"].as_i64().unwrap() + i64::from(minutes) * 60_000;
        assert!(skew.abs() < 60_000, "{minutes} minutes: {view:#}");
        let doctor = cluster.quell(node, &["doctor", "--json"]).await;
        let found = String::from_utf8(doctor.stdout).unwrap();
        assert_eq!(found.contains("leases do not depend on it"), minutes != 0, "{minutes} minutes: {found}");
    }
    let marker = ProcessMarker::new();
    let run = cluster.start_command(0, "stopped", &marker).await;
    let stopped = cluster.api(2).stop_run(&run).await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    assert_fields(&stopped, &json!({"state": "ended", "verdict": {"kind": "aborted", "reason": "user"}}));
    for node in 0..3 {
        cluster.complete_run(node, "stopped").await;
        cluster.complete_run(node, &format!("own-{node}")).await;
    }
    // Each has needed several renewals since.
    cluster.wait_for_nodes(&format!("renewed_at > '{begin}'::timestamptz + interval '{LEASE_MS} ms'"), "3").await;
    assert_eq!(cluster.server.sql(epochs), members, "a lease ended too early");
    for victim in [0, 2] {
        let (marker, session) = (ProcessMarker::new(), format!("killed-{victim}"));
        let run = cluster.start_command(victim, &session, &marker).await;
        let reader = cluster.api(1).run_events(&run, 0).await;
        let killed = Instant::now();
        cluster.nodes[victim].kill9().await;
        let read = reader.read_to_end().await;
        let settled_after = killed.elapsed();
        assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
        eprintln!("{} minutes: settled after {settled_after:?}", OFFSETS[victim]);
        assert!(settled_after > Duration::from_millis(LEASE_MS / 2), "{settled_after:?}: before the lease ended");
        marker.wait_gone(WAIT_TIMEOUT).await;
        cluster.complete_run(1, &session).await;
    }
    cluster.model.assert_histories_valid();
}
