//! What the daemon does for wardens that cannot: it helps one that does not answer, and ends and reaps what a killed one left.
//!
//! A killed warden's processes become children of the daemon, which is a sub-reaper too. They are waited for by number, never
//! "any child", so no other waiting in this process loses its own.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, waitpid};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::RUN_ID_VARIABLE;
use super::launch::{self, Identity};
use super::tree::{self, Listing, Signalled, Stat};

/// How long SIGKILL may take before what is left is given up by name. Below the hard limit of a stop.
const PATIENCE: Duration = Duration::from_millis(4000);
/// Between two passes, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The wardens that live, and what is told apart from them.
#[derive(Debug)]
pub(super) struct Live {
    /// Written by the look for orphans, so that no warden is half born while it looks.
    births: RwLock<()>,
    wardens: Mutex<HashSet<Pid>>,
    /// Leftovers: whoever ends them some day, they are reaped here.
    outliving: Mutex<HashSet<Pid>>,
    executable: Identity,
}

impl Live {
    pub(super) fn new(executable: Identity) -> Self {
        Self { births: RwLock::default(), wardens: Mutex::default(), outliving: Mutex::default(), executable }
    }

    /// Notes the warden that `start` makes.
    pub(super) fn birth(&self, start: impl FnOnce() -> std::io::Result<Pid>) -> std::io::Result<Pid> {
        let _no_look = self.births.read().unwrap_or_else(PoisonError::into_inner);
        let pid = start()?;
        locked(&self.wardens).insert(pid);
        Ok(pid)
    }

    /// Reaps a warden that is over.
    pub(super) fn died(&self, pid: Pid) {
        // Reaped first: as long as it is in the set, nobody takes it for an orphan.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        locked(&self.wardens).remove(&pid);
    }

    /// Notes a warden that nobody watches.
    pub(super) fn abandoned(&self, pid: Pid) {
        locked(&self.outliving).insert(pid);
        locked(&self.wardens).remove(&pid);
    }

    /// Notes a process that could not be ended.
    pub(super) fn will_outlive(&self, pid: i32) {
        locked(&self.outliving).extend(Pid::from_raw(pid));
    }

    /// Reaps leftovers that have ended in the meantime.
    pub(super) fn reap_leftovers(&self) {
        locked(&self.outliving).retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills what is alive below a warden that was told to and may be stuck. False when there was nothing.
pub(super) fn help(warden: Pid) -> bool {
    let pass = tree::signal_descendants(&Listing::cheapest(getpid()), warden, &HashSet::new(), Signal::KILL);
    !(pass.sent.is_empty() && pass.refused.is_empty())
}

/// A warden that ended without a last word.
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
    pub(super) swept: u32,
    pub(super) leftovers: Vec<String>,
}

/// Ends and reaps everything that a killed warden left.
///
/// # Cancel safety
/// Dropping it leaves processes alive; it runs in the watching task, which nothing drops.
pub(super) async fn take_over(lost: &Lost<'_>, live: &Live) -> Taken {
    let mut taken = Taken::default();
    let mut swept = HashSet::new();
    let mut pause = PAUSES.0;
    let patience = Instant::now() + PATIENCE;
    loop {
        let look = look(lost, live, &mut swept);
        if let Some((code, signal)) = look.leader {
            (taken.code, taken.signal) = (code, signal);
        }
        if look.is_clear() {
            break;
        }
        if (look.sent == 0 && look.reaped == 0 && pause == PAUSES.1) || Instant::now() > patience {
            for (pid, refused) in look.living {
                swept.remove(&pid);
                live.will_outlive(pid.as_raw_nonzero().get());
                taken.leftovers.push(tree::describe(pid, refused));
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

/// What one look over the daemon's children found.
#[derive(Debug, Default)]
struct Look {
    sent: usize,
    reaped: usize,
    leader: Option<(Option<i32>, Option<i32>)>,
    /// Still there, and whether the kernel refused to signal it.
    living: Vec<(Pid, bool)>,
}

impl Look {
    fn is_clear(&self) -> bool {
        self.reaped == 0 && self.living.is_empty()
    }
}

fn look(lost: &Lost<'_>, live: &Live, swept: &mut HashSet<Pid>) -> Look {
    let me = getpid();
    let family = BTreeSet::from([me.as_raw_nonzero().get()]);
    let listing = Listing::cheapest(me);
    let mut look = Look::default();
    let _no_birth = live.births.write().unwrap_or_else(PoisonError::into_inner);
    for pid in listing.children(me) {
        let Some(stat) = tree::stat(pid) else { continue };
        if !is_orphan(pid, &stat, lost, live) {
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
        let below = tree::signal_descendants(&listing, pid, &HashSet::new(), Signal::KILL);
        look.sent += below.sent.len() + usize::from(signalled == Signalled::Sent);
        swept.extend(below.sent);
        look.living.push((pid, signalled == Signalled::Refused));
    }
    look
}

/// True for a child of the daemon that a killed warden left: one of the lost warden's session or run, or one that this
/// process cannot have started itself, because it is in another session and no warden.
fn is_orphan(pid: Pid, stat: &Stat, lost: &Lost<'_>, live: &Live) -> bool {
    if locked(&live.wardens).contains(&pid) || locked(&live.outliving).contains(&pid) {
        return false;
    }
    if Some(pid) == lost.leader || stat.session == lost.warden.as_raw_nonzero().get() {
        return true;
    }
    if lost.run_id.is_some_and(|run_id| has_run_id(pid, run_id)) {
        return true;
    }
    // Not getsid(2): a session that began outside this container is 0 here, which is no number of a process.
    let foreign = tree::stat(getpid()).is_some_and(|own| own.session != stat.session);
    let binary = Path::new("/proc").join(pid.to_string()).join("exe");
    foreign && launch::identity(&binary).ok() != Some(live.executable)
}

fn has_run_id(pid: Pid, run_id: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(RUN_ID_VARIABLE.as_bytes())?.strip_prefix(b"="))
        .any(|value| value == run_id)
}
