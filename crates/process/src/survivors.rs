//! Find and end what is alive of a dead daemon's commands.
//!
//! Wardens end everything once their daemon is gone. If a warden was killed together with the daemon, processes may
//! be left. The next daemon finds them by the run id in their environment, by the session of their warden, and, where
//! a warden was killed, by their start time and parent. It ends those that certainly belong to a run, and names the
//! others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use quell_protocol::RunId;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep};

use super::RUN_ID_VARIABLE;
use super::cgroup;
use super::process_tree::{self, ChildLookup, ProcessStat};
use super::warden_record::UnfinishedWarden;

/// Time for the wardens of a dead daemon to finish. They kill at once, which takes some milliseconds on a busy machine.
const WARDEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for SIGKILL to work after that. A process that may belong to somebody else has the same time to end before it
/// is named.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
const SCAN_INTERVAL: Duration = Duration::from_millis(10);

/// Processes that a dead daemon left, by the run that started them. The texts are for people.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survivors {
    pub ended: BTreeMap<RunId, Vec<String>>,
    /// Still alive: the kernel does not permit to end them, or they may not belong to the run.
    pub alive: BTreeMap<RunId, Vec<String>>,
}

/// Waits for the wardens of the dead daemon, then ends what is left of these runs.
///
/// # Cancel safety
/// Safe: what it has ended stays ended, and a second call finds the rest.
pub(super) async fn end_survivors(runs: &HashSet<&str>, wardens: &[UnfinishedWarden]) -> Survivors {
    wake_wardens(wardens);
    let deadline = Instant::now() + WARDEN_TIMEOUT;
    while Instant::now() < deadline
        && (!find_survivors(runs, wardens).is_empty() || wardens.iter().any(is_warden_alive))
    {
        sleep(SCAN_INTERVAL).await;
    }
    cgroup::kill_orphaned_cgroups();
    let mut survivors = Survivors::default();
    let mut ended = BTreeSet::new();
    let deadline = Instant::now() + KILL_TIMEOUT;
    let remaining = loop {
        let candidates = find_survivors(runs, wardens);
        let to_kill: Vec<&Survivor> = candidates.iter().filter(|found| found.is_certain).collect();
        // Processes that may belong to somebody else are only checked again: orphans of another dead daemon usually
        // end by themselves.
        if candidates.is_empty() || Instant::now() > deadline {
            break candidates;
        }
        for survivor in to_kill {
            if kill_survivor(survivor) && ended.insert((survivor.pid.as_raw_nonzero(), survivor.started)) {
                let name = format!("pid {} ({})", survivor.pid, survivor.name);
                survivors.ended.entry(survivor.run.clone()).or_default().push(name);
            }
        }
        sleep(SCAN_INTERVAL).await;
    };
    for survivor in remaining {
        let why = if survivor.is_certain { "outlived the daemon that started it" } else { UNCERTAIN_TEXT };
        let name = format!("pid {} ({}), {why}", survivor.pid, survivor.name);
        survivors.alive.entry(survivor.run).or_default().push(name);
    }
    survivors
}

/// Text for a process that was not ended because it may belong to somebody else.
const UNCERTAIN_TEXT: &str =
    "may be of this run: it began after the run's command and its parent is gone; end it if you do not know it";

#[derive(Debug)]
struct Survivor {
    pid: Pid,
    started: u64,
    name: String,
    run: RunId,
    /// False when it may belong to somebody else.
    is_certain: bool,
}

/// Somebody may have stopped a warden with SIGSTOP before the daemon was killed.
fn wake_wardens(wardens: &[UnfinishedWarden]) {
    for entry in wardens {
        signal_exactly(entry.warden, entry.start_ticks, Signal::CONT);
    }
}

fn is_warden_alive(warden: &UnfinishedWarden) -> bool {
    process_tree::read_stat(warden.warden).is_some_and(|stat| stat.start_ticks == warden.start_ticks && !stat.is_dead())
}

fn kill_survivor(survivor: &Survivor) -> bool {
    signal_exactly(survivor.pid, survivor.started, Signal::KILL)
}

/// Signals the process with this pid and start time, and no other. False when it is gone or the kernel refuses.
fn signal_exactly(pid: Pid, started: u64, signal: Signal) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    process_tree::read_stat(pid).is_some_and(|stat| stat.start_ticks == started)
        && pidfd_send_signal(process, signal).is_ok()
}

