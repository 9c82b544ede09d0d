//! Partitions: each node has a network of its own, whose connections are cut and healed one by one.

use std::time::Instant;

use quell_testkit::network::{NodeNetwork, Relay};

use super::*;

/// The owner of the session in each test.
const OWNER: usize = 0;

/// A cluster of three nodes whose connections can be cut.
struct CutOffCluster {
    cluster: TestCluster,
    // Dropped after the nodes.
    links: Vec<NodeLinks>,
}

/// The only ways out of the network of a node.
struct NodeLinks {
    postgres: Relay,
    nats: Relay,
    _model: Relay,
    api: Relay,
    network: NodeNetwork,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Postgres,
    Nats,
}

impl NodeLinks {
    fn relay(&self, link: Link) -> &Relay {
        match link {
            Link::Postgres => &self.postgres,
            Link::Nats => &self.nats,
        }
    }
}

impl std::ops::Deref for CutOffCluster {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl CutOffCluster {
    async fn start() -> Option<Self> {
        let mut cluster = TestCluster::without_nodes(TestPostgres::start()?, Bus::Nats, "").await?;
        let mut links = Vec::new();
        for _ in 0..3 {
            let network = NodeNetwork::start()?;
            let node = NodeLinks {
                postgres: network.relay_to_host(cluster.server.port()),
                nats: network.relay_to_host(cluster.nats.as_ref()?.port()),
                _model: network.relay_to_host(cluster.model.address().port()),
                api: network.relay_to_namespace(),
                network,
            };
            let enter = format!("exec nsenter --net={} \"$@\"", node.network.path().display());
            cluster.start_node_by(&enter, &format!("127.0.0.1:{}", node.api.port())).await;
            links.push(node);
        }
        cluster.wait_for_bus().await;
        Some(Self { cluster, links })
    }

    fn cut(&self, node: usize, links: &[Link]) {
        links.iter().for_each(|link| self.links[node].relay(*link).cut());
    }

    fn heal(&self, node: usize, links: &[Link]) {
        links.iter().for_each(|link| self.links[node].relay(*link).heal());
    }

    /// What the database has of sessions and runs.
    fn written(&self) -> String {
        self.server.sql("SELECT (SELECT count(*) FROM history), (SELECT count(*) FROM journal), string_agg(view, '' ORDER BY id) FROM runs")
    }

    fn epoch_of_owner(&self) -> String {
        self.server.sql(&format!("SELECT epoch FROM nodes WHERE name = 'node-{OWNER}'"))
    }

    /// Waits until PostgreSQL has no connection of this membership, so that nothing arrives that it has sent.
    async fn wait_for_last_connection(&self, epoch: &str) {
        let open = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'quell node {epoch}'");
        poll_until("the end of its connections", async || (self.server.sql(&open) == "0").then_some(())).await;
    }
}

#[rstest]
#[case::from_the_database(&[Link::Postgres])]
#[case::from_the_database_and_the_bus(&[Link::Postgres, Link::Nats])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_cut_off_ends_its_work_and_writes_nothing_when_healed(#[case] cut: &[Link]) {
    let Some(mut cluster) = CutOffCluster::start().await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(OWNER, "s", &marker).await;
    // It has something to write at any moment.
    cluster.model.script(ScriptedResponse::tokens_forever(Duration::from_millis(2)));
    let streaming = cluster.api(OWNER).send_message("t", "talk").await;
    let readers = [cluster.api(2).run_events(&run, 0).await, cluster.api(2).run_events(&streaming, 0).await];
    let epoch = cluster.epoch_of_owner();
    let cut_at = Instant::now();
    cluster.cut(OWNER, cut);
    for reader in readers {
        let read = reader.read_to_end().await;
        assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
    }
    let settled_after = cut_at.elapsed();
    assert_eq!(marker.marked_processes(), [], "another node has ended a run whose command is alive");
    for session in ["s", "t"] {
        cluster.complete_run(1, session).await;
        assert_eq!(cluster.owner(session), "node-1");
    }
    let written = cluster.written();
    cluster.heal(OWNER, cut);
    let owner = cluster.cluster.nodes.remove(OWNER);
    assert!(!owner.wait_exit().await.success(), "a node that has lost its lease ends");
    cluster.wait_for_last_connection(&epoch).await;
    assert_eq!(cluster.written(), written);
    eprintln!("{cut:?}: settled after {settled_after:?}, exit after {:?}", cut_at.elapsed());
    let api = cluster.api(1);
    assert_eq!(api.run_events(&run, 0).await.read_to_end().await.of_kind("run.ended").len(), 1);
    cluster.complete_run(0, "s").await;
    cluster.model.assert_histories_valid();
}

