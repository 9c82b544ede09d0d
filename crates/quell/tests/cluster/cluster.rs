//! Several nodes of the built program on one PostgreSQL database.

mod clocks;
mod cut_off;
mod database_failures;
mod dead_nodes;
mod file_undo;
mod nodes;
mod operations;
mod partitions;
mod random_kills;
mod schedules;
mod singletons;

use quell_testkit::nats::TestNats;
use quell_testkit::postgres::TestPostgres;

use crate::prelude::*;

/// Milliseconds; the default is 10,000. The database has a fifth of it for each renewal, also on a busy disk.
const LEASE_MS: u64 = 4000;
const LEASE: Duration = Duration::from_millis(LEASE_MS);
/// Nodes `node-0`, `node-1`, ... on one database, with one scripted model.
struct TestCluster {
    server: TestPostgres,
    nats: Option<TestNats>,
    model: ScriptedModel,
    more: &'static str,
    lease_ms: u64,
    homes: Vec<NodeHome>,
    nodes: Vec<TestDaemon>,
}

/// The directories of a node, its name, and the program that it executes.
struct NodeHome {
    node: String,
    home: DaemonHome,
    program: PathBuf,
}

impl std::ops::Deref for NodeHome {
    type Target = DaemonHome;

    fn deref(&self) -> &DaemonHome {
        &self.home
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.homes.iter().for_each(|home| eprintln!("{}:\n{}", home.node, log_of(home)));
        }
    }
}

fn log_of(home: &DaemonHome) -> String {
    std::fs::read_to_string(home.log_file()).unwrap_or_default()
}

/// How the letters of the nodes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bus {
    Database,
    Nats,
}

impl TestCluster {
    /// `None` if a server that it needs is switched off for the tests.
    async fn start(count: usize, bus: Bus) -> Option<Self> {
        Self::start_with(count, bus, "").await
    }

    /// `more` continues the section of the agent.
    async fn start_with(count: usize, bus: Bus, more: &'static str) -> Option<Self> {
        Self::start_in(count, bus, more, "", &[]).await
    }

    /// With more sections of the configuration, and variables of the environment.
    async fn start_in(
        count: usize,
        bus: Bus,
        more: &'static str,
        sections: &str,
        variables: &[(&str, &str)],
    ) -> Option<Self> {
        let mut cluster = Self::without_nodes(TestPostgres::start()?, bus, more).await?;
        for _ in 0..count {
            cluster.start_node(sections, variables).await;
        }
        if bus == Bus::Nats {
            cluster.wait_for_bus().await;
        }
        Some(cluster)
    }

    async fn without_nodes(server: TestPostgres, bus: Bus, more: &'static str) -> Option<Self> {
        let nats = match bus {
            Bus::Nats => Some(TestNats::start()?),
            Bus::Database => None,
        };
        let model = ScriptedModel::start().await;
        Some(Self { server, nats, model, more, lease_ms: LEASE_MS, homes: Vec::new(), nodes: Vec::new() })
    }

    async fn start_node(&mut self, sections: &str, variables: &[(&str, &str)]) {
        let home = self.new_home(sections, variables);
        self.nodes.push(home.start(quell_exe()).await);
        self.add_home(home, quell_exe().to_owned());
    }

    /// Starts a node by a script, which executes `"$@"` at its end.
    async fn start_node_by(&mut self, script: &str, address: &str) {
        let home = self.new_home("", &[]);
        let script = format!("set -- '{}' \"$@\"\n{script}", quell_exe().display());
        let program = write_shell_program(home.root_dir().join("start"), &script);
        self.nodes.push(home.start_on(&program, address).await);
        self.add_home(home, program);
    }

    /// The directories of the next node.
    fn new_home(&self, sections: &str, variables: &[(&str, &str)]) -> DaemonHome {
        let home = DaemonHome::new(&format!("{}{sections}", self.node_config(self.homes.len())));
        let home = variables.iter().fold(home, |home, (name, value)| home.with_env(name, value));
        let secret = "a secret of this cluster, which is for tests only\n";
        std::fs::write(home.root_dir().join("secret"), secret).unwrap();
        std::fs::write(home.root_dir().join("nats"), TestNats::PASSWORD).unwrap();
        home
    }

    fn add_home(&mut self, home: DaemonHome, program: PathBuf) {
        self.homes.push(NodeHome { node: format!("node-{}", self.homes.len()), home, program });
    }

    fn node_config(&self, number: usize) -> String {
        let nats = self.nats.as_ref().map(|nats| {
            let (url, user) = (nats.url(), TestNats::USER);
            format!("nats_urls = [\"{url}\"]\nnats_user = \"{user}\"\nnats_password_file = \"nats\"\n")
        });
        let lease_ms = self.lease_ms;
        format!(
            "[store]\nurl = \"{}\"\n[cluster]\nnode = \"node-{number}\"\nlease_ms = {lease_ms}\nsecret_file = \"secret\"\n{}{}",
            self.server.url(),
            nats.unwrap_or_default(),
            config_toml(&self.model, self.more)
        )
    }

    /// Waits until each node has told the others that it is connected to the message bus, and they have read it.
    async fn wait_for_bus(&self) {
        let all = self.nodes.len().to_string();
        self.wait_for_nodes("report LIKE '%\"on_bus\":true%'", &all).await;
        let now = self.server.sql("SELECT clock_timestamp()");
        self.wait_for_nodes(&format!("renewed_at > '{now}'"), &all).await;
    }

    async fn wait_for_nodes(&self, condition: &str, count: &str) {
        let sql = format!("SELECT count(*) FROM nodes WHERE {condition}");
        poll_until(condition, async || (self.server.sql(&sql) == count).then_some(())).await;
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

    /// Runs a subcommand of the client against a node.
    async fn quell(&self, node: usize, words: &[&str]) -> std::process::Output {
        let mut command = tokio::process::Command::from(self.homes[node].command(&self.homes[node].program));
        let ended = command.args(words).kill_on_drop(true).output();
        tokio::time::timeout(WAIT_TIMEOUT, ended).await.expect("the subcommand ends").unwrap()
    }

    /// Waits until no stop is stored any more; a node may forget one after the caller has its answer.
    async fn wait_stops_forgotten(&self) {
        poll_until("no stop is stored", async || {
            (self.server.sql("SELECT count(*) FROM node_stops") == "0").then_some(())
        })
        .await;
    }

    /// The node that the database names as the owner of a session.
    fn owner(&self, session: &str) -> String {
        self.server.sql(&format!("SELECT name FROM session_nodes JOIN nodes USING (epoch) WHERE session = '{session}'"))
    }
}
