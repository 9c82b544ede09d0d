//! What the daemon does for wardens that cannot: it helps one that does not answer, and ends and reaps what a lost one left.
//!
//! The daemon is a sub-reaper: the processes of a warden that ends before them become its children. They are waited for by
//! number, never "any child", so no other waiting in this process loses its own.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpid, kill_process_group, waitpid};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::tree::{self, Census, Listing, Signalled, Stat};
use super::{RUN_ID_VARIABLE, births};

/// How long SIGKILL may take before what is left is given up by name. Below the hard limit of a stop.
const PATIENCE: Duration = Duration::from_millis(4000);
/// Between two passes, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// Looks that find the same processes alive, after which these are given up.
const SAME_LOOKS: u32 = 5;

/// Kills what is alive below a warden that was told to and may be stuck. False when there was nothing.
pub(super) fn help(warden: Pid) -> bool {
    let pass = tree::signal_descendants(&Listing::cheapest(getpid()), warden, &HashSet::new(), Signal::KILL);
    !(pass.sent.is_empty() && pass.refused.is_empty())
}

/// A warden that has ended.
#[derive(Debug)]
pub(super) struct Lost<'a> {
    pub(super) warden: Pid,
    pub(super) leader: Option<Pid>,
    pub(super) run_id: Option<&'a [u8]>,
}

/// What was found of a lost warden's command.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// Processes that were ended or reaped, the leader not counted.
    pub(super) swept: u32,
    /// What could not be ended.
    pub(super) leftovers: Vec<(Pid, String)>,
}

/// True when processes have come up to the daemon. Cheap: they come to its first thread, and wardens are children of others as
/// a rule.
pub(super) fn any(lost: &Lost<'_>) -> bool {
    let me = getpid();
    let of_first_thread = fs::read_to_string(format!("/proc/{me}/task/{me}/children")).ok();
    let Some(children) = of_first_thread else { return true };
    children
        .split_ascii_whitespace()
        .filter_map(tree::parse_pid)
        .any(|pid| tree::stat(pid).is_some_and(|stat| is_orphan(pid, &stat, lost)))
}

/// Ends and reaps everything that a lost warden left.
///
/// # Cancel safety
/// Dropping it leaves processes alive; it runs in the watching task, which nothing drops.
pub(super) async fn take_over(lost: &Lost<'_>) -> Taken {
    let mut taken = Taken::default();
    let mut swept = HashSet::new();
    let mut pause = PAUSES.0;
    let mut patience = Patience::new();
    let census = Census::open();
    loop {
        let mut look = look(lost, &Listing::cheapest(getpid()).children(getpid()), &mut swept);
        if look.is_clear() {
            // The files of a parent may miss a child while another one ends: the kernel's own answer is exact.
            look = self::look(lost, &census.children(), &mut swept);
        }
        if let Some((code, signal)) = look.leader {
            (taken.code, taken.signal) = (code, signal);
        }
        if look.is_clear() {
            break;
        }
        if let Some(stayed) = patience.is_over(&look) {
            for (pid, refused) in stayed {
                swept.remove(&pid);
                births::outlives(pid);
                taken.leftovers.push((pid, tree::describe(pid, refused)));
            }
            break;
        }
        if look.reaped == 0 {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        } else {
            yield_now().await;
        }
    }
    swept.extend(lost.leader);
    let others = swept.len() - usize::from(lost.leader.is_some());
    taken.swept = u32::try_from(others).unwrap_or(u32::MAX);
    taken
}

/// When to stop trying: after a time, or when the same processes stay whatever is sent to them.
struct Patience {
    until: Instant,
    last: Vec<(Pid, u64)>,
    same: u32,
}

impl Patience {
    fn new() -> Self {
        Self { until: Instant::now() + PATIENCE, last: Vec::new(), same: 0 }
    }

