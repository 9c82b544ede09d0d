//! The chromedriver process with its child processes and the profile directory.

use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;

use super::MISSING_BROWSER_HELP;
use crate::WAIT_TIMEOUT;
use crate::external_server::{ExternalServer, start_server};
use crate::or_fail::OrFail as _;

/// chromedriver on a free port. It stays in the process group of the test, so that killing a stuck test kills it too.
#[derive(Debug)]
pub(super) struct ChromedriverProcess {
    process: ExternalServer,
    url: String,
    profile: TempDir,
}

impl ChromedriverProcess {
    pub(super) async fn start() -> Self {
        // chromedriver picks a port that is free over IPv6 and exits when that port is taken over IPv4.
        start_server("chromedriver", Self::try_start).await
    }

    /// A listening driver, or its output.
    async fn try_start() -> Result<Self, String> {
        let profile = TempDir::with_prefix("quell-browser-").or_fail("no folder for a profile");
        #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
        let mut command = std::process::Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Files that Chromium keeps outside of its profile are removed with the profile.
        command.env("HOME", profile.path()).env("TMPDIR", profile.path());
        let child = command.spawn().unwrap_or_else(|error| panic!("{MISSING_BROWSER_HELP} ({error})"));
        let (process, port) = ExternalServer::watch(child, WAIT_TIMEOUT, parse_port).await?;
        Ok(Self { process, url: format!("http://127.0.0.1:{port}"), profile })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn profile(&self) -> &Path {
        self.profile.path()
    }

    pub(super) fn output(&self) -> String {
        self.process.output()
    }

    pub(super) fn kill(&mut self) {
        self.process.kill();
    }
}

/// Parses the port in `ChromeDriver was started successfully on port 40000.`
fn parse_port(line: &str) -> Option<u16> {
    let (_, port) = line.split_once("started successfully on port ")?;
    port.trim_end_matches('.').parse().ok()
}
