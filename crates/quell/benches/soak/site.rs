//! The daemon under test with everything around it.

use std::path::Path;
use std::time::{Duration, Instant};

use quell_testkit::daemon::{Answer, Api, Daemon, Home};
use quell_testkit::mcp;
use serde_json::{Value, json};

use crate::marks::Marks;
use crate::model::ModelProcess;
use crate::plan::Dialect;
use crate::tally::Tally;

/// Lines of the log that explain a fault.
const SAID: usize = 12;

/// Everything that rounds and audits share.
pub(crate) struct Site {
    pub(crate) daemon: Daemon,
    pub(crate) http: Api,
    pub(crate) model: ModelProcess,
    pub(crate) marks: Marks,
    pub(crate) tally: Tally,
    pub(crate) begun: Instant,
}

impl Site {
    pub(crate) async fn open() -> Self {
        let model = ModelProcess::start().await;
        let home = Home::new(&config(&model.base_url)).env("SOAK_KEY", "sk-soak");
        let daemon = home.start(Path::new(env!("CARGO_BIN_EXE_quell"))).await;
        let http = daemon.http();
        Self { daemon, http, model, marks: Marks::watch(), tally: Tally::default(), begun: Instant::now() }
    }

    /// Stops a session and waits for it: what a round does to tidy up behind itself.
    pub(crate) async fn stop_session(&self, session: &str) -> Vec<String> {
        let answer = self.http.post(&format!("/api/sessions/{session}/stop?wait=1"), &json!({})).await;
        run_ids(&self.expect(&answer, 200, "a stop of a session"))
    }

    /// The last that the daemon's log says of one of these.
    pub(crate) fn said_of(&self, names: &[&str]) -> String {
        let log = self.daemon.output();
        let lines = log.lines().rev().filter(|line| names.iter().any(|name| line.contains(name)));
        lines.take(SAID).collect::<Vec<_>>().join("\n")
    }

    /// The body of an answer that should have this status; any other is a fault.
    pub(crate) fn expect(&self, answer: &Answer, status: u16, what: &str) -> Value {
        if answer.status != status {
            self.tally.fault(crate::tally::Fault::Answer, what, format!("{}: {:#}", answer.status, answer.body));
        }
        answer.body.clone()
    }

    /// The value of a gauge in `/metrics`, summed over its labels.
    pub(crate) async fn gauges(&self) -> Vec<(String, f64)> {
        let text = self.http.get("/metrics").await.body;
        let lines = text.as_str().unwrap_or_default().lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .filter_map(|(n, v)| Some((n.to_owned(), v.parse().ok()?)))
            .collect()
    }
}

/// The ids in the answer to a stop.
pub(crate) fn run_ids(answer: &Value) -> Vec<String> {
    let ids = answer["runIds"].as_array().map_or(&[][..], Vec::as_slice);
    ids.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Looks until `probe` is content, for as long as `limit`; answers what it said last when it never was. Neither the system nor
/// the daemon has an event for the last of something being gone.
pub(crate) async fn settled<F: Future<Output = Result<(), String>>>(
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

/// Two providers over one server, and for each dialect the same agents.
fn config(base_url: &str) -> String {
    // Sessions expire all the time, so that they are cleaned up and revived under stops, too, and none may stay at the end.
    let mut text = "[limits]\nin_flight_runs = 64\n[sessions]\nidle_s = 2\nsweep_s = 1\n".to_owned();
    for dialect in Dialect::ALL {
        let kind = dialect.kind();
        text += &format!("[providers.{kind}]\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\n");
        text += "api_key_env = \"SOAK_KEY\"\n";
    }
    // Unused servers go at once, so that they are gone when everything is counted.
    let script = json!(mcp::SERVER);
    text += &format!("[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\ngrace_ms = 200\nidle_s = 1\n");
    for dialect in Dialect::ALL {
        for role in ["main", "scout", "asking", "small", "tools"] {
            text += &format!("[agents.{}]\nmodel = \"{}/m\"\n", dialect.agent(role), dialect.kind());
            if role != "tools" {
                text += "mcp = []\n";
            }
            if role == "scout" {
                text += &format!("parent = \"{}\"\n", dialect.agent("main"));
            }
            text += match role {
                "asking" => "approvals.shell = \"ask\"\n",
                "small" => "window_tokens = 400\n",
                _ => "",
            };
            if dialect == Dialect::Anthropic {
                text += "partial = \"keep\"\nmax_tokens = 4096\nthinking_tokens = 1024\n";
                // Half of the commands are held by a namespace, half by their wardens alone.
                text += "isolate = \"none\"\n";
            }
        }
    }
    text
}
