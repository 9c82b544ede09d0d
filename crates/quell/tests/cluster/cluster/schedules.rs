//! Schedules in a cluster: one node fires them, once, and none fires after a stop at any node was answered.

use super::*;

const SHORT_INTERVALS: &str = "[schedules]\nmin_interval_s = 1\n";

impl TestCluster {
    async fn start_with_short_intervals(more: &'static str) -> Option<Self> {
        Self::start_in(2, Bus::Nats, more, SHORT_INTERVALS, &[]).await
    }

    async fn make_schedule(&self, node: usize, text: &str) -> String {
        let schedule = self.api(node).post("/api/schedules", &json!({"every": "1s", "text": text})).await;
        schedule.expect_status(201)["id"].as_str().unwrap().to_owned()
    }

    async fn schedule(&self, node: usize, id: &str) -> Value {
        self.api(node).get(&format!("/api/schedules/{id}")).await.expect_status(200)
    }

    /// The runs that a schedule has started, as the database has them.
    fn runs_of(&self, id: &str) -> u64 {
        self.server.sql(&format!("SELECT count(*) FROM runs WHERE id LIKE '{id}:%'")).parse().unwrap()
    }

    /// Waits until a schedule has fired this often more.
    async fn wait_fired(&self, id: &str, more: u64) {
        let before = self.runs_of(id);
        poll_until("the firings", async || (self.runs_of(id) >= before + more).then_some(())).await;
    }

    /// The index of the node that fires.
    async fn firing_node(&self) -> usize {
        let sql = "SELECT nodes.name FROM node_duties JOIN nodes ON nodes.epoch = holder
             WHERE node_duties.name = 'schedules' AND node_duties.expires_at > clock_timestamp()";
        poll_until("a node fires", async || {
            let name = self.server.sql(sql);
            self.homes.iter().position(|home| home.node == name)
        })
        .await
    }

    /// Asserts that a schedule does not fire while another one does.
    async fn assert_silent(&self, id: &str, node: usize, runs: u64) {
        let witness = self.make_schedule(node, "a witness").await;
        self.wait_fired(&witness, 3).await;
        assert_eq!(self.runs_of(id), runs, "{:#}", self.schedule(node, id).await);
        self.api(node).delete(&format!("/api/schedules/{witness}")).await.expect_status(204);
    }
}

fn answer_always(cluster: &TestCluster) {
    cluster.model.respond_by_prompt(|_, _| ScriptedResponse::text("an answer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_fire_a_schedule_once_and_the_other_stops_it() {
    let Some(cluster) = TestCluster::start_with_short_intervals("").await else { return };
    answer_always(&cluster);
    let other = 1 - cluster.firing_node().await;
    let id = cluster.make_schedule(other, "say hello").await;
    cluster.wait_fired(&id, 3).await;
    let view = cluster.schedule(other, &id).await;
    assert_eq!(view["missedCount"], 0, "{view:#}");
    let stopped = cluster.api(other).post("/api/stop", &json!({"hold": true})).await.expect_status(200);
    let runs = cluster.runs_of(&id);
    assert_fields(&stopped, &json!({"held": true, "pausedSchedules": [id]}));
    cluster.api(other).delete("/api/hold").await.expect_status(200);
    cluster.assert_silent(&id, other, runs).await;
    for node in 0..2 {
        let view = cluster.schedule(node, &id).await;
        assert_eq!((&view["fired"], &view["paused"]["by"]), (&json!(runs), &json!("admin")), "{view:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_session_at_another_node_pauses_what_it_made() {
    let Some(cluster) = TestCluster::start_with_short_intervals("").await else { return };
    let firing = cluster.firing_node().await;
    cluster.model.respond_by_prompt(|_, request| {
        let last = request.messages().last().unwrap();
        if last["role"] == "user" && last.to_string().contains("look from time to time") {
            ScriptedResponse::tool_call("c1", "cron_add", &json!({"text": "look again", "every": "1s"}))
        } else {
            ScriptedResponse::text("an answer")
        }
    });
    // Made at a node that does not fire, and stopped at once at each of the two.
    for stopping in [firing, 1 - firing] {
        let session = format!("s{stopping}");
        let run = cluster.api(1 - firing).send_message(&session, "look from time to time").await;
        cluster.api(1 - firing).wait_ended(&run).await;
        let stopped = cluster.api(stopping).post(&format!("/api/sessions/{session}/stop"), &json!({})).await;
        let stopped = stopped.expect_status(200);
        let id = stopped["pausedSchedules"][0].as_str().unwrap_or_else(|| panic!("{stopped:#}")).to_owned();
        let runs = cluster.runs_of(&id);
        cluster.assert_silent(&id, stopping, runs).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_firing_node_that_a_stop_does_not_reach_fires_no_more() {
    let Some(cluster) = TestCluster::start_with_short_intervals("").await else { return };
    answer_always(&cluster);
    let firing = cluster.firing_node().await;
    let id = cluster.make_schedule(firing, "say hello").await;
    cluster.wait_fired(&id, 1).await;
    let suspended = cluster.nodes[firing].suspend();
    let stopped = cluster.api(1 - firing).post("/api/stop", &json!({"hold": true})).await.expect_status(200);
    let runs = cluster.runs_of(&id);
    assert_eq!(stopped["pausedSchedules"], json!([id]), "{stopped:#}");
    drop(suspended);
    cluster.api(1 - firing).delete("/api/hold").await.expect_status(200);
    cluster.assert_silent(&id, 1 - firing, runs).await;
}
