//! Test support: OpenClaw's own command, unmodified, with a Node of its own, and a daemon for it.

use quell_test_support::npm_packages::{self, NpmPackages};
use quell_testkit::pty::{Pty, PtySize};
use tempfile::TempDir;
use tokio::process::Command;

use crate::prelude::*;

/// OpenClaw needs Node 24.16 or later; that of the machine may be older.
const PACKAGES: NpmPackages = NpmPackages {
    name: "openclaw-clients",
    files: &[
        ("package.json", include_str!("clients/package.json")),
        ("package-lock.json", include_str!("clients/package-lock.json")),
    ],
};

/// Longest time of one command, which starts a Node. It decides only how late a failing test fails.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(180);

const SCREEN: PtySize = PtySize { rows: 40, columns: 120 };

/// A daemon in front of a scripted model, and OpenClaw's command with a home of its own.
pub(super) struct OpenClawFixture {
    pub(super) model: ScriptedModel,
    pub(super) daemon: TestDaemon,
    pub(super) http: TestApiClient,
    packages: PathBuf,
    state_dir: TempDir,
}

impl OpenClawFixture {
    /// `None` when tests that need Node are switched off.
    pub(super) async fn start(agent: &str) -> Option<Self> {
        Self::start_with(agent, "").await
    }

    /// Starts with more lines of the agent `main`, and more tables.
    pub(super) async fn start_with(agent: &str, tables: &str) -> Option<Self> {
        if npm_packages::is_skipped() {
            return None;
        }
        let packages = npm_packages::install_packages(&PACKAGES).await;
        let model = ScriptedModel::start().await;
        let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, &format!("{agent}\n{tables}"))).await;
        let http = daemon.api();
        let state_dir = TempDir::with_prefix("quell-openclaw-").unwrap();
        let remote = json!({"url": web_socket_url(&daemon), "token": daemon.token()});
        let config = json!({"gateway": {"mode": "remote", "remote": remote}});
        std::fs::write(state_dir.path().join("openclaw.json"), config.to_string()).unwrap();
        Some(Self { model, daemon, http, packages, state_dir })
    }

    pub(super) fn package_file(&self, path: &str) -> PathBuf {
        self.packages.join("node_modules").join(path)
    }

    /// OpenClaw's command; its settings name the daemon.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let node = format!("node-linux-{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" });
        let modules = self.packages.join("node_modules");
        let mut command = npm_packages::program_command(modules.join(node).join("bin/node").to_str().unwrap());
        command.arg(modules.join("openclaw/openclaw.mjs")).args(args);
        command.env("HOME", self.state_dir.path()).env("OPENCLAW_STATE_DIR", self.state_dir.path());
        command
    }

    /// Runs a command to its end; returns its standard output.
    pub(super) async fn run(&self, args: &[&str]) -> String {
        let done = tokio::time::timeout(CLIENT_TIMEOUT, self.command(args).output()).await;
        let done = done.unwrap_or_else(|_| panic!("{args:?} did not end")).unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{args:?}: {out}\n{err}");
        out.into_owned()
    }

    /// Opens the terminal client, and waits until it is connected.
    pub(super) async fn open_terminal(&self) -> Pty {
        let (url, token) = (web_socket_url(&self.daemon), self.daemon.token());
        let mut command = self.command(&["tui", "--url", &url, "--token", token]);
        command.env("TERM", "xterm-256color");
        let terminal = Pty::start(command.as_std(), SCREEN);
        terminal.wait_text("connected | idle").await;
        terminal
    }

    /// The newest run, once it has ended.
    pub(super) async fn wait_newest_run_ended(&self) -> Value {
        poll_until("the newest run has ended", async || {
            let runs = self.http.get("/api/runs").await.expect_status(200);
            runs["items"].as_array().unwrap().first().filter(|run| run["state"] == "ended").cloned()
        })
        .await
    }
}

pub(super) fn web_socket_url(daemon: &TestDaemon) -> String {
    format!("ws://{}/ws", daemon.address())
}

/// Types a line, waits until the program shows it, and enters it.
pub(super) async fn enter_line(terminal: &mut Pty, line: &str) {
    terminal.type_keys(line);
    terminal.wait_text(line).await;
    terminal.type_keys("\r");
}

/// Asserts that a run was stopped and left nothing.
pub(super) fn assert_stopped_cleanly(run: &Value) {
    assert_eq!(run["verdict"]["kind"], "aborted", "{run:#}");
    assert_eq!(run["receipt"]["leftovers"], json!([]), "{run:#}");
}
