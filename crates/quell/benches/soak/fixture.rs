//! The daemon under test with its model server and configuration.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quell_testkit::daemon::{DaemonHome, TestApiClient, TestApiResponse, TestDaemon};
use quell_testkit::mcp;
use quell_testkit::nats::TestNats;
use quell_testkit::postgres::TestPostgres;
use serde_json::{Value, json};

use crate::marker_scan::MarkerScanner;
use crate::model::SoakModel;
use crate::plan::SoakDialect;
use crate::results::SoakResults;
use crate::scenes::zombie_leader_program;

/// Log lines that are shown with a fault.
const MAX_LOG_LINES: usize = 12;

/// Shared by all rounds and audits.
pub(crate) struct SoakFixture {
    /// Several for a cluster, else one. Requests go to them in turn.
    pub(crate) daemons: Vec<TestDaemon>,
    clients: Vec<TestApiClient>,
    next_daemon: AtomicUsize,
    /// The servers of a cluster.
    servers: Option<(TestPostgres, TestNats)>,
    pub(crate) model: SoakModel,
    pub(crate) markers: MarkerScanner,
    pub(crate) results: SoakResults,
    pub(crate) started_at: Instant,
}

impl SoakFixture {
    /// # Panics
    /// If several nodes are wanted, and PostgreSQL or NATS is switched off for the tests.
    pub(crate) async fn start(nodes: usize) -> Self {
        let model = SoakModel::start().await;
        let servers = (nodes > 1)
            .then(|| TestPostgres::start().zip(TestNats::start()).expect("a cluster needs PostgreSQL and NATS"));
        let mut daemons = Vec::new();
        for node in 0..nodes {
            let cluster = servers.as_ref().map(|servers| cluster_config(servers, node)).unwrap_or_default();
            let home = DaemonHome::new(&format!("{cluster}{}", config(&model.server.base_url())))
                .with_env("SOAK_KEY", "sk-soak")
                .with_env("SOAK_NATS_PASSWORD", TestNats::PASSWORD);
            let secret = home.root_dir().join("secret");
            std::fs::write(secret, "a secret of this cluster, which is for the soak only\n")
                .expect("a file for the secret");
            daemons.push(home.start(Path::new(env!("CARGO_BIN_EXE_quell"))).await);
        }
        Self {
            clients: daemons.iter().map(TestDaemon::api).collect(),
            daemons,
            next_daemon: AtomicUsize::new(0),
            servers,
            model,
            markers: MarkerScanner::default(),
            results: SoakResults::default(),
            started_at: Instant::now(),
        }
    }

    /// The next daemon in turn.
    pub(crate) fn daemon(&self) -> &TestDaemon {
        &self.daemons[self.next_index()]
    }

    /// The client of the next daemon in turn.
    pub(crate) fn http(&self) -> &TestApiClient {
        &self.clients[self.next_index()]
    }

    fn next_index(&self) -> usize {
        self.next_daemon.fetch_add(1, Ordering::Relaxed) % self.daemons.len()
    }

    /// True if one of the daemons has ended.
    pub(crate) fn has_exited(&self) -> bool {
        self.daemons.iter().any(TestDaemon::has_exited)
    }

    /// Stops a session and waits for the end, to clean up after a round.
    pub(crate) async fn stop_session(&self, session: &str) -> Vec<String> {
        let answer = self.http().post(&format!("/api/sessions/{session}/stop?wait=1"), &json!({})).await;
        self.results.add_stop_answer(&format!("clean-up of {session}"), &answer.body);
        run_ids(&self.expect_status(&answer, 200, "a stop of a session"))
    }

    /// Returns the last lines of the daemon's log that contain one of these names.
    pub(crate) fn log_lines_of(&self, names: &[&str]) -> String {
        let log: String = self.daemons.iter().map(TestDaemon::output).collect();
        let lines = log.lines().rev().filter(|line| names.iter().any(|name| line.contains(name)));
        lines.take(MAX_LOG_LINES).collect::<Vec<_>>().join("\n")
    }

    /// Returns what the daemons and the database server have warned of, each text with its count.
    pub(crate) fn warnings(&self) -> BTreeMap<String, usize> {
        let mut warnings = BTreeMap::new();
        let mut count = |line: &str| *warnings.entry(line.to_owned()).or_default() += 1;
        for output in self.daemons.iter().map(TestDaemon::output) {
            // Without the time.
            let texts = output.lines().filter_map(|line| line.split_once(' ')).map(|(_, text)| text.trim_start());
            texts.filter(|text| text.starts_with("WARN") || text.starts_with("ERROR")).for_each(&mut count);
        }
        let log = self.servers.as_ref().map(|(server, _)| server.log()).unwrap_or_default();
        log.lines().filter(|line| !line.contains("LOG:")).for_each(&mut count);
        warnings
    }

