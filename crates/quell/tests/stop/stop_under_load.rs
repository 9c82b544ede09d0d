//! A stop succeeds whatever others do to the daemon's connections, limits or process, and only for those who may stop.

mod connection_floods;
mod process_limits;
mod token_exposure;
mod unix_socket;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use crate::prelude::*;
use crate::test_server::assert_fields;

/// A daemon with a run whose model stays silent in the middle of its answer.
struct EndlessRunDaemon {
    model: ScriptedModel,
    daemon: TestDaemon,
    run: String,
}

impl EndlessRunDaemon {
    async fn start() -> Self {
        Self::start_with_agent("", "").await
    }

    /// Starts a daemon behind this shell line, such as `ulimit -n 256`.
    async fn start_under(first: &str) -> Self {
        Self::start_with_agent(first, "").await
    }

    /// Starts a daemon behind this shell line, whose agent has these further settings.
    async fn start_with_agent(first: &str, agent: &str) -> Self {
        // The tests open more files than the default limit allows.
        quell_server::serve::raise_open_files().unwrap();
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new(&config_toml(&model, agent));
        let wrapper = format!("{first}\nexec '{}' \"$@\"", quell_exe().display());
        let daemon = home.start(&write_shell_program(home.data_dir().join("wrapper"), &wrapper)).await;
        let mut fixture = Self { model, daemon, run: String::new() };
        fixture.run = fixture.start_endless_run().await;
        fixture
    }

    /// Starts a run that does not end by itself; returns its id.
    async fn start_endless_run(&self) -> String {
        let n = self.model.recorded_requests().len();
        self.model.script(ScriptedResponse::silent_mid_stream("Well, "));
        let run = self.daemon.api().send_message("s", "go").await;
        self.model.request_at(n).wait_paused().await;
        run
    }

    /// Checks that the run was stopped and nothing of it is left.
    async fn assert_stopped(&self) {
        let view = self.daemon.api().run_view(&self.run).await;
        assert_fields(&view, &json!({"state": "ended", "verdict": {"kind": "aborted"}, "receipt": {"leftovers": []}}));
        self.model.wait_for_connections(0).await;
    }

    /// Stops the run over HTTP, within the time limit.
    async fn stop_over_http(&self) {
        let _ = self.request_stop().await;
        self.assert_stopped().await;
    }

    /// The answer to a stop of the run over HTTP, within the time limit.
    async fn request_stop(&self) -> Value {
        let http = self.daemon.api();
        tokio::time::timeout(WAIT_TIMEOUT, http.stop_run(&self.run)).await.expect("the stop is answered in time")
    }

    /// Stops all runs with `quell stop`, as a person at a terminal of the same user.
    async fn stop_by_command(&self) {
        let ran = run_cli(self.daemon.home(), &["stop", "--all", "--force"]).await;
        assert!(ran.code == 0 && ran.out.contains("stopped in "), "{ran:?}\n{}", self.daemon.output());
        self.assert_stopped().await;
    }
}

/// Runs a `quell` command with the daemon's home, within the time limit.
async fn run_cli(home: &DaemonHome, arguments: &[&str]) -> QuellCliOutput {
    let mut command = home.command(quell_exe());
    command.args(arguments).stdin(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let ended = tokio::time::timeout(WAIT_TIMEOUT, command.kill_on_drop(true).output()).await;
    let ended = ended.unwrap_or_else(|_| panic!("`quell {}` hangs", arguments.join(" "))).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    QuellCliOutput { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}
