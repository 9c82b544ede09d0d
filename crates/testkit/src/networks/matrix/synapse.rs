//! The Synapse process, its configuration and its data.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MISSING_SYNAPSE_HELP, MatrixTestUser};
use crate::daemon::http_client;
use crate::external_server::free_port;
use crate::or_fail::OrFail as _;

/// Longest wait for the server to be ready. It decides only how late a failing test fails.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often it is started until its chosen port is still free.
const START_ATTEMPTS: u32 = 5;

/// Server part of every user id.
pub(super) const SERVER_NAME: &str = "quell.test";

/// Runs the server and exits when its input ends, so that nothing is left over even if the test is killed.
const LAUNCH_SCRIPT: &str = "
import os, sys, threading
def leave_with_the_test():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=leave_with_the_test, daemon=True).start()
from synapse.app.homeserver import main
main()
";

/// A homeserver. Dropping it kills it and removes its data.
#[derive(Debug)]
pub struct Synapse {
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl Synapse {
    /// Starts a homeserver on a free port, without accounts and rooms.
    ///
    /// # Cancel safety
    /// If dropped, the started server is killed.
    ///
    /// # Panics
    /// When Synapse is not installed or does not become ready, with its output.
    pub async fn start() -> Self {
        let mut last = String::new();
        for _ in 0..START_ATTEMPTS {
            let mut server = Self::prepare();
            match server.start_process().await {
                Ok(()) => return server,
                Err(output) => last = output,
            }
        }
        panic!("Synapse did not start\n{last}");
    }

    /// Such as `http://127.0.0.1:40000`.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Registers a new account and logs in.
    pub async fn register_user(&self, name: &str) -> MatrixTestUser {
        MatrixTestUser::register(&self.base_url(), name).await
    }

    /// Kills it: connections break in the middle, and nothing listens on its port.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it if it runs, and starts it again on the same port with the same data.
    ///
    /// # Cancel safety
    /// If dropped, the server is down or starting; another call makes it ready.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_process().await.unwrap_or_else(|output| panic!("Synapse did not start again\n{output}"));
    }

    /// Its output since the last start.
    fn output(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("output.log")
    }

    /// A directory with the configuration, for a port that is free now.
    fn prepare() -> Self {
        let port = free_port();
        let folder = TempDir::with_prefix("quell-synapse-").or_fail("no folder for a homeserver");
        // YAML is a superset of JSON.
        let config = homeserver_config(folder.path(), port).to_string();
        fs::write(folder.path().join("homeserver.yaml"), config).or_fail("no configuration for a homeserver");
        Self { folder, port, child: None }
    }

    /// Starts it and waits until it is ready; on failure returns its output.
    async fn start_process(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        self.child = Some(spawn(self.folder.path(), &self.log()));
        let (client, url) = (http_client(), format!("{}/_matrix/client/versions", self.base_url()));
        while !client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
            let has_ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended || begin.elapsed() > START_TIMEOUT {
                return Err(self.output());
            }
            // Readiness sends no event; poll it as a load balancer does.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Another process that has taken the port meanwhile may answer too; then this one has ended or will end.
        let is_own = self.output().contains(&format!("now listening on TCP port {}", self.port));
        if is_own { Ok(()) } else { Err(self.output()) }
    }
}

impl Drop for Synapse {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &Path, log: &Path) -> Child {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/synapse/bin/python");
    assert!(python.exists(), "{MISSING_SYNAPSE_HELP}");
    let output = File::create(log).or_fail("no log for Synapse");
    #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
    let mut command = std::process::Command::new(python);
    command.args(["-c", LAUNCH_SCRIPT, "--config-path", "homeserver.yaml"]).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(output);
    command.spawn().or_fail("Synapse cannot be started")
}

/// As little work as possible, no rate limits, no federation.
fn homeserver_config(folder: &Path, port: u16) -> Value {
    let unlimited = json!({"per_second": 100_000, "burst_count": 100_000});
    json!({
        "server_name": SERVER_NAME,
        "listeners": [{
            "port": port, "bind_addresses": ["127.0.0.1"], "type": "http", "tls": false,
            "resources": [{"names": ["client"]}],
        }],
        "database": {"name": "sqlite3", "args": {"database": folder.join("homeserver.db")}},
        "media_store_path": folder.join("media"),
        "pid_file": folder.join("pid"),
        // Signs only what no other server sees.
        "signing_key": "ed25519 a_test 7qmWs2yHaUQvpYcVGTCOFCyhqSwbkFRkLMcKrZk5Nd8",
        "macaroon_secret_key": "only for tests",
        "form_secret": "only for tests",
        "trusted_key_servers": [],
        "federation_domain_whitelist": [],
        "report_stats": false,
        "enable_registration": true,
        "enable_registration_without_verification": true,
        "bcrypt_rounds": 4,
        "rc_message": unlimited, "rc_registration": unlimited, "rc_room_creation": unlimited, "rc_media_create": unlimited,
        "rc_joins_per_room": unlimited, "rc_profile": unlimited,
        "rc_joins": {"local": unlimited, "remote": unlimited},
        "rc_login": {"address": unlimited, "account": unlimited, "failed_attempts": unlimited},
        "rc_invites": {"per_room": unlimited, "per_user": unlimited, "per_issuer": unlimited},
    })
}