    /// Returns the body of an answer; a status other than this one is a fault.
    pub(crate) fn expect_status(&self, answer: &TestApiResponse, status: u16, what: &str) -> Value {
        if answer.status != status {
            self.results.add_fault(
                crate::results::FaultKind::UnexpectedAnswer,
                what,
                format!("{}: {:#}", answer.status, answer.body),
            );
        }
        answer.body.clone()
    }

    /// Returns all metrics of all daemons with their labels and values.
    pub(crate) async fn gauges(&self) -> Vec<(String, f64)> {
        let mut gauges = Vec::new();
        for client in &self.clients {
            let text = client.get("/metrics").await.body;
            let lines = text.as_str().unwrap_or_default().lines().filter(|line| !line.starts_with('#'));
            let values = lines.filter_map(|line| line.rsplit_once(' '));
            gauges.extend(values.filter_map(|(n, v)| Some((n.to_owned(), v.parse().ok()?))));
        }
        gauges
    }
}

/// The sections of a node.
fn cluster_config((postgres, nats): &(TestPostgres, TestNats), node: usize) -> String {
    let (store, bus, user, password) = (postgres.url(), nats.url(), TestNats::USER, "SOAK_NATS_PASSWORD");
    format!(
        "[store]\nurl = \"{store}\"\n[cluster]\nnode = \"node-{node}\"\nsecret_file = \"secret\"\n\
         nats_urls = [\"{bus}\"]\nnats_user = \"{user}\"\nnats_password_env = \"{password}\"\n"
    )
}

/// Returns the run ids in the answer to a stop.
pub(crate) fn run_ids(answer: &Value) -> Vec<String> {
    let ids = answer["runIds"].as_array().map_or(&[][..], Vec::as_slice);
    ids.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Polls until `probe` succeeds, for at most `limit`. Then returns its last error. Polls because neither the system
/// nor the daemon reports when the last process or connection is gone.
pub(crate) async fn poll_until<F: Future<Output = Result<(), String>>>(
    limit: Duration,
    mut probe: impl FnMut() -> F,
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match probe().await {
            Ok(()) => return Ok(()),
            Err(why) if begun.elapsed() > limit => return Err(why),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Two providers on one server, and the same agents for each dialect.
fn config(base_url: &str) -> String {
    // Sessions expire all the time, so that stops also meet their clean-up and revival, and none is left at the end.
    let mut text =
        "[server]\nrequests_per_minute = 0\n[limits]\nin_flight_runs = 64\n[sessions]\nidle_s = 2\nsweep_s = 1\n[approvals]\nby_own_principal = true\n"
            .to_owned();
    for dialect in SoakDialect::ALL {
        let kind = dialect.kind();
        text += &format!("[providers.{kind}]\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\n");
        text += "api_key_env = \"SOAK_KEY\"\n";
    }
    // Unused servers end at once, so that they are gone when descriptors and processes are counted.
    let script = json!(mcp::SERVER_SCRIPT);
    text += &format!("[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\ngrace_ms = 200\nidle_s = 1\n");
    for dialect in SoakDialect::ALL {
        for role in ["main", "scout", "asking", "small", "tools"] {
            text += &format!("[agents.{}]\nmodel = \"{}/m\"\n", dialect.agent_id(role), dialect.kind());
            // It lies in /tmp, which sandboxes hide.
            text += &format!("readable = [{:?}]\n", zombie_leader_program());
            if role != "tools" {
                text += "mcp = []\n";
            }
            if role == "scout" {
                text += &format!("parent = \"{}\"\n", dialect.agent_id("main"));
            }
            text += match role {
                "asking" => "approvals.shell = \"ask\"\n",
                "small" => "window_tokens = 400\n",
                _ => "",
            };
            if dialect == SoakDialect::Anthropic {
                text += "partial = \"keep\"\nmax_tokens = 4096\nthinking_tokens = 1024\n";
                // Half of the commands run in a namespace, half under their wardens alone.
                text += "isolate = \"none\"\n";
            }
        }
    }
    text
}
