//! End processes whose warden cannot: help a warden that does not answer, and end and reap what a lost warden left.
//!
//! The daemon is a sub-reaper: it inherits the processes of a warden that ends before them. It waits for them by pid,
//! never for "any child", so that other code in this process does not lose its own children.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpid, kill_process_group, waitpid};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::process_tree::{self, ChildLookup, ProcDirectory, ProcessStat, SignalOutcome};
use super::{RUN_ID_VARIABLE, live_wardens};

/// Time for SIGKILL to work before the rest is given up as leftovers. Below the hard limit of a stop.
const KILL_TIMEOUT: Duration = Duration::from_millis(4000);
/// First and longest pause between two passes.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// After so many scans that find the same living processes, these are given up.
const MAX_UNCHANGED_SCANS: u32 = 5;

/// Kills what is alive below a warden that was told to stop and may be stuck. False when nothing was.
pub(super) fn kill_descendants(warden: Pid) -> bool {
    let pass =
        process_tree::signal_descendants(&ChildLookup::cheapest(getpid()), warden, &HashSet::new(), Signal::KILL);
    !(pass.sent.is_empty() && pass.refused.is_empty())
}

#[derive(Debug)]
pub(super) struct LostWarden<'a> {
    pub(super) warden: Pid,
    pub(super) leader: Option<Pid>,
    pub(super) run_id: Option<&'a [u8]>,
}

/// Result of the take-over of a lost warden's command.
#[derive(Debug, Default)]
pub(super) struct TakeOverOutcome {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// Processes that were ended or reaped, without the leader.
    pub(super) swept: u32,
    /// Processes that could not be ended, with a text that names each.
    pub(super) leftovers: Vec<(Pid, String)>,
}

/// True when the daemon has inherited orphans. Cheap: the kernel gives them to the daemon's first thread, and wardens
/// are usually children of other threads.
pub(super) fn has_orphans(lost: &LostWarden<'_>) -> bool {
    let own_pid = getpid();
    let of_first_thread = fs::read_to_string(format!("/proc/{own_pid}/task/{own_pid}/children")).ok();
    let Some(children) = of_first_thread else { return true };
    children
        .split_ascii_whitespace()
        .filter_map(process_tree::parse_pid)
        .any(|pid| process_tree::read_stat(pid).is_some_and(|stat| is_orphan(pid, &stat, lost)))
}

/// Ends and reaps all processes that a lost warden left.
///
/// # Cancel safety
/// Dropping it leaves processes alive. It runs in the watch task, which nothing drops.
pub(super) async fn end_orphans(lost: &LostWarden<'_>) -> TakeOverOutcome {
    let mut outcome = TakeOverOutcome::default();
    let mut swept = HashSet::new();
    let mut pause = RETRY_PAUSES.0;
    let mut give_up = GiveUpTimer::new();
    let proc_directory = ProcDirectory::open();
    loop {
        let mut scan = scan_and_kill(lost, &ChildLookup::cheapest(getpid()).children(getpid()), &mut swept);
        if scan.is_clear() {
            // A parent's `children` file can miss a child while another one exits. The full scan of /proc is exact.
            scan = scan_and_kill(lost, &proc_directory.children(), &mut swept);
        }
        if let Some((code, signal)) = scan.leader {
            (outcome.code, outcome.signal) = (code, signal);
        }
        if scan.is_clear() {
            break;
        }
        if let Some(survivors) = give_up.survivors_after_timeout(&scan) {
            for (pid, refused) in survivors {
                swept.remove(&pid);
                live_wardens::mark_unkillable(pid);
                outcome.leftovers.push((pid, process_tree::describe_leftover(pid, refused)));
            }
            break;
        }
        if scan.reaped == 0 {
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSES.1);
        } else {
            yield_now().await;
        }
    }
    swept.extend(lost.leader);
    let others = swept.len() - usize::from(lost.leader.is_some());
    outcome.swept = u32::try_from(others).unwrap_or(u32::MAX);
    outcome
}

/// Decides when to give up: after a time limit, or when the same processes survive several signals.
struct GiveUpTimer {
    deadline: Instant,
    last_living: Vec<(Pid, u64)>,
    unchanged_scans: u32,
}

impl GiveUpTimer {
    fn new() -> Self {
        Self { deadline: Instant::now() + KILL_TIMEOUT, last_living: Vec::new(), unchanged_scans: 0 }
    }

