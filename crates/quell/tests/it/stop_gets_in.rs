//! A stop gets in: whatever others do to the daemon's connections, its limits or its process, and from nobody who may not.

mod crowds;
mod limits;
mod proof;
mod socket;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::Behaviour;
use serde_json::json;

use crate::cli::{Ran, exe};
use crate::harness::PATIENCE;

/// A daemon with a run whose model talks without end.
struct Site {
    model: ScriptedModel,
    daemon: Daemon,
    run: String,
}

impl Site {
    async fn open() -> Self {
        Self::under("").await
    }

    /// A daemon that is started behind this line of a shell.
    async fn under(first: &str) -> Self {
        // Tests open more than a daemon lets them.
        quell_surfaces::serve::raise_open_files().unwrap();
        let model = ScriptedModel::start().await;
        let home = Home::new(&config(&model));
        let daemon = home.start(&wrapper(&home, first)).await;
        let mut site = Self { model, daemon, run: String::new() };
        site.run = site.begin().await;
        site
    }

    /// Begins a run that does not end by itself.
    async fn begin(&self) -> String {
        let n = self.model.seen().len();
        self.model.script(Behaviour::silent_mid_stream("Well, "));
        let taken = self.daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await.expect_status(202);
        self.model.request(n).resting().await;
        taken["runId"].as_str().unwrap().to_owned()
    }

    /// The run was stopped, and nothing of it is left.
    async fn assert_stopped(&self) {
        let view = self.daemon.http().get(&format!("/api/runs/{}", self.run)).await.expect_status(200);
        assert_eq!((&view["state"], &view["verdict"]["kind"]), (&json!("ended"), &json!("aborted")), "{view:#}");
        assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
        self.model.connections(0).await;
    }

    /// Stops over HTTP; fails when that takes for ever.
    async fn stop_over_http(&self) {
        let path = format!("/api/runs/{}/stop?wait=1", self.run);
        let http = self.daemon.http();
        let stopped = tokio::time::timeout(PATIENCE, http.post(&path, &json!({}))).await;
        let _ = stopped.expect("the stop gets in").expect_status(200);
        self.assert_stopped().await;
    }

    /// Stops as a person at a terminal of the same user.
    async fn stop_by_command(&self) {
        let ran = verb(self.daemon.home(), &["stop", "--all", "--force"]).await;
        assert!(ran.code == 0 && ran.out.contains("stopped in "), "{ran:?}\n{}", self.daemon.output());
        self.assert_stopped().await;
    }
}

fn config(model: &ScriptedModel) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    )
}

/// The binary behind a line of a shell.
fn wrapper(home: &Home, first: &str) -> PathBuf {
    let path = home.data().join("wrapper");
    std::fs::write(&path, format!("#!/bin/sh\n{first}\nexec '{}' \"$@\"\n", exe().display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A verb of the daemon's home, which ends in time.
async fn verb(home: &Home, words: &[&str]) -> Ran {
    let mut command = home.command(exe());
    command.args(words).stdin(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let ended = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await;
    let ended = ended.unwrap_or_else(|_| panic!("`quell {}` hangs", words.join(" "))).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}
