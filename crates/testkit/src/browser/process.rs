//! The process of chromedriver and all that it starts, and the profile on disk.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{NEEDS, PATIENCE};
use crate::leaks;

/// How often a driver is started until one finds a port.
const ATTEMPTS: u32 = 5;

/// chromedriver on a free port. It stays in the test's process group, so that whoever ends a stuck test ends it too.
#[derive(Debug)]
pub(super) struct DriverProcess {
    child: Child,
    url: String,
    output: Arc<Mutex<String>>,
    profile: TempDir,
}

impl DriverProcess {
    pub(super) async fn start() -> Self {
        // It looks for a port that is free over IPv6 and ends when the same one is taken over IPv4, so it gets more than one try.
        for _ in 1..ATTEMPTS {
            if let Ok(process) = Self::attempt().await {
                return process;
            }
        }
        match Self::attempt().await {
            Ok(process) => process,
            Err(output) => panic!("chromedriver named no port\n{output}"),
        }
    }

    /// One that listens, or what it said instead.
    async fn attempt() -> Result<Self, String> {
        let profile = match TempDir::with_prefix("quell-browser-") {
            Ok(profile) => profile,
            Err(error) => panic!("no folder for a profile: {error}"),
        };
        #[expect(clippy::disallowed_methods, reason = "the other side is a program of its own")]
        let mut command = std::process::Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // What Chromium keeps outside of its profile goes with the profile.
        command.env("HOME", profile.path()).env("TMPDIR", profile.path());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{NEEDS} ({error})"),
        };
        let output = Arc::new(Mutex::new(String::new()));
        let (announce, announced) = oneshot::channel();
        if let Some(stdout) = child.stdout.take() {
            let kept = Arc::clone(&output);
            // It ends with the output of the driver.
            let reading = std::thread::Builder::new().name("driver-output".into());
            if let Err(error) = reading.spawn(move || read_output(stdout, &kept, announce)) {
                panic!("no thread for chromedriver: {error}");
            }
        }
        let mut process = Self { child, url: String::new(), output, profile };
        match tokio::time::timeout(PATIENCE, announced).await {
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

    #[cfg(test)]
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it and everything below it, by their numbers.
    pub(super) fn kill(&mut self) {
        let below = leaks::descendants_of(self.child.id());
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in below.iter().filter_map(|process| Pid::from_raw(i32::try_from(process.pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Keeps what the driver says, and hands on the port in it.
fn read_output(stdout: impl Read, kept: &Mutex<String>, announce: oneshot::Sender<u16>) {
    let mut announce = Some(announce);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Some(port) = port_in(&line)
            && let Some(announce) = announce.take()
        {
            let _ = announce.send(port);
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&line);
        kept.push('\n');
    }
}

/// The port in the line that says so: `ChromeDriver was started successfully on port 40000.`
pub(super) fn port_in(line: &str) -> Option<u16> {
    let (_, port) = line.split_once("started successfully on port ")?;
    port.trim_end_matches('.').parse().ok()
}
