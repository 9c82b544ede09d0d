//! Several nodes of the built program on one PostgreSQL database.

mod dead_nodes;
mod nodes;
mod singletons;

use quell_testkit::postgres::TestPostgres;

use crate::prelude::*;

/// Milliseconds; the default is 10,000.
const LEASE_MS: u64 = 2000;
/// Within this time another node has settled what a dead one has left: the lease, and one second.
const SETTLED_WITHIN: Duration = Duration::from_millis(LEASE_MS + 1000);

/// Nodes `node-0`, `node-1`, ... on one database, with one scripted model.
struct TestCluster {
    server: TestPostgres,
    model: ScriptedModel,
    homes: Vec<NodeHome>,
    nodes: Vec<TestDaemon>,
}

struct NodeHome {
    node: String,
    #[expect(dead_code, reason = "it owns the directories of the node")]
    home: DaemonHome,
}

impl TestCluster {
    /// `None` if PostgreSQL is switched off for the tests.
    async fn start(count: usize) -> Option<Self> {
        Self::start_with(count, "", &[]).await
    }

    /// As `start`, with more sections of the configuration, and variables of the environment.
    async fn start_with(count: usize, sections: &str, variables: &[(&str, &str)]) -> Option<Self> {
        let server = TestPostgres::start()?;
        let model = ScriptedModel::start().await;
        let mut cluster = Self { server, model, homes: Vec::new(), nodes: Vec::new() };
        for number in 0..count {
            let home = DaemonHome::new(&format!("{}{sections}", cluster.node_config(number)));
            let home = variables.iter().fold(home, |home, (name, value)| home.with_env(name, value));
            std::fs::write(home.root_dir().join("secret"), "a secret of this cluster, which is for tests only\n")
                .unwrap();
            cluster.nodes.push(home.start(quell_exe()).await);
            cluster.homes.push(NodeHome { node: format!("node-{number}"), home });
        }
        Some(cluster)
    }

    fn node_config(&self, number: usize) -> String {
        format!(
            "[store]\nurl = \"{}\"\n[cluster]\nnode = \"node-{number}\"\nlease_ms = {LEASE_MS}\nsecret_file = \"secret\"\n{}",
            self.server.url(),
            config_toml(&self.model, "")
        )
    }

    fn api(&self, node: usize) -> TestApiClient {
        self.nodes[node].api()
    }

    /// Starts a run on a node that works on a command until it is stopped.
    async fn start_command(&self, node: usize, session: &str, marker: &ProcessMarker) -> String {
        self.model.script(shell_call(commands::ignores_signals(marker)));
        let run = self.api(node).send_message(session, "work").await;
        marker.wait_for_count(1).await;
        run
    }

    /// Sends a message that is answered with a text, and waits for its end on another node.
    async fn complete_run(&self, node: usize, session: &str) -> String {
        self.model.script(ScriptedResponse::text("an answer"));
        let run = self.api(node).send_message(session, "a question").await;
        assert_eq!(self.api(node).run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
        run
    }

    /// The node that the database names as the owner of a session.
    fn owner(&self, session: &str) -> String {
        self.server.sql(&format!("SELECT name FROM session_nodes JOIN nodes USING (epoch) WHERE session = '{session}'"))
    }
}
