//! LiteLLM's proxy from PyPI, for comparison. `cargo xtask bench` installs it into `target/tools/litellm`; without it,
//! its rows are missing.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::ChatServer;

/// The key of the proxy, which does not start without one.
const MASTER_KEY: &str = "sk-5f1c8e0b7d3a49628c41e7f0a9b2d6350817f4c6e2d9b3a1";
/// How long the start may take: it imports much.
const START_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) struct LiteLlm {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl LiteLlm {
    /// Starts the proxy before the model; `None` if it is not installed.
    pub(super) async fn start(base_url: &str) -> Option<Self> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/litellm/bin/python");
        if !program.exists() {
            eprintln!("LiteLLM is not installed in target/tools/litellm; its rows are left out");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let config = format!(
            "model_list:\n  - model_name: scripted\n    litellm_params:\n      model: openai/m\n      api_base: {base_url}\n      \
             api_key: sk-test\nlitellm_settings:\n  num_retries: 0\n"
        );
        std::fs::write(&file, config).unwrap();
        let log = folder.path().join("log");
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        #[expect(clippy::disallowed_methods, reason = "starts the proxy that the bench compares with")]
        let mut child = std::process::Command::new(program)
            // What its program `litellm` does; the first line of that names the folder before it was moved.
            .args(["-c", "from litellm import run_server; run_server()"])
            .args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--config"])
            .arg(&file)
            .env("LITELLM_MASTER_KEY", MASTER_KEY)
            .env("LITELLM_TELEMETRY", "False")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if child.try_wait().unwrap().is_some() || begun.elapsed() > START_TIMEOUT {
                let _ = child.kill();
                eprintln!(
                    "LiteLLM did not start, so its rows are left out: {}",
                    std::fs::read_to_string(&log).unwrap()
                );
                return None;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Some(Self { child, address, _folder: folder })
    }

    pub(super) fn server(&self) -> ChatServer {
        ChatServer { address: self.address, key: Some(MASTER_KEY.to_owned()), model: "scripted" }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for LiteLlm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
