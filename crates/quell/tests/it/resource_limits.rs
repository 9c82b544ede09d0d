//! How much memory and disk clients and models can make the daemon use. Measured from outside: the size of the real
//! binary's process now, compared with its size earlier in the same test.

mod incoming_data;
mod run_size;

use crate::prelude::*;

/// A million bytes.
const MB: usize = 1_000_000;

struct LimitsFixture {
    model: ScriptedModel,
    daemon: TestDaemon,
}

impl LimitsFixture {
    async fn start() -> Self {
        let (model, daemon) = start_daemon("").await;
        Self { model, daemon }
    }

    /// A token with the scope `read`.
    async fn create_read_token(&self) -> String {
        let made = self.daemon.api().post("/api/tokens", &json!({"name": "reader", "scope": "read"})).await;
        made.expect_status(201)["token"].as_str().unwrap().to_owned()
    }

    /// Starts a run and reads its events to the end; returns its verdict.
    async fn run_to_verdict(&self, session: &str) -> Value {
        let http = self.daemon.api();
        let run = http.send_message(session, "go").await;
        let log = http.run_events(&run, 0).await.read_to_end().await;
        log.receipt()["verdict"].clone()
    }

    /// The resident memory of the daemon now.
    fn resident_bytes(&self) -> usize {
        self.status_bytes("VmRSS:")
    }

    /// The largest resident memory of the daemon so far.
    fn peak_resident_bytes(&self) -> usize {
        self.status_bytes("VmHWM:")
    }

    /// Asserts that the daemon has not grown by this many megabytes since `before`.
    fn assert_grown_less(&self, before: usize, megabytes: usize, what: &str) {
        let grown = self.peak_resident_bytes().saturating_sub(before);
        assert!(grown < megabytes * MB, "{} MB more; {what}", grown / MB);
    }

    /// Runs a message that must fail with this text; the next message is answered.
    async fn assert_fails_alone(&self, message: &str) {
        let verdict = self.run_to_verdict("s").await;
        assert_eq!(verdict["kind"], "failed", "{verdict}");
        assert!(verdict["message"].as_str().unwrap().contains(message), "{verdict}");
        self.model.script(ScriptedResponse::text("Here again."));
        assert_eq!(self.run_to_verdict("s").await["kind"], "completed");
        self.model.assert_histories_valid();
    }

    fn status_bytes(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    /// Bytes of the database and its write-ahead log.
    fn database_bytes(&self) -> u64 {
        let length =
            |name: &str| std::fs::metadata(self.daemon.home().data_dir().join(name)).map_or(0, |file| file.len());
        length("quell.db") + length("quell.db-wal")
    }
}
