//! A private PostgreSQL server for one test: its own data directory and port, gone with the test.

mod programs;
mod small_disk;

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::WAIT_TIMEOUT;
use crate::external_server::free_port;
use crate::leaks::ObservedProcess;
use crate::or_fail::OrFail as _;
use crate::private_server::{is_listening, processes_in, signal_processes, start_guard};
use crate::skip::{announce_skip, is_switched_off, lacks_root};
use programs::{ServerPrograms, copy_folder};
use small_disk::SmallDisk;

const START_ATTEMPTS: u32 = 5;
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Settings of every server. Shared memory in files goes with the data directory when the server is killed.
const SETTINGS: &[&str] = &[
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=50",
    "shared_buffers=16MB",
    "dynamic_shared_memory_type=mmap",
    "logging_collector=off",
];

/// A start message for user `postgres` (protocol 3.0), then `Terminate`.
const SHORT_SESSION: &[u8] = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0X\0\0\0\x04";

/// A PostgreSQL server, version 15 or newer. Dropping it kills it; if the test process is killed, a guard process does.
/// All calls block the thread. They panic with the log of the server when it does not do what they ask for.
#[derive(Debug)]
pub struct TestPostgres {
    /// Contains `data` and `log`.
    folder: TempDir,
    programs: ServerPrograms,
    fsync: &'static str,
    /// With the tables.
    small_disk: Option<SmallDisk>,
    port: u16,
    /// `None` when the server is not running.
    postmaster: Option<Child>,
    guard: Child,
}

