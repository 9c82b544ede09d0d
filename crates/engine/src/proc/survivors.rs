//! What is alive of a dead daemon's commands, and its end.
//!
//! Wardens end everything once their daemon is gone. Who killed a warden together with the daemon may have left processes that
//! belong to nobody: the next daemon finds them by the run in their environment, by the session of their warden, and, where a
//! warden was killed, by their birth and parentage. It ends those that are certain and names the others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use quell_protocol::RunId;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep};

use super::RUN_ID_VARIABLE;
use super::cgroup;
use super::record::Birth;
use super::tree::{self, Listing, Stat};

/// How long the wardens of a dead daemon may take. They kill at once; a busy machine takes some milliseconds for that.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long SIGKILL may take after that, and how long a process that may be somebody else's has to end before it is named.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// What a dead daemon left, by the run that had started it, in the words that a person needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survivors {
    /// Ended now.
    pub ended: BTreeMap<RunId, Vec<String>>,
    /// Alive: the kernel does not permit to end them, or it is not certain whose they are.
    pub alive: BTreeMap<RunId, Vec<String>>,
}

/// Waits for the wardens of the dead daemon, then ends what they have left of these runs.
///
/// # Cancel safety
/// Safe: what it has ended stays ended, and the rest is found again.
pub(super) async fn end_survivors(runs: &HashSet<&str>, births: &[Birth]) -> Survivors {
    wake_wardens(births);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && (!look(runs, births).is_empty() || births.iter().any(is_alive)) {
        sleep(PAUSE).await;
    }
    cgroup::kill_abandoned();
    let mut survivors = Survivors::default();
    let mut ended = BTreeSet::new();
    let until = Instant::now() + KILL_PATIENCE;
    let left = loop {
        let found = look(runs, births);
        let doomed: Vec<&Found> = found.iter().filter(|found| found.certain).collect();
        // What may be somebody else's is looked at again, too: the orphans of another daemon that died mostly end by themselves.
        if found.is_empty() || Instant::now() > until {
            break found;
        }
        for found in doomed {
            if kill(found) && ended.insert((found.pid.as_raw_nonzero(), found.started)) {
                let name = format!("pid {} ({})", found.pid, found.name);
                survivors.ended.entry(found.run.clone()).or_default().push(name);
            }
        }
        sleep(PAUSE).await;
    };
    for found in left {
        let why = if found.certain { "outlived the daemon that started it" } else { UNCERTAIN };
        let name = format!("pid {} ({}), {why}", found.pid, found.name);
        survivors.alive.entry(found.run).or_default().push(name);
    }
    survivors
}

/// Said of a process that was not ended because it may be somebody else's.
const UNCERTAIN: &str =
    "may be of this run: it began after the run's command and its parent is gone; end it if you do not know it";

/// A process that lives.
#[derive(Debug)]
struct Found {
    pid: Pid,
    started: u64,
    name: String,
    run: RunId,
    /// False when it may be somebody else's.
    certain: bool,
}

/// Somebody may have stopped a warden with SIGSTOP before the daemon was killed.
fn wake_wardens(births: &[Birth]) {
    for birth in births {
        signal((birth.warden, birth.started), Signal::CONT);
    }
}

fn is_alive(birth: &Birth) -> bool {
    tree::stat(birth.warden).is_some_and(|stat| stat.started == birth.started && !stat.is_dead())
}

fn kill(found: &Found) -> bool {
    signal((found.pid, found.started), Signal::KILL)
}

/// Signals the process of this number and time of birth, and no other. False when it is gone or the kernel refuses.
fn signal((pid, started): (Pid, u64), signal: Signal) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    tree::stat(pid).is_some_and(|stat| stat.started == started) && pidfd_send_signal(process, signal).is_ok()
}

