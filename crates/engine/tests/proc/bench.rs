//! The place where a command is tried: a scope of its own, a run id of its own, and eyes of its own on /proc.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quell_engine::clock::Clock;
use quell_engine::proc::{
    CommandSpec, Isolate, OutputSink, ProcessEnd, RUN_ID_VARIABLE, SpawnError, WardenExe, Wardens,
};
use quell_engine::scope::{Probe, Scope, StopLevel};
use quell_kernel::StopTimes;
use quell_protocol::ToolOutputStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinHandle;

pub(crate) const WARDEN: &str = env!("CARGO_BIN_EXE_engine-test-warden");

/// Tests of one process run one after the other: they count descriptors, children and milliseconds.
static ALONE: Mutex<()> = Mutex::const_new(());

pub(crate) struct Bench {
    pub(crate) wardens: Wardens,
    pub(crate) scope: Scope,
    pub(crate) run_id: String,
    pub(crate) isolate: Isolate,
    _alone: Option<MutexGuard<'static, ()>>,
}

/// A command that runs.
pub(crate) struct Running {
    pub(crate) handle: JoinHandle<Result<ProcessEnd, SpawnError>>,
    pub(crate) seen: watch::Receiver<String>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let alone = ALONE.lock().await;
        let wardens = Wardens::new(WardenExe::Path(WARDEN.into()), StopTimes::default()).unwrap();
        Self { _alone: Some(alone), ..Self::with(wardens) }
    }

    /// With wardens that wait 10 s between SIGTERM and SIGKILL, and half of it until the second round: what ends by SIGTERM has
    /// all the time that a busy machine needs, and what should not wait visibly does not.
    pub(crate) async fn patient() -> Self {
        let alone = ALONE.lock().await;
        let times =
            StopTimes { term: Duration::from_secs(10), grace: Duration::from_secs(120), ..StopTimes::default() };
        let wardens = Wardens::new(WardenExe::Path(WARDEN.into()), times).unwrap();
        Self { _alone: Some(alone), ..Self::with(wardens) }
    }

    pub(crate) async fn isolating() -> Self {
        Self { isolate: Isolate::Pid, ..Self::new().await }
    }

    fn with(wardens: Wardens) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scope = Scope::new(Clock::start(), Probe::default());
        let run_id = format!("proc-test-{}-{number}", std::process::id());
        Self { wardens, scope, run_id, isolate: Isolate::None, _alone: None }
    }

    /// The same wardens with another scope and run id.
    pub(crate) fn again(&self) -> Self {
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
        }
    }

    pub(crate) async fn run(&self, script: &str) -> ProcessEnd {
        self.run_spec(&self.spec(script)).await.unwrap()
    }

    /// Runs to the end; then nothing may be alive.
    pub(crate) async fn run_spec(&self, spec: &CommandSpec) -> Result<ProcessEnd, SpawnError> {
        let (mut sink, _) = Watched::new();
        let end = self.wardens.run(spec, &self.scope, &mut sink).await;
        self.assert_gone();
        end
    }

    pub(crate) fn start(&self, script: &str) -> Running {
        let (wardens, spec, scope) = (self.wardens.clone(), self.spec(script), self.scope.clone());
        let (mut sink, seen) = Watched::new();
        let handle = tokio::spawn(async move { wardens.run(&spec, &scope, &mut sink).await });
        Running { handle, seen }
    }

    /// Starts, waits until the command has printed `ready`, stops, and tells how long it took until nothing was alive.
    pub(crate) async fn stop(&self, script: &str, level: StopLevel) -> (ProcessEnd, Duration) {
        let mut running = self.start(script);
        running.until("ready").await;
        let asked = Instant::now();
        self.tell(level);
        let end = running.handle.await.unwrap().unwrap();
        let took = asked.elapsed();
        self.assert_gone();
        (end, took)
    }

    pub(crate) fn tell(&self, level: StopLevel) {
        match level {
            StopLevel::Gentle => self.scope.cancel(),
            StopLevel::Forced => self.scope.kill(),
        }
    }

    /// The warden of the one command that runs in this scope, once the ledger knows the command's number.
    pub(crate) async fn warden(&self) -> Pid {
        loop {
            let rows = self.scope.ledger().rows();
            if let Some(facts) = rows.last().and_then(|row| row.process.as_ref()) {
                return child_of_mine(facts.pid);
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn assert_gone(&self) {
        assert_eq!(with_run_id(&self.run_id), Vec::<String>::new(), "processes of the run are alive");
        assert_eq!(self.scope.ledger().open_count(), 0, "the ledger still holds something");
        assert_eq!(zombies(), BTreeSet::new(), "zombies");
    }
}

impl Running {
    /// Waits until the output holds `text`; returns all of it.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let seen = self.seen.wait_for(|seen| seen.contains(text));
        seen.await.unwrap_or_else(|_| panic!("the command ended before it printed {text:?}")).clone()
    }

    /// The numbers that the command printed as `pid=N`.
    pub(crate) async fn pids(&mut self) -> Vec<Pid> {
        let seen = self.until("ready").await;
        let numbers = seen.lines().filter_map(|line| line.strip_prefix("pid=")?.trim().parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    }
}

pub(crate) struct Watched(Arc<watch::Sender<String>>);

impl Watched {
    pub(crate) fn new() -> (Self, watch::Receiver<String>) {
        let (sender, receiver) = watch::channel(String::new());
        (Self(Arc::new(sender)), receiver)
    }
}

impl OutputSink for Watched {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        self.0.send_modify(|seen| seen.push_str(text));
    }
}

/// What the start and the end of one process cost on a machine that has nothing else to do, at most.
const IDLE: Duration = Duration::from_millis(3);

/// Tries up to three times, because other people's work on the same cores may be in the way of one try. The limit is that of
/// an idle machine: where one process takes a multiple of its time just now, the attempt may take that multiple, too.
pub(crate) async fn within<F: Future<Output = Duration>>(limit: Duration, mut attempt: impl FnMut() -> F) {
    let mut took = Vec::new();
    while took.len() < 3 {
        let before = floor();
        let time = attempt().await;
        let slower = before.max(floor()).as_secs_f64() / IDLE.as_secs_f64();
        let allowed = limit.mul_f64(slower.max(1.0));
        if time < allowed {
            return;
        }
        took.push((time, allowed));
    }
    panic!("three times over {limit:?}: {took:?}");
}

/// What the start and the end of one process cost now: the worst of three.
fn floor() -> Duration {
    let one = |_| {
        let begun = Instant::now();
        let status = std::process::Command::new("sh").args(["-c", ":"]).status().unwrap();
        assert!(status.success(), "{status}");
        begun.elapsed()
    };
    (0..3).map(one).max().unwrap_or_default()
}

/// Every living process with this run id in its environment, with its command line.
pub(crate) fn with_run_id(run_id: &str) -> Vec<String> {
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

/// Children of this process that nobody has reaped.
fn zombies() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter(|pid| stat_field(pid, 0) == "Z").map(str::to_owned));
    }
    found
}

/// A field of `/proc/PID/stat` after the name: 0 state, 1 parent. Empty when the process is gone.
pub(crate) fn stat_field(pid: impl std::fmt::Display, field: usize) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    rest.split_whitespace().nth(field).unwrap_or_default().to_owned()
}

/// The nearest ancestor of a process that is a child of this one.
fn child_of_mine(pid: u32) -> Pid {
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

/// Waits for the death of a process, at most five seconds.
pub(crate) fn wait_dead(pid: Pid) {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let limit = Timespec::try_from(Duration::from_secs(5)).unwrap();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "pid {pid} is alive");
}
