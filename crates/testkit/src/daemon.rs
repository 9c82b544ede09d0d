//! A real `quell` daemon for tests: its own data directory, a free port, its output kept for diagnosis.

mod api;
mod events;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
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

#[cfg(test)]
pub(crate) use api::install_tls_provider;
pub use api::{Answer, Api, client};
pub use events::{Event, EventLog, EventStream};

/// Longest wait for a daemon to be ready or to end. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Environment that would let the machine's own set-up reach the daemon.
const FOREIGN: &[&str] = &[
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
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// A data directory and configuration in which daemons can be started one after the other.
#[derive(Debug, Clone)]
pub struct Home {
    folder: Arc<TempDir>,
    environment: Vec<(String, String)>,
    user: Option<u32>,
}

impl Home {
    /// A fresh one with this configuration.
    ///
    /// # Panics
    /// When the files cannot be written.
    #[must_use]
    pub fn new(config_toml: &str) -> Self {
        let made = TempDir::with_prefix("quell-test-").and_then(|folder| {
            fs::create_dir(folder.path().join("data"))?;
            fs::write(folder.path().join("quell.toml"), config_toml)?;
            Ok(folder)
        });
        match made {
            Ok(folder) => Self { folder: Arc::new(folder), environment: Vec::new(), user: None },
            Err(error) => panic!("no home for a daemon: {error}"),
        }
    }

    /// Adds a variable to the environment of every daemon started here.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Gives all of it to another user, as whom daemons are started from now on, with no right beyond that.
    ///
    /// # Panics
    /// When this process may not do that: it takes root.
    #[must_use]
    pub fn of_user(mut self, user: u32) -> Self {
        let paths = [self.folder.path().to_owned(), self.data(), self.config()];
        for path in paths {
            if let Err(error) = std::os::unix::fs::chown(&path, Some(user), Some(user)) {
                panic!("{} cannot be given to user {user}: {error}", path.display());
            }
        }
        self.user = Some(user);
        self
    }

    /// A copy of this binary that every user may execute: the directory of the build may be closed to others.
    ///
    /// # Panics
    /// When it cannot be copied.
    #[must_use]
    pub fn copy_of(&self, exe: &Path) -> PathBuf {
        let copy = self.folder.path().join("quell");
        let made = fs::copy(exe, &copy).and_then(|_| fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)));
        match made {
            Ok(()) => copy,
            Err(error) => panic!("{} cannot be copied: {error}", exe.display()),
        }
    }

    /// The directory around everything.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Where agents work that name no workdir.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("data-work")
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("quell.toml")
    }

    /// Where the daemon's output is kept.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("output.log")
    }

    /// A command of this binary in this home, with the machine's own set-up kept away.
    #[must_use]
    pub fn command(&self, exe: &Path) -> std::process::Command {
        #[expect(clippy::disallowed_methods, reason = "the scaffold starts the real binary from outside")]
        let mut command = std::process::Command::new(exe);
        for name in FOREIGN {
            command.env_remove(name);
        }
        if self.config().exists() {
            command.env("QUELL_CONFIG", self.config());
        }
        command.env("QUELL_HOME", self.data()).envs(self.environment.iter().map(|(n, v)| (n, v)));
        command.current_dir(self.folder.path());
        if let Some(user) = self.user {
            command.uid(user).gid(user).env("HOME", self.folder.path());
        }
        command
    }

    /// Starts a daemon and waits until it is ready.
    ///
    /// # Cancel safety
    /// A daemon whose start is dropped is killed.
    ///
    /// # Panics
    /// When it does not get ready, with what it has printed.
    pub async fn start(&self, exe: &Path) -> Daemon {
        self.start_on(exe, "127.0.0.1:0").await
    }

    /// Starts a daemon that is expected to answer, and not to be ready.
    ///
    /// # Cancel safety
    /// A daemon whose start is dropped is killed.
    ///
    /// # Panics
    /// When it does not answer so, with what it has printed.
    pub async fn start_unready(&self, exe: &Path) -> Daemon {
        let mut command = self.command(exe);
        command.arg("serve").arg("--config").arg(self.config()).args(["--listen", "127.0.0.1:0"]);
        self.spawn(exe, command, 503).await
    }

    /// Starts a daemon that listens on this address, such as the one of its predecessor.
    ///
    /// # Cancel safety
    /// A daemon whose start is dropped is killed.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_on(&self, exe: &Path, address: &str) -> Daemon {
        let mut command = self.command(exe);
        command.arg("serve").arg("--config").arg(self.config()).args(["--listen", address]);
        self.spawn(exe, command, 200).await
    }

    /// Starts a daemon without naming a configuration to it; the variable that names one has to be empty.
    ///
    /// # Cancel safety
    /// A daemon whose start is dropped is killed.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_without_a_name(&self, exe: &Path) -> Daemon {
        let mut command = self.command(exe);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        self.spawn(exe, command, 200).await
    }

    /// `readiness` is the status with which it says whether it is ready.
    async fn spawn(&self, exe: &Path, mut command: std::process::Command, readiness: u16) -> Daemon {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let log = File::options().create(true).append(true).open(self.log());
        let spawned = log.and_then(|log| {
            command.stderr(log.try_clone()?);
            let begin = Instant::now();
            Ok((command.spawn()?, log, begin))
        });
        let (child, log, begin) = match spawned {
            Ok(started) => started,
            Err(error) => panic!("{} did not start: {error}", exe.display()),
        };
        Daemon::watched(self.clone(), child, log, (begin, readiness)).await
    }
}

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    home: Home,
    pid: u32,
    /// Names the process for good, also when its number is used again.
    process: OwnedFd,
    ended: watch::Receiver<Option<ExitStatus>>,
    waiter: Option<std::thread::JoinHandle<()>>,
    url: String,
    token: String,
    ready_after: Duration,
}