impl TestPostgres {
    /// A ready server whose commits outlive its own death, but not that of the machine. `None`: the test is skipped,
    /// because `QUELL_SKIP_POSTGRES` is set or there is no PostgreSQL.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with("fsync=off", |_| None)
    }

    /// Like [`Self::start`], and each commit waits for the disk.
    #[must_use]
    pub fn start_durable() -> Option<Self> {
        Self::start_with("fsync=on", |_| None)
    }

    /// Like [`Self::start`], with the tables on a small disk of their own. The log of PostgreSQL is elsewhere: without
    /// space for that, PostgreSQL ends. The test is also skipped without root.
    #[must_use]
    pub fn start_on_small_disk() -> Option<Self> {
        if lacks_root() {
            return None;
        }
        Self::start_with("fsync=off", |data| Some(SmallDisk::mount(data.join("base"))))
    }

    fn start_with(fsync: &'static str, mount: impl FnOnce(&Path) -> Option<SmallDisk>) -> Option<Self> {
        if is_switched_off("QUELL_SKIP_POSTGRES") {
            return None;
        }
        let Some(programs) = ServerPrograms::find() else {
            announce_skip("PostgreSQL 15 or newer is missing: `cargo xtask test --full` installs it");
            return None;
        };
        let template = programs.template();
        // The kernel shows the data directory of a process without symbolic links.
        let place = std::env::temp_dir().canonicalize().or_fail("no folder for temporary files");
        let folder = TempDir::with_prefix_in("quell-postgres-", place).or_fail("no folder for PostgreSQL");
        let copied = fs::set_permissions(folder.path(), Permissions::from_mode(0o711))
            .and_then(|()| copy_folder(&template, &folder.path().join("data")));
        copied.or_fail(format_args!("{} cannot be copied", template.display()));
        let small_disk = mount(&folder.path().join("data"));
        let guard = start_guard(folder.path());
        let mut server = Self { folder, programs, fsync, small_disk, port: 0, postmaster: None, guard };
        server.launch(free_port);
        Some(server)
    }

    /// Such as `postgres://postgres@127.0.0.1:40000/postgres`. No password is asked for.
    pub fn url(&self) -> String {
        self.database_url("postgres")
    }

    pub fn database_url(&self, name: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }

    /// Creates an empty database.
    pub fn create_database(&self, name: &str) {
        self.sql(&format!("CREATE DATABASE {name}"));
    }

    /// Creates a database with what is in another one, which may be in use.
    pub fn copy_database(&self, source: &str, name: &str) {
        self.create_database(name);
        let mut pg_dump = self.programs.command("pg_dump");
        pg_dump.arg("--dbname").arg(self.database_url(source)).stdout(Stdio::piped());
        let mut pg_dump = pg_dump.spawn().or_fail("pg_dump cannot be started");
        let mut psql = self.psql(&self.database_url(name));
        psql.stdin(pg_dump.stdout.take().or_fail("pg_dump has no output"));
        let output = psql.output().or_fail("psql cannot be started");
        let dumped = pg_dump.wait().or_fail("pg_dump is lost");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(dumped.success() && output.status.success(), "{source} was not copied\n{errors}\n{}", self.log());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Executes statements by `psql`; returns the rows as lines, their values separated by `|`.
    pub fn sql(&self, statements: &str) -> String {
        let output = self.psql(&self.url()).arg("--command").arg(statements).output();
        let output = output.or_fail("psql cannot be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}\n{errors}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn psql(&self, url: &str) -> Command {
        let mut psql = self.programs.command("psql");
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]);
        psql.arg("--dbname").arg(url);
        psql
    }

    /// Kills all processes of the server; its port refuses connections afterwards. Nothing happens if it is not running.
    pub fn kill(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            let _ = postmaster.kill();
            let _ = postmaster.wait();
        }
        self.wait_for("the death of all its processes", |server| {
            server.signal(Signal::KILL);
            server.processes().is_empty()
        });
        self.wait_for("a refused connection", |server| !is_listening(server.port));
    }

    /// Shuts the server down in order (`fast`): it ends all sessions and writes a checkpoint.
    pub fn stop(&mut self) {
        if let Some(postmaster) = &self.postmaster {
            let _ = kill_process(Pid::from_child(postmaster), Signal::INT);
        }
        self.wait_for("its end", Self::has_exited);
        self.postmaster = None;
    }

    /// Kills the server if it runs, and starts it on the same data and port.
    pub fn start_again(&mut self) {
        self.kill();
        let port = self.port;
        self.launch(|| port);
    }

    /// Stops all processes of the server with SIGSTOP, until [`Self::resume`].
    pub fn pause(&mut self) {
        self.wait_for("the stop of all its processes", |server| {
            server.signal(Signal::STOP);
            server.processes().iter().all(|process| process.state == 'T')
        });
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Leaves no space on the small disk.
    pub fn fill_disk(&self) {
        self.small_disk.as_ref().or_fail("no small disk").fill();
    }

    pub fn free_disk(&self) {
        self.small_disk.as_ref().or_fail("no small disk").free();
    }

    /// Starts the server, again when its port was taken meanwhile.
    fn launch(&mut self, mut port: impl FnMut() -> u16) {
        for _ in 0..START_ATTEMPTS {
            self.port = port();
            self.spawn().or_fail("PostgreSQL cannot be started");
            self.wait_for("its start", |server| server.is_ready() || server.has_exited());
            if !self.has_exited() {
                return;
            }
        }
        panic!("PostgreSQL does not start on a copy of {}\n{}", self.programs.folder().display(), self.log());
    }

    fn spawn(&mut self) -> io::Result<()> {
        let data = self.data_dir();
        // A killed server leaves it, and the next one ends if another process has got the pid in it.
        match fs::remove_file(data.join("postmaster.pid")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"))?;
        let mut command = match &self.small_disk {
            Some(disk) => self.programs.command_in_namespace(&disk.namespace(), "postgres"),
            None => self.programs.command("postgres"),
        };
        command.arg("-D").arg(&data).arg("-c").arg(format!("port={}", self.port));
        for setting in SETTINGS.iter().chain([&self.fsync]) {
            command.args(["-c", setting]);
        }
        self.postmaster = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    /// True if this server, and not another one on the same port, accepts sessions.
    fn is_ready(&self) -> bool {
        let state = fs::read_to_string(self.data_dir().join("postmaster.pid")).unwrap_or_default();
        state.lines().nth(7).is_some_and(|status| status.trim() == "ready") && accepts_sessions(self.port)
    }

    fn has_exited(&mut self) -> bool {
        self.postmaster.as_mut().is_none_or(|postmaster| !matches!(postmaster.try_wait(), Ok(None)))
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The live processes of the server: each works in its data directory.
    fn processes(&self) -> Vec<ObservedProcess> {
        processes_in(&self.data_dir())
    }

    fn signal(&self, signal: Signal) {
        signal_processes(&self.processes(), signal);
    }

    fn wait_for(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_done(self) {
            assert!(begin.elapsed() < WAIT_TIMEOUT, "waited {WAIT_TIMEOUT:?} for {what}: PostgreSQL\n{}", self.log());
            // No event is sent for what is polled.
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for TestPostgres {
    fn drop(&mut self) {
        if let Some(postmaster) = &mut self.postmaster {
            let _ = postmaster.kill();
        }
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        if let Some(postmaster) = &mut self.postmaster {
            let _ = postmaster.wait();
        }
    }
}

fn accepts_sessions(port: u16) -> bool {
    let answer = TcpStream::connect(("127.0.0.1", port)).and_then(|mut socket| {
        socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
        socket.write_all(SHORT_SESSION)?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        Ok(answer)
    });
    // `Authentication`; a server that is still starting answers with an error.
    answer.is_ok_and(|answer| answer.first() == Some(&b'R'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn a_server_answers_stops_and_starts_again() {
        let (Some(mut server), Some(other)) = (TestPostgres::start(), TestPostgres::start()) else { return };
        assert_eq!(server.sql("SHOW fsync; CREATE TABLE kept (n int); INSERT INTO kept VALUES (1), (2)"), "off");
        assert_eq!(other.sql("SELECT count(*) FROM pg_tables WHERE tablename = 'kept'"), "0", "each has its own data");
        server.stop();
        assert!(!is_listening(server.port()));
        server.start_again();
        assert_eq!(server.sql("SELECT n, -n FROM kept ORDER BY n"), "1|-1\n2|-2");
    }

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn a_database_is_copied_while_it_is_in_use() {
        let Some(server) = TestPostgres::start() else { return };
        server.sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)");
        server.copy_database("postgres", "copied");
        server.sql("INSERT INTO kept VALUES (2)");
        let rows = server.psql(&server.database_url("copied")).args(["--command", "TABLE kept"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&rows.stdout), "1\n");
    }

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn committed_rows_survive_a_kill() {
        let Some(mut server) = TestPostgres::start_durable() else { return };
        assert_eq!(server.sql("SHOW fsync; CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)"), "on");
        let port = server.port();
        server.kill();
        assert!(!is_listening(port));
        server.start_again();
        assert_eq!((server.sql("SELECT n FROM kept").as_str(), server.port()), ("7", port));
        assert!(server.log().contains("automatic recovery in progress"), "{}", server.log());
    }

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn a_full_disk_refuses_rows_until_it_is_free_again() {
        let Some(mut server) = TestPostgres::start_on_small_disk() else { return };
        server.sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)");
        server.fill_disk();
        let insert = "DO $$ BEGIN INSERT INTO kept SELECT generate_series(1, 10000);
                      EXCEPTION WHEN disk_full THEN NULL; END $$; SELECT count(*) FROM kept";
        assert_eq!(server.sql(insert), "1");
        server.free_disk();
        assert_eq!(server.sql(insert), "10001");
        server.kill();
        assert!(server.processes().is_empty());
        server.start_again();
        assert_eq!(server.sql("SELECT count(*) FROM kept"), "10001");
    }

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn a_paused_server_goes_on_when_it_is_resumed() {
        let Some(mut server) = TestPostgres::start() else { return };
        server.pause();
        assert!(server.processes().len() > 1);
        server.resume();
        assert_eq!(server.sql("SELECT 1"), "1");
        server.pause();
        server.kill();
        assert!(server.processes().is_empty());
    }

    #[test]
    #[ignore = "full: PostgreSQL"]
    fn the_guard_removes_a_server_whose_test_is_killed() {
        let Some(mut server) = TestPostgres::start() else { return };
        server.pause();
        // The kernel does this when the test process ends.
        drop(server.guard.stdin.take());
        server.wait_for("the guard", |server| !matches!(server.guard.try_wait(), Ok(None)));
        assert!(server.has_exited() && !is_listening(server.port()) && !server.folder.path().exists());
    }
}
