//! What people who run a cluster see and do: the list of nodes, a drain, metrics, the doctor.

use super::*;

impl TestCluster {
    async fn node_views(&self, node: usize) -> Vec<Value> {
        let view = self.api(node).get("/api/cluster").await.expect_status(200);
        view["nodes"].as_array().unwrap().clone()
    }

    /// The state of a node as another one shows it, if it is in the list.
    async fn state_of(&self, node: &str, shown_by: usize) -> Option<String> {
        let views = self.node_views(shown_by).await;
        let view = views.iter().find(|view| view["node"] == node)?;
        Some(view["state"].as_str().unwrap().to_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_all_nodes_and_forgets_a_dead_one() {
    let Some(mut cluster) = TestCluster::start(3, Bus::Database).await else { return };
    cluster.complete_run(0, "s").await;
    poll_until("the end of the run is reported with a renewal", async || {
        (cluster.node_views(1).await[0]["activeRuns"] == 0).then_some(())
    })
    .await;
    let view = cluster.api(1).get("/api/cluster").await.expect_status(200);
    assert_fields(&view, &json!({"node": "node-1", "leaseMs": LEASE_MS}));
    assert!(view["lagMs"].is_u64() && view["databaseClockSkewMs"].is_i64(), "{view:#}");
    let nodes = cluster.node_views(1).await;
    assert_eq!(nodes.iter().map(|node| &node["node"]).collect::<Vec<_>>(), ["node-0", "node-1", "node-2"]);
    for (number, node) in nodes.iter().enumerate() {
        let expected =
            json!({"state": "active", "self": number == 1, "version": env!("CARGO_PKG_VERSION"), "activeRuns": 0});
        assert_fields(node, &expected);
        assert!(node["leaseEndsInMs"].as_u64().unwrap() > 0 && node["maxInFlight"].as_u64().unwrap() > 0, "{node:#}");
    }
    assert_eq!(nodes[0]["sessions"], 1);
    let printed = cluster.quell(1, &["cluster", "status"]).await;
    let text = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(printed.status.code(), Some(0), "{text}");
    assert!(text.contains("node-1*  ● active") && text.contains("* node-1 answers · leases of 4"), "{text}");
    cluster.nodes.remove(0).kill9().await;
    poll_until("another node than the dead one notices", async || {
        (cluster.state_of("node-0", 0).await.as_deref() != Some("active")).then_some(())
    })
    .await;
    poll_until("the dead node leaves the list", async || cluster.state_of("node-0", 0).await.is_none().then_some(()))
        .await;
    assert_eq!(cluster.node_views(1).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_session_of_a_drained_node_goes_on_on_another_one() {
    let Some(cluster) = TestCluster::start(2, Bus::Database).await else { return };
    cluster.complete_run(0, "s").await;
    let drained = cluster.api(0).post("/api/drain", &json!({"waitMs": 20_000})).await.expect_status(200);
    assert_eq!(drained, json!({"draining": true, "sessions": 0, "activeRuns": 0, "processes": 0}));
    assert_eq!(cluster.owner("s"), "");
    poll_until("the other node knows", async || {
        (cluster.state_of("node-0", 1).await.as_deref() == Some("draining")).then_some(())
    })
    .await;
    cluster.complete_run(0, "s").await;
    assert_eq!(cluster.owner("s"), "node-1");
    cluster.complete_run(0, "new").await;
    assert_eq!(cluster.owner("new"), "node-1");
    let undone = cluster.quell(0, &["drain", "--undo", "--json"]).await;
    assert_eq!(undone.status.code(), Some(0), "{undone:?}");
    cluster.complete_run(0, "later").await;
    assert_eq!(cluster.owner("later"), "node-0");
    let audit = cluster.api(1).get("/api/audit").await.expect_status(200);
    let actions: Vec<&Value> = audit["items"].as_array().unwrap().iter().map(|row| &row["action"]).collect();
    assert!(actions.contains(&&json!("drain")) && actions.contains(&&json!("end_drain")), "{audit:#}");
    cluster.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_runs_or_stops_those_of_its_node_alone() {
    let Some(cluster) = TestCluster::start(2, Bus::Database).await else { return };
    let markers = [ProcessMarker::new(), ProcessMarker::new()];
    let run = cluster.start_command(0, "s", &markers[0]).await;
    let other = cluster.start_command(1, "t", &markers[1]).await;
    let waiting = cluster.api(0).post("/api/drain", &json!({})).await.expect_status(200);
    assert_fields(&waiting, &json!({"draining": true, "sessions": 1, "activeRuns": 1}));
    let drained = cluster.quell(0, &["drain", "--stop", "--wait", "--json"]).await;
    let left: Value = serde_json::from_slice(&drained.stdout).unwrap();
    assert_fields(&left, &json!({"draining": true, "sessions": 0, "activeRuns": 0, "processes": 0}));
    markers[0].wait_gone(WAIT_TIMEOUT).await;
    let stopped = cluster.api(1).run_view(&run).await;
    assert_fields(&stopped["verdict"], &json!({"kind": "aborted"}));
    assert_eq!(cluster.api(0).run_view(&other).await["state"], "running");
    cluster.api(0).stop_run(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_has_metrics_about_the_cluster() {
    let Some(cluster) = TestCluster::start(2, Bus::Database).await else { return };
    cluster.complete_run(0, "s").await;
    cluster.complete_run(1, "s").await;
    let expected = [
        "quell_cluster_nodes{state=\"active\"} 2",
        "quell_cluster_nodes{state=\"dead\"} 0",
        "quell_cluster_owned_sessions 1",
        "quell_cluster_lease_remaining_seconds ",
        "quell_cluster_renewal_seconds ",
        "quell_cluster_peer_letters_total{direction=\"received\"} ",
    ];
    // The facts about nodes and letters are as old as the last renewal.
    let shown = async || {
        let text = cluster.api(0).get("/metrics").await.expect_status(200);
        let text = text.as_str().unwrap();
        let is_shown = |series: &&str| text.lines().any(|line| line.starts_with(series));
        expected.iter().all(is_shown).then_some(())
    };
    poll_until("the metrics of the cluster", shown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_without_a_cluster_says_how_to_get_one() {
    let (_model, daemon) = start_daemon("").await;
    for answer in [
        daemon.api().get("/api/cluster").await,
        daemon.api().post("/api/drain", &json!({})).await,
        daemon.api().delete("/api/drain").await,
    ] {
        assert_problem(&answer, 404, "not_found");
        assert!(answer.body["detail"].as_str().unwrap().contains("[cluster]"), "{}", answer.body);
    }
    assert!(!daemon.api().get("/metrics").await.body.as_str().unwrap().contains("quell_cluster_nodes{"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_another_secret_does_not_join() {
    let Some(cluster) = TestCluster::start(1, Bus::Database).await else { return };
    cluster.wait_for_nodes("report LIKE '%\"keys\":[\"%'", "1").await;
    let stranger = cluster.new_home("", &[]);
    std::fs::write(stranger.root_dir().join("secret"), "another secret, which is long enough for a key\n").unwrap();
    let ended = run_cli(&stranger, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("the node node-0 has another secret of the cluster"), "{}", ended.err);
    let doctor = run_cli(&stranger, &["doctor"]);
    assert!(doctor.out.contains("the node node-0 has another secret"), "{}", doctor.out);
}