#[rstest]
#[case::from_the_database(&[Link::Postgres])]
#[case::from_the_database_and_the_bus(&[Link::Postgres, Link::Nats])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_an_owner_that_is_cut_off_is_answered_with_what_is_stored(#[case] cut: &[Link]) {
    let Some(mut cluster) = CutOffCluster::start().await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(OWNER, "s", &marker).await;
    let reader = cluster.api(2).run_events(&run, 0).await;
    cluster.cut(OWNER, cut);
    let (asked, path) = (cluster.api(1), format!("/api/runs/{run}/stop"));
    let (path_and_wait, body) = (format!("{path}?wait=1"), json!({}));
    let (at_once, waited) = tokio::join!(asked.post(&path, &body), asked.post(&path_and_wait, &body));
    // Over the bus it is carried out. Without the bus it is stored, and nobody can say more.
    match cut.contains(&Link::Nats) {
        true => {
            assert_problem(&at_once, 503, "node_unreachable");
            assert!(at_once.body["detail"].as_str().unwrap().contains("The stop is stored"), "{at_once:#?}");
        }
        false => assert_fields(&at_once.expect_status(202), &json!({"state": "ending"})),
    }
    let waited = waited.expect_status(200);
    assert_eq!(marker.marked_processes(), [], "the answer says that all has ended");
    let view = cluster.api(2).run_view(&run).await;
    assert_fields(&waited, &json!({"state": "ended", "verdict": view["verdict"], "receipt": view["receipt"]}));
    assert_eq!(view["verdict"]["kind"], "aborted");
    let read = reader.read_to_end().await;
    assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
    cluster.complete_run(1, "s").await;
    cluster.heal(OWNER, cut);
    let owner = cluster.cluster.nodes.remove(OWNER);
    assert!(!owner.wait_exit().await.success(), "a node that has lost its lease ends");
    cluster.wait_stops_forgotten().await;
    cluster.complete_run(0, "s").await;
    cluster.model.assert_histories_valid();
}

/// Nodes talk over the bus and the database only. So an owner that is cut off from its peers alone is one that has both,
/// while the others are cut off from the bus.
#[rstest]
#[case::the_owner_from_the_bus(&[OWNER])]
#[case::the_owner_from_its_peers(&[1, 2])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_cut_off_from_the_bus_go_on_through_the_database(#[case] cut: &[usize]) {
    let Some(cluster) = CutOffCluster::start().await else { return };
    let marker = ProcessMarker::new();
    let run = cluster.start_command(OWNER, "s", &marker).await;
    let reader = cluster.api(2).run_events(&run, 0).await;
    cut.iter().for_each(|node| cluster.cut(*node, &[Link::Nats]));
    let (asked, path, body) = (cluster.api(1), format!("/api/runs/{run}/stop?wait=1"), json!({}));
    // One answer to a renewal brings it, without the bus.
    let (stopped, _) = tokio::join!(asked.post(&path, &body), marker.wait_gone(WAIT_TIMEOUT));
    let aborted = json!({"kind": "aborted", "reason": "user"});
    assert_fields(&stopped.expect_status(200), &json!({"state": "ended", "aborted": true, "verdict": aborted}));
    let read = reader.read_to_end().await;
    assert_eq!((read.verdict(), read.of_kind("run.ended").len()), ("aborted", 1));
    cluster.complete_run(1, "s").await;
    assert_eq!(cluster.owner("s"), "node-0");
    cut.iter().for_each(|node| cluster.heal(*node, &[Link::Nats]));
    cluster.wait_for_bus().await;
    // The first letter over the bus shows that others were lost. What is open then is given up; the client sends it again.
    cluster.model.script(ScriptedResponse::text("an answer"));
    let message = json!({"text": "a question", "idempotencyKey": "healed"});
    let run = poll_until("an accepted message", async || {
        let answer = cluster.api(2).post_run("s", &message).await;
        matches!(answer.status, 200 | 202).then(|| answer.body["runId"].as_str().unwrap().to_owned())
    })
    .await;
    assert_eq!(cluster.api(OWNER).run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    assert!(cluster.nodes.iter().all(|node| !node.has_exited()));
    cluster.model.assert_histories_valid();
}
