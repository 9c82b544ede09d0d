//! How much memory and disk others can make the daemon use. Measured from outside: what the system says that the real binary
//! takes, against what it took before in the same test.

mod doors;
mod runs;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use serde_json::json;

use crate::cli::exe;

/// A million bytes.
const MB: usize = 1_000_000;

/// A daemon with a scripted model.
struct Site {
    model: ScriptedModel,
    daemon: Daemon,
}

impl Site {
    async fn open() -> Self {
        let model = ScriptedModel::start().await;
        let config = format!(
            "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n\
             [agents.main]\nmodel = \"scripted/m\"\n",
            model.base_url()
        );
        let daemon = Home::new(&config).start(exe()).await;
        Self { model, daemon }
    }

    /// A token that may only look.
    async fn reader(&self) -> String {
        let made = self.daemon.http().post("/api/tokens", &json!({"name": "reader", "scope": "read"})).await;
        made.expect_status(201)["token"].as_str().unwrap().to_owned()
    }

    /// Starts a run and waits for its last event; answers its verdict.
    async fn verdict(&self, session: &str) -> serde_json::Value {
        let http = self.daemon.http();
        let sent = http.post(&format!("/api/sessions/{session}/runs"), &json!({"text": "go"})).await.expect_status(202);
        let run = sent["runId"].as_str().unwrap().to_owned();
        let log = http.events(&run, 0).await.to_end().await;
        log.receipt()["verdict"].clone()
    }

    /// What the daemon has in memory now.
    fn resident(&self) -> usize {
        self.status("VmRSS:")
    }

    /// The most that it ever had.
    fn peak(&self) -> usize {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    /// Bytes of the database and its log.
    fn database(&self) -> u64 {
        let length = |name: &str| std::fs::metadata(self.daemon.home().data().join(name)).map_or(0, |file| file.len());
        length("quell.db") + length("quell.db-wal")
    }
}
