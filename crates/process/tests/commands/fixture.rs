//! Fixture for commands: a scope, a run id, and checks of /proc.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quell_kernel::StopTimeouts;
use quell_process::{CommandSpec, Isolate, OutputSink, ProcessEnd, RUN_ID_VARIABLE, SpawnError, WardenExe, Wardens};
use quell_protocol::ToolOutputStream;
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope, StopLevel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinHandle;

pub(crate) const WARDEN_BINARY: &str = env!("CARGO_BIN_EXE_process-test-warden");

/// Tests of one process run one after the other, because they count descriptors, children and milliseconds.
static SERIAL_TESTS: Mutex<()> = Mutex::const_new(());

pub(crate) struct CommandFixture {
    pub(crate) wardens: Wardens,
    pub(crate) scope: Scope,
    pub(crate) run_id: String,
    pub(crate) isolate: Isolate,
    _serial_guard: Option<MutexGuard<'static, ()>>,
}

pub(crate) struct StartedScript {
    pub(crate) handle: JoinHandle<Result<ProcessEnd, SpawnError>>,
    pub(crate) output: watch::Receiver<String>,
}

impl CommandFixture {
    pub(crate) async fn new() -> Self {
        let serial_guard = SERIAL_TESTS.lock().await;
        Self { _serial_guard: Some(serial_guard), ..Self::with(new_wardens()) }
    }

    /// Creates wardens with an hour between SIGTERM and SIGKILL, and half an hour before the second SIGTERM: a wait that
    /// should not happen does not end.
    pub(crate) async fn with_long_grace() -> Self {
        Self::with_grace(Duration::from_secs(3600)).await
    }

    /// Creates wardens with this time between SIGTERM and SIGKILL; half of it passes before the second SIGTERM.
    pub(crate) async fn with_grace(term: Duration) -> Self {
        let serial_guard = SERIAL_TESTS.lock().await;
        let times = StopTimeouts { term, grace: 2 * term, ..StopTimeouts::default() };
        let wardens = Wardens::new(WardenExe::Path(WARDEN_BINARY.into()), times).unwrap();
        Self { _serial_guard: Some(serial_guard), ..Self::with(wardens) }
    }

    pub(crate) async fn isolating() -> Self {
        Self::with_isolation(Isolate::Pid).await
    }

    pub(crate) async fn with_isolation(isolate: Isolate) -> Self {
        Self { isolate, ..Self::new().await }
    }

