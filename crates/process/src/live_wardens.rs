//! The living wardens of this process. Any other child of this process is not a warden, whatever program it runs.
//!
//! The list belongs to the process and not to a [`super::Wardens`], because the children do, too.

use std::collections::HashSet;
use std::io;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

/// Read-locked while a warden is started, write-locked by a scan for orphans: a scan sees no warden that is not
/// registered yet.
static START_LOCK: RwLock<()> = RwLock::new(());
static LIVE_WARDENS: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);
/// Processes that could not be ended: they are named as leftovers already, and are reaped when somebody ends them.
static UNKILLABLE: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);

/// Starts a warden with `start` and registers it.
pub(super) fn start_and_register(start: impl FnOnce() -> io::Result<Pid>) -> io::Result<Pid> {
    let _start_guard = START_LOCK.read().unwrap_or_else(PoisonError::into_inner);
    let pid = start()?;
    lock(&LIVE_WARDENS).insert(pid);
    Ok(pid)
}

/// Reaps a warden that has ended, and returns its status.
pub(super) fn reap_warden(pid: Pid) -> Option<WaitStatus> {
    // Reaped before it is removed: as long as it is in the list, no scan takes it for an orphan.
    let ended = waitpid(Some(pid), WaitOptions::NOHANG).ok().flatten();
    lock(&LIVE_WARDENS).remove(&pid);
    Some(ended?.1)
}

/// Gives up a warden that no task watches.
pub(super) fn abandon(pid: Pid) {
    mark_unkillable(pid);
    lock(&LIVE_WARDENS).remove(&pid);
}

/// Registers a process that could not be ended.
pub(super) fn mark_unkillable(pid: Pid) {
    lock(&UNKILLABLE).insert(pid);
}

/// True for a living warden, and for a process that was given up as a leftover.
pub(super) fn is_warden_or_unkillable(pid: Pid) -> bool {
    lock(&LIVE_WARDENS).contains(&pid) || lock(&UNKILLABLE).contains(&pid)
}

/// Prevents the start of wardens while the guard is held.
pub(super) fn block_starts() -> RwLockWriteGuard<'static, ()> {
    START_LOCK.write().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps given-up processes that have ended since.
pub(super) fn reap_unkillable() {
    lock(&UNKILLABLE).retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