    /// What has stayed, and whether the kernel refused to signal it, once it is time to give up. A process that came a moment
    /// ago is no leftover: it dies of the signal that it has just got.
    fn is_over(&mut self, look: &Look) -> Option<Vec<(Pid, bool)>> {
        let mut now: Vec<(Pid, u64)> = look.living.iter().map(|living| (living.pid, living.started)).collect();
        now.sort_unstable_by_key(|(pid, started)| (pid.as_raw_nonzero(), *started));
        self.same = if look.reaped == 0 && now == self.last { self.same + 1 } else { 0 };
        let before: HashMap<Pid, u64> = std::mem::replace(&mut self.last, now).into_iter().collect();
        let expired = Instant::now() > self.until;
        if self.same < SAME_LOOKS && !expired {
            return None;
        }
        let all = look.living.iter();
        let stayed = all.clone().filter(|living| before.get(&living.pid) == Some(&living.started));
        let named = |living: &Living| (living.pid, living.refused);
        let stayed: Vec<_> = stayed.map(named).collect();
        // Never nothing: something is alive.
        Some(if stayed.is_empty() { all.map(named).collect() } else { stayed })
    }
}

/// What one look over the daemon's children found.
#[derive(Debug, Default)]
struct Look {
    reaped: usize,
    leader: Option<(Option<i32>, Option<i32>)>,
    living: Vec<Living>,
}

/// An orphan that is not over.
#[derive(Debug)]
struct Living {
    pid: Pid,
    started: u64,
    refused: bool,
}

impl Look {
    fn is_clear(&self) -> bool {
        self.reaped == 0 && self.living.is_empty()
    }
}

fn look(lost: &Lost<'_>, children: &[Pid], swept: &mut HashSet<Pid>) -> Look {
    let me = getpid();
    let family = BTreeSet::from([me.as_raw_nonzero().get()]);
    let listing = Listing::cheapest(me);
    let mut groups: HashSet<Pid> = getpgid(None).into_iter().collect();
    let mut look = Look::default();
    let _no_birth = births::pause();
    for pid in children.iter().copied() {
        let Some(stat) = tree::stat(pid) else { continue };
        if !is_orphan(pid, &stat, lost) {
            continue;
        }
        if stat.is_dead() {
            if let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG) {
                look.reaped += 1;
                swept.insert(pid);
                if Some(pid) == lost.leader {
                    look.leader = Some((status.exit_status(), status.terminating_signal()));
                }
            }
            continue;
        }
        // First itself, so that it does not see its children die; those that come up here meanwhile are for the next look.
        let signalled = tree::signal(pid, &family, Signal::KILL);
        if let Some(group) = Pid::from_raw(stat.group).filter(|group| groups.insert(*group)) {
            // The kernel does a group at once, so that a storm inside one cannot outrun it. Its number is pinned by this
            // child, and all of it is in the orphan's session.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let below = tree::signal_descendants(&listing, pid, &HashSet::new(), Signal::KILL);
        swept.extend(below.sent);
        look.living.push(Living { pid, started: stat.started, refused: signalled == Signalled::Refused });
    }
    look
}

/// True for a child of the daemon that a lost warden left: one of that warden's session or run, or one that this process cannot
/// have started itself, because it is in another session and no warden whose birth was noted.
fn is_orphan(pid: Pid, stat: &Stat, lost: &Lost<'_>) -> bool {
    if births::knows(pid) {
        return false;
    }
    if Some(pid) == lost.leader || stat.session == lost.warden.as_raw_nonzero().get() {
        return true;
    }
    if lost.run_id.is_some_and(|run_id| has_run_id(pid, run_id)) {
        return true;
    }
    // Not getsid(2): a session that began outside this container is 0 here, which is no number of a process.
    tree::stat(getpid()).is_some_and(|own| own.session != stat.session)
}

fn has_run_id(pid: Pid, run_id: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(RUN_ID_VARIABLE.as_bytes())?.strip_prefix(b"="))
        .any(|value| value == run_id)
}