fn look(runs: &HashSet<&str>, births: &[Birth]) -> Vec<Found> {
    if runs.is_empty() && births.is_empty() {
        return Vec::new();
    }
    let orphans = Orphans::of(births);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(tree::parse_pid) else { continue };
        let Some(stat) = tree::stat(pid).filter(|stat| !stat.is_dead()) else { continue };
        let proven = run_in_environment(pid).filter(|run| runs.contains(run.as_str()));
        let proven = proven.or_else(|| run_of_session(&stat, births));
        let certain = proven.is_some() || orphans.are_all_ours;
        let Some(run) = proven.or_else(|| orphans.run_of(pid, &stat, births)) else { continue };
        found.push(Found { pid, started: stat.started, name: stat.name, run, certain });
    }
    let below = found.iter().filter(|found| found.certain).flat_map(|found| below(found, &found.run));
    let known: HashSet<Pid> = found.iter().map(|found| found.pid).collect();
    let below: Vec<Found> = below.filter(|below| !known.contains(&below.pid)).collect();
    found.extend(below);
    found
}

fn below(found: &Found, run: &RunId) -> Vec<Found> {
    let named = |pid: Pid| {
        let stat = tree::stat(pid).filter(|stat| !stat.is_dead())?;
        Some(Found { pid, started: stat.started, name: stat.name, run: run.clone(), certain: true })
    };
    Listing::cheapest(getpid()).descendants(found.pid).into_iter().filter_map(named).collect()
}

/// The run in whose name a process was started. A process that is over has no environment any more.
fn run_in_environment(pid: Pid) -> Option<RunId> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let id = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(RUN_ID_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    RunId::parse(std::str::from_utf8(id).ok()?).ok()
}

/// The run of the warden whose session this is. Its number is not given to anybody else while the session has a process.
fn run_of_session(stat: &Stat, births: &[Birth]) -> Option<RunId> {
    let of_session = |birth: &&Birth| birth.warden.as_raw_nonzero().get() == stat.session;
    births.iter().find(of_session).filter(|birth| stat.started >= birth.started)?.run.clone()
}

/// How processes are told that have left their session, cleaned their environment, and lost their parent.
struct Orphans {
    user: u32,
    session: i32,
    adopters: HashSet<i32>,
    own_cgroup: String,
    /// The daemon has a cgroup of its own, as a service has: whoever is an orphan in it is the daemon's.
    are_all_ours: bool,
    /// Before this no command of a killed warden was started; none where no warden was killed.
    since: Option<u64>,
}

impl Orphans {
    fn of(births: &[Birth]) -> Self {
        let own_cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path = own_cgroup.lines().find_map(|line| line.strip_prefix("0::"));
        Self {
            user: geteuid().as_raw(),
            session: tree::stat(getpid()).map_or(0, |own| own.session),
            adopters: ancestors(),
            are_all_ours: path.is_some_and(|path| path.ends_with(".service")),
            since: births.iter().filter(|birth| !is_alive(birth)).map(|birth| birth.started).min(),
            own_cgroup,
        }
    }

    fn run_of(&self, pid: Pid, stat: &Stat, births: &[Birth]) -> Option<RunId> {
        let is_one = stat.started >= self.since?
            && stat.session != self.session
            && self.adopters.contains(&stat.parent)
            && fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == self.user)
            && fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|found| found == self.own_cgroup);
        let last = births.iter().filter(|birth| birth.started <= stat.started).max_by_key(|birth| birth.started);
        last.filter(|_| is_one)?.run.clone()
    }
}

/// Who takes orphans in: process 1, or a sub-reaper above this process, such as the manager of a user's services.
fn ancestors() -> HashSet<i32> {
    let mut found = HashSet::from([1]);
    let mut next = tree::stat(getpid()).map(|own| own.parent);
    while let Some(parent) = next.filter(|parent| *parent > 1 && found.insert(*parent)) {
        next = Pid::from_raw(parent).and_then(tree::stat).map(|stat| stat.parent);
    }
    found
}