fn find_survivors(runs: &HashSet<&str>, wardens: &[UnfinishedWarden]) -> Vec<Survivor> {
    if runs.is_empty() && wardens.is_empty() {
        return Vec::new();
    }
    let orphans = OrphanCriteria::for_wardens(wardens);
    let mut survivors = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(process_tree::parse_pid) else { continue };
        let Some(stat) = process_tree::read_stat(pid).filter(|stat| !stat.is_dead()) else { continue };
        let known_run = run_in_environment(pid).filter(|run| runs.contains(run.as_str()));
        let known_run = known_run.or_else(|| run_of_warden_session(&stat, wardens));
        let certain = known_run.is_some() || orphans.all_in_cgroup_are_ours;
        let Some(run) = known_run.or_else(|| orphans.likely_run_of(pid, &stat, wardens)) else { continue };
        survivors.push(Survivor { pid, started: stat.start_ticks, name: stat.name, run, is_certain: certain });
    }
    let descendants =
        survivors.iter().filter(|found| found.is_certain).flat_map(|found| descendants_of(found, &found.run));
    let known: HashSet<Pid> = survivors.iter().map(|found| found.pid).collect();
    let descendants: Vec<Survivor> = descendants.filter(|below| !known.contains(&below.pid)).collect();
    survivors.extend(descendants);
    survivors
}

fn descendants_of(survivor: &Survivor, run: &RunId) -> Vec<Survivor> {
    let named = |pid: Pid| {
        let stat = process_tree::read_stat(pid).filter(|stat| !stat.is_dead())?;
        Some(Survivor { pid, started: stat.start_ticks, name: stat.name, run: run.clone(), is_certain: true })
    };
    ChildLookup::cheapest(getpid()).descendants(survivor.pid).into_iter().filter_map(named).collect()
}

/// Returns the run id in a process's environment. A dead process has no environment.
fn run_in_environment(pid: Pid) -> Option<RunId> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let id = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(RUN_ID_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    RunId::parse(std::str::from_utf8(id).ok()?).ok()
}

/// Returns the run of the warden that leads this process's session. The pid is not reused while the session has a
/// process.
fn run_of_warden_session(stat: &ProcessStat, wardens: &[UnfinishedWarden]) -> Option<RunId> {
    let of_session = |entry: &&UnfinishedWarden| entry.warden.as_raw_nonzero().get() == stat.session;
    wardens.iter().find(of_session).filter(|entry| stat.start_ticks >= entry.start_ticks)?.run.clone()
}

/// Criteria for processes that have left their session, cleared their environment and lost their parent.
struct OrphanCriteria {
    user: u32,
    own_session: i32,
    adopter_pids: HashSet<i32>,
    own_cgroup: String,
    /// The daemon has a cgroup of its own, as a service has: all orphans in it come from the daemon.
    all_in_cgroup_are_ours: bool,
    /// Start time of the oldest killed warden; `None` where none was killed. Commands of killed wardens have started
    /// later.
    oldest_start: Option<u64>,
}

impl OrphanCriteria {
    fn for_wardens(wardens: &[UnfinishedWarden]) -> Self {
        let own_cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path = own_cgroup.lines().find_map(|line| line.strip_prefix("0::"));
        Self {
            user: geteuid().as_raw(),
            own_session: process_tree::read_stat(getpid()).map_or(0, |own| own.session),
            adopter_pids: adopter_pids(),
            all_in_cgroup_are_ours: path.is_some_and(|path| path.ends_with(".service")),
            oldest_start: wardens.iter().filter(|entry| !is_warden_alive(entry)).map(|entry| entry.start_ticks).min(),
            own_cgroup,
        }
    }

    fn likely_run_of(&self, pid: Pid, stat: &ProcessStat, wardens: &[UnfinishedWarden]) -> Option<RunId> {
        let is_orphan = stat.start_ticks >= self.oldest_start?
            && stat.session != self.own_session
            && self.adopter_pids.contains(&stat.parent)
            && fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == self.user)
            && fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|found| found == self.own_cgroup);
        let candidate =
            wardens.iter().filter(|entry| entry.start_ticks <= stat.start_ticks).max_by_key(|entry| entry.start_ticks);
        candidate.filter(|_| is_orphan)?.run.clone()
    }
}

/// Pids that inherit orphans: process 1, and sub-reapers above this process, such as a user's service manager.
fn adopter_pids() -> HashSet<i32> {
    let mut found = HashSet::from([1]);
    let mut next = process_tree::read_stat(getpid()).map(|own| own.parent);
    while let Some(parent) = next.filter(|parent| *parent > 1 && found.insert(*parent)) {
        next = Pid::from_raw(parent).and_then(process_tree::read_stat).map(|stat| stat.parent);
    }
    found
}
