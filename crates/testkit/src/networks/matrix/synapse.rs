//! The Synapse process, its configuration and its data.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MISSING_SYNAPSE_HELP, MatrixTestUser};
use crate::external_server::{ExternalServer, free_port, start_server};
use crate::or_fail::OrFail as _;

/// Longest wait for the server to be ready. It decides only how late a failing test fails.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Server part of every user id.
pub(super) const SERVER_NAME: &str = "quell.test";

/// Runs the server with its log on standard output, and exits when its input ends, so that nothing is left over even if
/// the test is killed.
const LAUNCH_SCRIPT: &str = "
import os, sys, threading
os.dup2(1, 2)
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
    process: ExternalServer,
    folder: TempDir,
    port: u16,
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
        start_server("Synapse", async || {
            let (folder, port) =
                (TempDir::with_prefix("quell-synapse-").or_fail("no folder for a homeserver"), free_port());
            // YAML is a superset of JSON.
            let config = homeserver_config(folder.path(), port).to_string();
            std::fs::write(folder.path().join("homeserver.yaml"), config).or_fail("no configuration for a homeserver");
            let process = start_process(folder.path(), port).await?;
            Ok(Self { process, folder, port })
        })
        .await
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
        self.process.kill();
    }

    /// Kills it if it runs, and starts it again on the same port with the same data.
    ///
    /// # Cancel safety
    /// If dropped, the server is down or starting; another call makes it ready.
    pub async fn restart(&mut self) {
        self.kill();
        let started = start_process(self.folder.path(), self.port).await;
        self.process = started.unwrap_or_else(|output| panic!("Synapse did not start again\n{output}"));
    }
}

/// A listening process, or its output. Another process that has taken the port meanwhile is no listener of ours.
async fn start_process(folder: &Path, port: u16) -> Result<ExternalServer, String> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/synapse/bin/python");
    assert!(python.exists(), "{MISSING_SYNAPSE_HELP}");
    #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
    let mut command = std::process::Command::new(python);
    command.args(["-c", LAUNCH_SCRIPT, "--config-path", "homeserver.yaml"]).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().or_fail("Synapse cannot be started");
    let sign = format!("now listening on TCP port {port}");
    let is_ready = move |line: &str| line.contains(&sign).then_some(());
    Ok(ExternalServer::watch(child, START_TIMEOUT, is_ready).await?.0)
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
