//! A real `quell` daemon for tests: its own data directory, a free port, and its output for diagnosis.

mod api;
mod events;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};

use crate::WAIT_TIMEOUT;
use crate::external_server::read_output;
use crate::or_fail::OrFail as _;

pub use api::{TestApiClient, TestApiResponse, http_client, percent_encode, poll_until};
pub use events::{ReceivedEvent, TestRunEventLog, TestRunEventStream};

/// Variables through which the machine's own setup would reach the daemon.
const HOST_ENVIRONMENT: &[&str] = &[
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "OLLAMA_HOST",
    "QUELL_CONFIG",
    "QUELL_HOME",
    "QUELL_WORK",
    "QUELL_URL",
    "QUELL_TOKEN",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// A data directory and configuration in which daemons are started one after the other.
#[derive(Debug, Clone)]
pub struct DaemonHome {
    folder: Arc<TempDir>,
    environment: Vec<(String, String)>,
    user: Option<u32>,
}

impl DaemonHome {
    /// Creates a home with this configuration.
    pub fn new(config_toml: &str) -> Self {
        let made = TempDir::with_prefix("quell-test-").and_then(|folder| {
            fs::create_dir(folder.path().join("data"))?;
            fs::write(folder.path().join("quell.toml"), config_toml)?;
            Ok(folder)
        });
        Self { folder: Arc::new(made.or_fail("no home for a daemon")), environment: Vec::new(), user: None }
    }

    /// Adds an environment variable for every daemon started here.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Gives all files to another user; daemons then run as that user with no further rights.
    ///
    /// # Panics
    /// Without root rights.
    #[must_use]
    pub fn owned_by_user(mut self, user: u32) -> Self {
        let paths = [self.folder.path().to_owned(), self.data_dir(), self.config_file()];
        for path in paths {
            std::os::unix::fs::chown(&path, Some(user), Some(user))
                .or_fail(format_args!("{} cannot be given to user {user}", path.display()));
        }
        self.user = Some(user);
        self
    }

    /// A copy of this binary that every user may execute: the build directory may be closed to others.
    pub fn copy_executable(&self, exe: &Path) -> PathBuf {
        let copy = self.folder.path().join("quell");
        let made = fs::copy(exe, &copy).and_then(|_| fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)));
        made.or_fail(format_args!("{} cannot be copied", exe.display()));
        copy
    }

    /// The directory that contains everything.
    pub fn root_dir(&self) -> &Path {
        self.folder.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Working directory of agents that name no workdir.
    pub fn work_dir(&self) -> PathBuf {
        self.folder.path().join("data-work")
    }

    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("quell.toml")
    }

    pub fn log_file(&self) -> PathBuf {
        self.folder.path().join("output.log")
    }

    /// A command of this binary in this home, without the machine's own setup.
    pub fn command(&self, exe: &Path) -> std::process::Command {
        #[expect(clippy::disallowed_methods, reason = "test support starts the real binary")]
        let mut command = std::process::Command::new(exe);
        for name in HOST_ENVIRONMENT {
            command.env_remove(name);
        }
        if self.config_file().exists() {
            command.env("QUELL_CONFIG", self.config_file());
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.env("HOME", self.folder.path()).env("QUELL_HOME", self.data_dir());
        command.envs(self.environment.iter().map(|(n, v)| (n, v)));
        command.current_dir(self.folder.path());
        command
    }

    /// Starts a daemon and waits until it is ready.
    pub async fn start(&self, exe: &Path) -> TestDaemon {
        self.start_on(exe, "127.0.0.1:0").await
    }

    /// Starts a daemon that listens on this address, for example that of its predecessor.
    pub async fn start_on(&self, exe: &Path, address: &str) -> TestDaemon {
        self.spawn(exe, Some(self.config_file()), address, 200).await
    }

    /// Starts a daemon that should answer but not become ready.
    pub async fn start_unready(&self, exe: &Path) -> TestDaemon {
        self.spawn(exe, Some(self.config_file()), "127.0.0.1:0", 503).await
    }

    /// Starts a daemon without `--config`; `QUELL_CONFIG` must be empty.
    pub async fn start_without_config_flag(&self, exe: &Path) -> TestDaemon {
        self.spawn(exe, None, "127.0.0.1:0", 200).await
    }

    /// `ready_status` is the expected status of `/readyz`.
    async fn spawn(&self, exe: &Path, config: Option<PathBuf>, address: &str, ready_status: u16) -> TestDaemon {
        let mut command = self.command(exe);
        command
            .args(["serve", "--listen", address])
            .args(config.iter().flat_map(|path| [Path::new("--config"), path.as_path()]));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let log = File::options().create(true).append(true).open(self.log_file());
        let spawned = log.and_then(|log| {
            command.stderr(log.try_clone()?);
            let begin = Instant::now();
            Ok((command.spawn()?, log, begin))
        });
        let (child, log, begin) = spawned.or_fail(format_args!("{} did not start", exe.display()));
        TestDaemon::supervise(self.clone(), child, log, (begin, ready_status)).await
    }
}

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub struct TestDaemon {
    home: DaemonHome,
    pid: u32,
    /// Identifies the process even after its pid is reused.
    pidfd: OwnedFd,
    exit_status: watch::Receiver<Option<ExitStatus>>,
    waiter: Option<std::thread::JoinHandle<()>>,
    url: String,
    token: String,
    startup_time: Duration,
}

impl TestDaemon {
    /// Starts a daemon in a new home and waits until it is ready.
    pub async fn start(exe: &Path, config_toml: &str) -> Self {
        DaemonHome::new(config_toml).start(exe).await
    }