impl Daemon {
    /// Starts a daemon in a home of its own and waits until it is ready.
    ///
    /// # Cancel safety
    /// A daemon whose start is dropped is killed.
    ///
    /// # Panics
    /// When it does not get ready, with what it has printed.
    pub async fn start(exe: &Path, config_toml: &str) -> Self {
        Home::new(config_toml).start(exe).await
    }

    async fn watched(home: Home, mut child: Child, log: File, (begin, readiness): (Instant, u16)) -> Self {
        let pid = child.id();
        let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { panic!("process {pid}") };
        let process = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(error) => panic!("cannot watch process {pid}: {error}"),
        };
        let (address, announced) = oneshot::channel();
        let stdout = child.stdout.take();
        let reader = move || copy_output(stdout, log, address);
        let (ending, ended) = watch::channel(None);
        let waiter = move || {
            // Without a status nobody can wait for it; the receiver sees the sender gone and says so.
            if let Ok(status) = child.wait() {
                let _ = ending.send(Some(status));
            }
        };
        let threads = std::thread::Builder::new().name("daemon-output".into()).spawn(reader).and_then(|_reads| {
            // The reader ends with the output, which a warden may hold a moment longer than the daemon lives.
            std::thread::Builder::new().name("daemon-wait".into()).spawn(waiter)
        });
        let waiter = match threads {
            Ok(waiter) => waiter,
            Err(error) => panic!("no threads for a daemon: {error}"),
        };
        let (url, token) = (String::new(), String::new());
        let mut daemon =
            Self { home, pid, process, ended, waiter: Some(waiter), url, token, ready_after: Duration::ZERO };
        daemon.become_ready(announced, begin, readiness).await;
        daemon
    }

    async fn become_ready(&mut self, announced: oneshot::Receiver<String>, begin: Instant, readiness: u16) {
        match tokio::time::timeout(PATIENCE, announced).await {
            Ok(Ok(url)) => self.url = url,
            _ => panic!("the daemon printed no address\n{}", self.output()),
        }
        let client = client();
        while !client.get(format!("{}/readyz", self.url)).send().await.is_ok_and(|answer| answer.status() == readiness)
        {
            assert!(begin.elapsed() < PATIENCE && !self.has_ended(), "the daemon is not ready\n{}", self.output());
            // Readiness is a status without an event; asked again as a balancer would.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.ready_after = begin.elapsed();
        match fs::read_to_string(self.home.data().join("token")) {
            Ok(token) => self.token = token.trim().to_owned(),
            Err(error) => panic!("the daemon is ready but its token is not: {error}\n{}", self.output()),
        }
    }

    /// Its address, such as `http://127.0.0.1:40000`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens, such as `127.0.0.1:40000`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The admin token of its data directory.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Time from its start to its first ready answer.
    #[must_use]
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Its home, in which another daemon can be started after this one.
    #[must_use]
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Its HTTP door, with the admin token.
    #[must_use]
    pub fn http(&self) -> Api {
        Api::new(&self.url, &self.token)
    }

    /// Everything it has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(self.home.log()).unwrap_or_default()
    }

    /// True once it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Sends TERM and waits until it has ended.
    ///
    /// # Cancel safety
    /// The signal stays sent.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn stop(&self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Sends KILL and waits until it has ended.
    ///
    /// # Cancel safety
    /// The signal stays sent.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn kill9(&self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.ended().await
    }

    /// Sends a signal; one to a daemon that has ended is lost.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.process, signal);
    }

    /// Keeps it from running until the answer is dropped, whoever else lets it go on meanwhile.
    ///
    /// # Panics
    /// When there is no thread for that.
    #[must_use]
    pub fn stand_still(&self) -> StandStill {
        let process = match self.process.try_clone() {
            Ok(process) => process,
            Err(error) => panic!("cannot hold process {}: {error}", self.pid),
        };
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
        match thread {
            Ok(thread) => StandStill { done, thread: Some(thread) },
            Err(error) => panic!("no thread that holds a daemon: {error}"),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn ended(&self) -> ExitStatus {
        let mut ended = self.ended.clone();
        let waited = tokio::time::timeout(PATIENCE, ended.wait_for(Option::is_some)).await;
        match waited.ok().and_then(Result::ok).and_then(|status| *status) {
            Some(status) => status,
            None => panic!("the daemon did not end\n{}", self.output()),
        }
    }
}

/// A daemon that does not run as long as this lives.
#[derive(Debug)]
pub struct StandStill {
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for StandStill {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// Copies the output to the log, and hands on the first address in it.
fn copy_output(stdout: Option<std::process::ChildStdout>, mut log: File, address: oneshot::Sender<String>) {
    let Some(stdout) = stdout else { return };
    let mut address = Some(address);
    let mut lines = BufReader::new(stdout);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let _ = log.write_all(&line);
        if let Some(url) = address_in(&String::from_utf8_lossy(&line))
            && let Some(address) = address.take()
        {
            let _ = address.send(url);
        }
        line.clear();
    }
}

/// The address in a line, up to its port.
fn address_in(line: &str) -> Option<String> {
    const BEFORE_PORT: &str = "http://127.0.0.1:";
    let from = line.get(line.find(BEFORE_PORT)?..)?;
    let digits = from.get(BEFORE_PORT.len()..)?.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| from.chars().take(BEFORE_PORT.len() + digits).collect())
}