    fn with(wardens: Wardens) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let run_id = format!("proc-test-{}-{number}", std::process::id());
        Self { wardens, scope, run_id, isolate: Isolate::None, _serial_guard: None }
    }

    /// Wardens whose lifetime limit nobody has set, with a new scope and run id.
    pub(crate) fn with_new_wardens(&self) -> Self {
        Self { isolate: self.isolate, ..Self::with(new_wardens()) }
    }

    /// The same wardens with a new scope and run id.
    pub(crate) fn with_new_scope(&self) -> Self {
        Self { isolate: self.isolate, ..Self::with(self.wardens.clone()) }
    }

    pub(crate) fn spec(&self, script: &str) -> CommandSpec {
        let path = std::env::var_os("PATH").unwrap_or_default();
        CommandSpec {
            argv: vec!["sh".into(), "-c".into(), script.into()],
            label: script.to_owned(),
            cwd: std::env::temp_dir(),
            env: vec![("PATH".into(), path), (RUN_ID_VARIABLE.into(), self.run_id.clone().into())],
            timeout: None,
            output_limit: 64 * 1024,
            isolate: self.isolate,
            sandbox: None,
            network: None,
            session_network: None,
        }
    }

    pub(crate) async fn run_script(&self, script: &str) -> ProcessEnd {
        self.run_spec(&self.spec(script)).await.unwrap()
    }

    /// Runs a command to its end; then no process of it may be alive.
    pub(crate) async fn run_spec(&self, spec: &CommandSpec) -> Result<ProcessEnd, SpawnError> {
        let (mut sink, _) = WatchedOutput::new();
        let end = self.wardens.run(spec, &self.scope, &mut sink).await;
        self.assert_gone();
        end
    }

    pub(crate) fn start_script(&self, script: &str) -> StartedScript {
        self.start_spec(self.spec(script))
    }

    pub(crate) fn start_spec(&self, spec: CommandSpec) -> StartedScript {
        let (wardens, scope) = (self.wardens.clone(), self.scope.clone());
        let (mut sink, seen) = WatchedOutput::new();
        let handle = tokio::spawn(async move { wardens.run(&spec, &scope, &mut sink).await });
        StartedScript { handle, output: seen }
    }

    /// Starts a command, waits until it has printed `ready`, and stops it. Returns the time until all processes have
    /// ended.
    pub(crate) async fn run_and_stop(&self, script: &str, level: StopLevel) -> (ProcessEnd, Duration) {
        let mut running = self.start_script(script);
        running.wait_for_output("ready").await;
        let asked = Instant::now();
        self.scope.stop(level);
        let end = running.handle.await.unwrap().unwrap();
        let took = asked.elapsed();
        self.assert_gone();
        (end, took)
    }

    /// Returns the warden of the one command in this scope, once the ledger has the command's pid.
    pub(crate) async fn warden_pid(&self) -> Pid {
        loop {
            let rows = self.scope.ledger().rows();
            if let Some(facts) = rows.last().and_then(|row| row.process.as_ref()) {
                return child_ancestor_of(facts.pid);
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn assert_gone(&self) {
        assert_eq!(processes_with_run_id(&self.run_id), Vec::<String>::new(), "processes of the run are alive");
        assert_eq!(self.scope.ledger().open_count(), 0, "the ledger still holds something");
        assert_eq!(zombies(), HashSet::new(), "zombies");
    }
}

fn new_wardens() -> Wardens {
    Wardens::new(WardenExe::Path(WARDEN_BINARY.into()), StopTimeouts::default()).unwrap()
}

impl StartedScript {
    /// Waits until the output contains `text`; returns all of it.
    pub(crate) async fn wait_for_output(&mut self, text: &str) -> String {
        let seen = self.output.wait_for(|seen| seen.contains(text));
        seen.await.unwrap_or_else(|_| panic!("the command ended before it printed {text:?}")).clone()
    }

    /// Returns the pids that the command printed as `pid=N`.
    pub(crate) async fn printed_pids(&mut self) -> Vec<Pid> {
        let seen = self.wait_for_output("ready").await;
        let numbers = seen.lines().filter_map(|line| line.strip_prefix("pid=")?.trim().parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    }
}

pub(crate) struct WatchedOutput(Arc<watch::Sender<String>>);

impl WatchedOutput {
    pub(crate) fn new() -> (Self, watch::Receiver<String>) {
        let (sender, receiver) = watch::channel(String::new());
        (Self(Arc::new(sender)), receiver)
    }
}

impl OutputSink for WatchedOutput {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        self.0.send_modify(|seen| seen.push_str(text));
    }
}

/// Lets this much time pass at once for the daemon's side, in a test whose runtime has one thread. The clock of wardens
/// goes on as before.
pub(crate) async fn skip_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Prints a measured time beside the floor of this moment: the cost of starting and ending one process, the worst of three.
pub(crate) fn report_time(what: &str, took: Duration) {
    let one = |_| {
        let begun = Instant::now();
        let status = std::process::Command::new("sh").args(["-c", ":"]).status().unwrap();
        assert!(status.success(), "{status}");
        begun.elapsed()
    };
    let floor = (0..3).map(one).max().unwrap_or_default();
    eprintln!("{what}: {took:.1?}; one process: {floor:.1?}");
}

/// Lists each living process with this run id in its environment, with its command line.
pub(crate) fn processes_with_run_id(run_id: &str) -> Vec<String> {
    let entry = format!("{RUN_ID_VARIABLE}={run_id}");
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|have| have == entry.as_bytes()) {
            let command = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            found.push(format!("{} {}", process.file_name().display(), command.replace('\0', " ")));
        }
    }
    found
}

pub(crate) fn child_pids(parent: Pid) -> HashSet<Pid> {
    let mut found = HashSet::new();
    for task in fs::read_dir(format!("/proc/{parent}/task")).unwrap().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    found
}

/// Children of this process that are not reaped.
fn zombies() -> HashSet<Pid> {
    let mut children = child_pids(rustix::process::getpid());
    children.retain(|pid| stat_field(pid, 0) == "Z");
    children
}

/// Returns a field of `/proc/PID/stat` after the name: 0 is the state, 1 the parent. Empty when the process is gone.
pub(crate) fn stat_field(pid: impl std::fmt::Display, field: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    rest.split_whitespace().nth(field).unwrap_or_default().to_owned()
}

/// Returns the nearest ancestor of a process that is a child of this one.
fn child_ancestor_of(pid: u32) -> Pid {
    let me = std::process::id().to_string();
    let mut at = pid.to_string();
    loop {
        let parent = stat_field(&at, 1);
        assert!(!parent.is_empty() && parent != "1", "pid {pid} is none of ours");
        if parent == me {
            return Pid::from_raw(at.parse().unwrap()).unwrap();
        }
        at = parent;
    }
}

/// Waits at most five seconds for the death of a process.
pub(crate) fn wait_for_death(pid: Pid) {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let limit = Timespec::try_from(Duration::from_secs(5)).unwrap();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "pid {pid} is alive");
}