    /// Returns the survivors once it is time to give up, each with whether the kernel refused to signal it. A process
    /// that appeared a moment ago is no survivor: it will die of the signal that it has just got.
    fn survivors_after_timeout(&mut self, scan: &OrphanScan) -> Option<Vec<(Pid, bool)>> {
        let mut living_now: Vec<(Pid, u64)> = scan.living.iter().map(|living| (living.pid, living.started)).collect();
        living_now.sort_unstable_by_key(|(pid, started)| (pid.as_raw_nonzero(), *started));
        self.unchanged_scans =
            if scan.reaped == 0 && living_now == self.last_living { self.unchanged_scans + 1 } else { 0 };
        let before: HashMap<Pid, u64> = std::mem::replace(&mut self.last_living, living_now).into_iter().collect();
        let expired = Instant::now() > self.deadline;
        if self.unchanged_scans < MAX_UNCHANGED_SCANS && !expired {
            return None;
        }
        let all = scan.living.iter();
        let survivors = all.clone().filter(|living| before.get(&living.pid) == Some(&living.started));
        let named = |living: &LivingOrphan| (living.pid, living.is_refused);
        let survivors: Vec<_> = survivors.map(named).collect();
        // Never empty: something is alive.
        Some(if survivors.is_empty() { all.map(named).collect() } else { survivors })
    }
}

/// Result of one scan of the daemon's children.
#[derive(Debug, Default)]
struct OrphanScan {
    reaped: usize,
    leader: Option<(Option<i32>, Option<i32>)>,
    living: Vec<LivingOrphan>,
}

#[derive(Debug)]
struct LivingOrphan {
    pid: Pid,
    started: u64,
    is_refused: bool,
}

impl OrphanScan {
    fn is_clear(&self) -> bool {
        self.reaped == 0 && self.living.is_empty()
    }
}

fn scan_and_kill(lost: &LostWarden<'_>, children: &[Pid], swept: &mut HashSet<Pid>) -> OrphanScan {
    let own_pid = getpid();
    let family = BTreeSet::from([own_pid.as_raw_nonzero().get()]);
    let listing = ChildLookup::cheapest(own_pid);
    let mut groups: HashSet<Pid> = getpgid(None).into_iter().collect();
    let mut scan = OrphanScan::default();
    let _start_guard = live_wardens::block_starts();
    for pid in children.iter().copied() {
        let Some(stat) = process_tree::read_stat(pid) else { continue };
        if !is_orphan(pid, &stat, lost) {
            continue;
        }
        if stat.is_dead() {
            if let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG) {
                scan.reaped += 1;
                swept.insert(pid);
                if Some(pid) == lost.leader {
                    scan.leader = Some((status.exit_status(), status.terminating_signal()));
                }
            }
            continue;
        }
        // Signal the orphan first, so that it does not see its children die. Children that it loses meanwhile are
        // found by the next scan.
        let signalled = process_tree::signal_member(pid, &family, Signal::KILL);
        if let Some(group) = Pid::from_raw(stat.process_group).filter(|group| groups.insert(*group)) {
            // The kernel signals a whole group at once, so that a fork storm inside of it cannot outrun the signal.
            // The living child keeps the group's number in use, and the whole group is in the orphan's session.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let pass = process_tree::signal_descendants(&listing, pid, &HashSet::new(), Signal::KILL);
        swept.extend(pass.sent);
        scan.living.push(LivingOrphan {
            pid,
            started: stat.start_ticks,
            is_refused: signalled == SignalOutcome::Refused,
        });
    }
    scan
}

/// True for a child of the daemon that a lost warden left: one with that warden's session or run id, or one in
/// another session that is no registered warden. This process cannot have started the latter itself.
fn is_orphan(pid: Pid, stat: &ProcessStat, lost: &LostWarden<'_>) -> bool {
    if live_wardens::is_warden_or_unkillable(pid) {
        return false;
    }
    if Some(pid) == lost.leader || stat.session == lost.warden.as_raw_nonzero().get() {
        return true;
    }
    if lost.run_id.is_some_and(|run_id| environment_has_run_id(pid, run_id)) {
        return true;
    }
    // Not getsid(2): it returns 0 for a session that began outside of this container, and 0 is no valid pid.
    process_tree::read_stat(getpid()).is_some_and(|own| own.session != stat.session)
}

fn environment_has_run_id(pid: Pid, run_id: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(RUN_ID_VARIABLE.as_bytes())?.strip_prefix(b"="))
        .any(|value| value == run_id)
}
