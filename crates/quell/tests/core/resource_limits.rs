//! How much memory and disk clients and models can make the daemon use. Measured from outside: the size of the real
//! binary's process now, compared with its size earlier in the same test.

mod incoming_data;

use quell_testkit::history_check::corpus::ModelDialect;

use crate::prelude::*;
use crate::test_server::assert_fields;

pub(crate) const MB: usize = 1_000_000;

pub(crate) struct LimitsFixture {
    pub(crate) model: ScriptedModel,
    daemon: TestDaemon,
}

impl LimitsFixture {
    async fn start() -> Self {
        Self::start_in(ModelDialect::OpenAi, 120).await
    }

    /// Starts a daemon whose provider speaks this dialect and has this many seconds until an answer begins.
    pub(crate) async fn start_in(dialect: ModelDialect, header_timeout_s: u32) -> Self {
        let model = ScriptedModel::start().await;
        let provider = format!(
            "[providers.scripted]\nkind = \"{}\"\nbase_url = \"{}\"\nmax_retries = 0\nheader_timeout_s = {header_timeout_s}\n",
            dialect.kind(),
            model.base_url()
        );
        let key = "api_key_env = \"SCRIPTED_KEY\"\n";
        let config = format!("{provider}{key}[agents.main]\nmodel = \"scripted/m\"\n");
        let home = DaemonHome::new(&config).with_env("SCRIPTED_KEY", "sk-test");
        let daemon = home.start(quell_exe()).await;
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
    pub(crate) fn resident_bytes(&self) -> usize {
        self.status_bytes("VmRSS:")
    }

    /// The largest resident memory of the daemon so far.
    pub(crate) fn peak_resident_bytes(&self) -> usize {
        self.status_bytes("VmHWM:")
    }

    /// Asserts that the daemon has not grown by this many megabytes since `before`.
    pub(crate) fn assert_grown_less(&self, before: usize, megabytes: usize, what: &str) {
        let grown = self.peak_resident_bytes().saturating_sub(before);
        assert!(grown < megabytes * MB, "{} MB more; {what}", grown / MB);
    }

    /// Runs a message that must fail with this text; the next message is answered.
    pub(crate) async fn assert_fails_alone(&self, message: &str) {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_in_a_message_fail_and_start_nothing() {
    let fixture = LimitsFixture::start().await;
    let call = json!({"command": "touch proof"});
    let stream = (0..10_000).fold(ScriptedStream::new(), |stream, n| stream.tool_call(format!("c{n}"), "shell", &call));
    fixture.model.script(stream);
    let before = fixture.resident_bytes();
    fixture.assert_fails_alone("more than 128 tool calls").await;
    fixture.assert_grown_less(before, 200, "10,000 calls");
    assert!(fixture.daemon.home().data_dir().ancestors().all(|folder| !folder.join("proof").exists()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_of_arguments_fail_the_run() {
    let fixture = LimitsFixture::start().await;
    let before = fixture.resident_bytes();
    let whole = json!({"path": "large", "content": "x".repeat(10 * MB)});
    fixture.model.script(ScriptedStream::new().tool_call("c1", "write_file", &whole).split_arguments(60_000));
    fixture.assert_fails_alone("bytes of arguments").await;
    fixture.assert_grown_less(before, 200, "10 MB of arguments");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_collects_too_much_ends_and_keeps_what_it_did() {
    let fixture = LimitsFixture::start().await;
    let (before, stored) = (fixture.resident_bytes(), fixture.database_bytes());
    // A message holds at most 4 MiB of arguments, a turn 16 MiB.
    for step in 0..15 {
        let stream = (0..4).fold(ScriptedStream::new(), |stream, call| {
            let arguments = json!({"path": format!("file-{step}-{call}"), "content": "x".repeat(900 * 1000)});
            stream.tool_call(format!("c{step}-{call}"), "write_file", &arguments)
        });
        fixture.model.script(stream.split_arguments(60_000));
    }
    let verdict = fixture.run_to_verdict("s").await;
    assert_eq!((&verdict["kind"], &verdict["code"]), (&json!("failed"), &json!("turn_too_large")), "{verdict}");
    let steps = fixture.model.recorded_requests().len();
    assert!((4..8).contains(&steps), "{steps} steps");
    fixture.assert_grown_less(before, 400, "60 long calls");
    let stored = fixture.database_bytes().saturating_sub(stored);
    assert!(stored < 100_000_000, "{stored} bytes in the database");
}
