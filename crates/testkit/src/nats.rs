//! A private NATS server for one test: its own data directory, port and password, gone with the test.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::WAIT_TIMEOUT;
use crate::external_server::free_port;
use crate::leaks::ObservedProcess;
use crate::or_fail::OrFail as _;
use crate::private_server::{is_listening, processes_in, signal_processes, start_guard};
use crate::skip::{announce_skip, is_switched_off};

const START_ATTEMPTS: u32 = 5;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const PROGRAM: &str = "nats-server";
/// Debian's directory of daemons is only in the PATH of root.
const DEBIAN_DIR: &str = "/usr/sbin";

/// A NATS server that knows one user. Dropping it kills it; if the test process is killed, a guard process does.
/// All calls block the thread. They panic with the log of the server when it does not do what they ask for.
#[derive(Debug)]
pub struct TestNats {
    /// Contains `data` and `log`.
    folder: TempDir,
    program: PathBuf,
    port: u16,
    /// `None` when the server is not running.
    server: Option<Child>,
    guard: Child,
}

impl TestNats {
    pub const USER: &'static str = "quell";
    pub const PASSWORD: &'static str = "test-password-of-nats";

    /// A ready server. `None`: the test is skipped, because `QUELL_SKIP_NATS` is set or there is no NATS server.
    #[must_use]
    pub fn start() -> Option<Self> {
        if is_switched_off("QUELL_SKIP_NATS") {
            return None;
        }
        let Some(program) = find_program() else {
            announce_skip("nats-server is missing: `cargo xtask test --full` installs it");
            return None;
        };
        // The kernel shows the data directory of a process without symbolic links.
        let place = std::env::temp_dir().canonicalize().or_fail("no folder for temporary files");
        let folder = TempDir::with_prefix_in("quell-nats-", place).or_fail("no folder for NATS");
        fs::create_dir(folder.path().join("data")).or_fail("no data directory for NATS");
        let guard = start_guard(folder.path());
        let mut server = Self { folder, program, port: 0, server: None, guard };
        server.launch(free_port);
        Some(server)
    }

    /// Such as `nats://127.0.0.1:40000`, without user and password.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Kills the server; its port refuses connections afterwards. Nothing happens if it is not running.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        self.wait_for("a refused connection", |server| !is_listening(server.port));
    }

    /// Kills the server if it runs, and starts it on the same port.
    pub fn start_again(&mut self) {
        self.kill();
        let port = self.port;
        self.launch(|| port);
    }

    /// Stops the server with SIGSTOP, until [`Self::resume`].
    pub fn pause(&mut self) {
        signal_processes(&self.processes(), Signal::STOP);
        self.wait_for("its stop", |server| server.processes().iter().all(|process| process.state == 'T'));
    }

    pub fn resume(&self) {
        signal_processes(&self.processes(), Signal::CONT);
    }

    /// Starts the server, again when its port was taken meanwhile.
    fn launch(&mut self, mut port: impl FnMut() -> u16) {
        for _ in 0..START_ATTEMPTS {
            self.port = port();
            self.spawn().or_fail("nats-server cannot be started");
            self.wait_for("its start", |server| server.is_ready() || server.has_exited());
            if !self.has_exited() {
                return;
            }
        }
        panic!("{} does not start\n{}", self.program.display(), self.log());
    }

    fn spawn(&mut self) -> io::Result<()> {
        let (config, name) = (self.folder.path().join("nats.conf"), self.name());
        let (port, user, password) = (self.port, Self::USER, Self::PASSWORD);
        let settings = format!(
            "server_name: \"{name}\"\nlisten: \"127.0.0.1:{port}\"\n\
             authorization {{ user: \"{user}\", password: \"{password}\" }}\n"
        );
        fs::write(&config, settings)?;
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"))?;
        #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&config).env_clear().current_dir(self.data_dir()).stdin(Stdio::null());
        self.server = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    /// A name that no other server has: it tells whether this one has the port.
    fn name(&self) -> String {
        let folder = self.folder.path().file_name().unwrap_or_default();
        format!("{}-{}", folder.to_string_lossy(), geteuid().as_raw())
    }

    fn is_ready(&self) -> bool {
        read_greeting(self.port).is_ok_and(|greeting| greeting.contains(&self.name()))
    }

    fn has_exited(&mut self) -> bool {
        self.server.as_mut().is_none_or(|server| !matches!(server.try_wait(), Ok(None)))
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn processes(&self) -> Vec<ObservedProcess> {
        processes_in(&self.data_dir())
    }

    fn wait_for(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_done(self) {
            assert!(begin.elapsed() < WAIT_TIMEOUT, "waited {WAIT_TIMEOUT:?} for {what}: NATS\n{}", self.log());
            // No event is sent for what is polled.
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for TestNats {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
        }
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        if let Some(server) = &mut self.server {
            let _ = server.wait();
        }
    }
}

fn find_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path).chain([Path::new(DEBIAN_DIR).to_owned()]);
    dirs.find_map(|dir| Some(dir.join(PROGRAM)).filter(|program| program.exists()))
}

/// The line `INFO {...}`, with which the server begins each connection.
fn read_greeting(port: u16) -> io::Result<String> {
    let socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    let mut greeting = String::new();
    BufReader::new(socket).read_line(&mut greeting)?;
    Ok(greeting)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// The answer of the server to a login: `PONG` or an error.
    fn log_in(server: &TestNats, password: &str) -> String {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        let login = format!(
            "CONNECT {{\"user\":\"{}\",\"pass\":\"{password}\",\"verbose\":false}}\r\nPING\r\n",
            TestNats::USER
        );
        socket.write_all(login.as_bytes()).unwrap();
        let mut lines = BufReader::new(socket).lines();
        lines.find_map(|line| line.ok().filter(|line| !line.starts_with("INFO"))).unwrap_or_default()
    }

    #[test]
    #[ignore = "full: NATS"]
    fn a_server_asks_for_its_password_and_starts_again() {
        let (Some(mut server), Some(other)) = (TestNats::start(), TestNats::start()) else { return };
        assert_ne!(server.url(), other.url());
        assert_eq!(log_in(&server, TestNats::PASSWORD), "PONG");
        assert!(log_in(&server, "wrong").contains("Authorization Violation"));
        let port = server.port();
        server.kill();
        assert!(!is_listening(port) && server.processes().is_empty());
        server.start_again();
        assert_eq!((log_in(&server, TestNats::PASSWORD).as_str(), server.port()), ("PONG", port));
    }

    #[test]
    #[ignore = "full: NATS"]
    fn a_paused_server_goes_on_when_it_is_resumed() {
        let Some(mut server) = TestNats::start() else { return };
        server.pause();
        assert_eq!(server.processes().len(), 1);
        server.resume();
        assert_eq!(log_in(&server, TestNats::PASSWORD), "PONG");
        server.pause();
        server.kill();
        assert!(server.processes().is_empty());
    }

    #[test]
    #[ignore = "full: NATS"]
    fn the_guard_removes_a_server_whose_test_is_killed() {
        let Some(mut server) = TestNats::start() else { return };
        server.pause();
        // The kernel does this when the test process ends.
        drop(server.guard.stdin.take());
        server.wait_for("the guard", |server| !matches!(server.guard.try_wait(), Ok(None)));
        assert!(server.has_exited() && !is_listening(server.port()) && !server.folder.path().exists());
    }
}