    async fn supervise(home: DaemonHome, mut child: Child, log: File, (begin, ready_status): (Instant, u16)) -> Self {
        let pid = child.id();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .or_fail(format_args!("cannot watch process {pid}"));
        let (address, announced) = oneshot::channel();
        let stdout = child.stdout.take();
        let reader = move || stdout.map(|stdout| read_output(stdout, log, parse_address, address));
        let (ending, ended) = watch::channel(None);
        let waiter = move || {
            // Without a status the sender is dropped, which the receiver notices.
            if let Ok(status) = child.wait() {
                let _ = ending.send(Some(status));
            }
        };
        let threads = std::thread::Builder::new().name("daemon-output".into()).spawn(reader).and_then(|_reads| {
            // The reader ends with the output, which a warden may keep open a moment longer than the daemon lives.
            std::thread::Builder::new().name("daemon-wait".into()).spawn(waiter)
        });
        let waiter = threads.or_fail("no threads for a daemon");
        let (url, token) = (String::new(), String::new());
        let mut daemon = Self {
            home,
            pid,
            pidfd: process,
            exit_status: ended,
            waiter: Some(waiter),
            url,
            token,
            startup_time: Duration::ZERO,
        };
        daemon.wait_ready(announced, begin, ready_status).await;
        daemon
    }

    async fn wait_ready(&mut self, announced: oneshot::Receiver<String>, begin: Instant, ready_status: u16) {
        match tokio::time::timeout(WAIT_TIMEOUT, announced).await {
            Ok(Ok(url)) => self.url = url,
            _ => panic!("the daemon printed no address\n{}", self.output()),
        }
        let client = http_client();
        while !client
            .get(format!("{}/readyz", self.url))
            .send()
            .await
            .is_ok_and(|answer| answer.status() == ready_status)
        {
            assert!(begin.elapsed() < WAIT_TIMEOUT && !self.has_exited(), "the daemon is not ready\n{}", self.output());
            // Readiness sends no event; poll it as a load balancer does.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.startup_time = begin.elapsed();
        match fs::read_to_string(self.home.data_dir().join("token")) {
            Ok(token) => self.token = token.trim().to_owned(),
            Err(error) => panic!("the daemon is ready but its token is not: {error}\n{}", self.output()),
        }
    }

    /// Such as `http://127.0.0.1:40000`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Such as `127.0.0.1:40000`.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The admin token of its data directory.
    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Time from the start to the first ready answer.
    pub fn startup_time(&self) -> Duration {
        self.startup_time
    }

    /// The home, in which another daemon can be started later.
    pub fn home(&self) -> &DaemonHome {
        &self.home
    }

    /// API client with the admin token.
    pub fn api(&self) -> TestApiClient {
        TestApiClient::new(&self.url, &self.token)
    }

    pub fn output(&self) -> String {
        fs::read_to_string(self.home.log_file()).unwrap_or_default()
    }

    #[must_use]
    pub fn has_exited(&self) -> bool {
        self.exit_status.borrow().is_some()
    }

    /// Sends SIGTERM and waits until the daemon has exited.
    ///
    /// # Cancel safety
    /// Dropping it does not withdraw the signal.
    pub async fn stop(&self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_exit().await
    }

    /// Sends SIGKILL and waits until the daemon has exited.
    ///
    /// # Cancel safety
    /// Dropping it does not withdraw the signal.
    pub async fn kill9(&self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.wait_exit().await
    }

    /// Sends a signal; ignored if the daemon has exited.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Stops the daemon with SIGSTOP until the guard is dropped, even if another process sends SIGCONT. Returns when each
    /// of its threads has stopped: on a busy machine some work for milliseconds after the signal was sent.
    #[must_use]
    pub fn suspend(&self) -> SuspendGuard {
        let process = self.pidfd.try_clone().or_fail(format_args!("cannot hold process {}", self.pid));
        self.signal(Signal::STOP);
        let done = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&done);
        let thread = std::thread::Builder::new().name("stand-still".into()).spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = pidfd_send_signal(&process, Signal::STOP);
                std::thread::yield_now();
            }
            let _ = pidfd_send_signal(&process, Signal::CONT);
        });
        let guard = SuspendGuard { done, thread: Some(thread.or_fail("no thread that holds a daemon")) };
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !self.are_threads_stopped() {
            assert!(Instant::now() < deadline, "the daemon does not stop\n{}", self.output());
            std::thread::yield_now();
        }
        guard
    }

    fn are_threads_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).or_fail("no list of threads");
        let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        // The name in front of the state may contain spaces.
        stats.into_iter().all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    /// Waits until the daemon has exited.
    pub async fn wait_exit(&self) -> ExitStatus {
        let mut ended = self.exit_status.clone();
        let waited = tokio::time::timeout(WAIT_TIMEOUT, ended.wait_for(Option::is_some)).await;
        match waited.ok().and_then(Result::ok).and_then(|status| *status) {
            Some(status) => status,
            None => panic!("the daemon did not end\n{}", self.output()),
        }
    }
}

/// The daemon is stopped as long as this lives.
#[derive(Debug)]
pub struct SuspendGuard {
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for SuspendGuard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// The URL in a line, up to its port.
fn parse_address(line: &str) -> Option<String> {
    const BEFORE_PORT: &str = "http://127.0.0.1:";
    let from = line.get(line.find(BEFORE_PORT)?..)?;
    let digits = from.get(BEFORE_PORT.len()..)?.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| from.chars().take(BEFORE_PORT.len() + digits).collect())
}
