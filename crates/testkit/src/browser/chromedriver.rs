//! The chromedriver process with its child processes and the profile directory.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{MISSING_BROWSER_HELP, WAIT_TIMEOUT};
use crate::leaks;

const START_ATTEMPTS: u32 = 5;

/// chromedriver on a free port. It stays in the process group of the test, so that killing a stuck test kills it too.
#[derive(Debug)]
pub(super) struct ChromedriverProcess {
    child: Child,
    url: String,
    output: Arc<Mutex<String>>,
    profile: TempDir,
}

impl ChromedriverProcess {
    pub(super) async fn start() -> Self {
        // chromedriver picks a port that is free over IPv6 and exits when that port is taken over IPv4, so it gets
        // several tries.
        for _ in 1..START_ATTEMPTS {
            if let Ok(process) = Self::try_start().await {
                return process;
            }
        }
        match Self::try_start().await {
            Ok(process) => process,
            Err(output) => panic!("chromedriver named no port\n{output}"),
        }
    }

    /// A listening driver, or its output.
    async fn try_start() -> Result<Self, String> {
        let profile = match TempDir::with_prefix("quell-browser-") {
            Ok(profile) => profile,
            Err(error) => panic!("no folder for a profile: {error}"),
        };
        #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
        let mut command = std::process::Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Files that Chromium keeps outside of its profile are removed with the profile.
        command.env("HOME", profile.path()).env("TMPDIR", profile.path());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{MISSING_BROWSER_HELP} ({error})"),
        };
        let output = Arc::new(Mutex::new(String::new()));
        let (announce, announced) = oneshot::channel();
        if let Some(stdout) = child.stdout.take() {
            let kept = Arc::clone(&output);
            // The thread ends with the driver's output.
            let reading = std::thread::Builder::new().name("driver-output".into());
            if let Err(error) = reading.spawn(move || read_output(stdout, &kept, announce)) {
                panic!("no thread for chromedriver: {error}");
            }
        }
        let mut process = Self { child, url: String::new(), output, profile };
        match tokio::time::timeout(WAIT_TIMEOUT, announced).await {
            Ok(Ok(port)) => process.url = format!("http://127.0.0.1:{port}"),
            _ => return Err(process.output()),
        }
        Ok(process)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn profile(&self) -> &Path {
        self.profile.path()
    }

    pub(super) fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kills the driver and all its descendants by pid.
    pub(super) fn kill(&mut self) {
        let below = leaks::descendants_of(self.child.id());
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in below.iter().filter_map(|process| Pid::from_raw(i32::try_from(process.pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for ChromedriverProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Keeps the driver's output and sends the port that it names.
fn read_output(stdout: impl Read, kept: &Mutex<String>, announce: oneshot::Sender<u16>) {
    let mut announce = Some(announce);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Some(port) = parse_port(&line)
            && let Some(announce) = announce.take()
        {
            let _ = announce.send(port);
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&line);
        kept.push('\n');
    }
}

/// Parses the port in `ChromeDriver was started successfully on port 40000.`
fn parse_port(line: &str) -> Option<u16> {
    let (_, port) = line.split_once("started successfully on port ")?;
    port.trim_end_matches('.').parse().ok()
}
