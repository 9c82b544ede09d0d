//! The wardens of this process, by the births that it has seen: whoever else is a child of this process is none, whatever
//! program it runs. The list is that of the process and not of a [`super::Wardens`], as the children are.

use std::collections::HashSet;
use std::io;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

/// Read while a warden is born, written by a look for orphans: so that no warden is half born while it looks.
static BEING_BORN: RwLock<()> = RwLock::new(());
static WARDENS: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);
/// Processes that could not be ended: they are named already, and reaped when somebody ends them.
static OUTLIVING: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);

/// Notes the warden that `start` makes.
pub(super) fn note(start: impl FnOnce() -> io::Result<Pid>) -> io::Result<Pid> {
    let _no_look = BEING_BORN.read().unwrap_or_else(PoisonError::into_inner);
    let pid = start()?;
    locked(&WARDENS).insert(pid);
    Ok(pid)
}

/// Reaps a warden that is over, and says how it ended.
pub(super) fn forget(pid: Pid) -> Option<WaitStatus> {
    // Reaped first: as long as it is in the list, nobody takes it for an orphan.
    let ended = waitpid(Some(pid), WaitOptions::NOHANG).ok().flatten();
    locked(&WARDENS).remove(&pid);
    Some(ended?.1)
}

/// Notes a warden that nobody watches.
pub(super) fn abandon(pid: Pid) {
    outlives(pid);
    locked(&WARDENS).remove(&pid);
}

/// Notes a process that could not be ended.
pub(super) fn outlives(pid: Pid) {
    locked(&OUTLIVING).insert(pid);
}

/// True for a living warden, and for a process that has been given up by name.
pub(super) fn knows(pid: Pid) -> bool {
    locked(&WARDENS).contains(&pid) || locked(&OUTLIVING).contains(&pid)
}

/// Keeps wardens from being born while it is held.
pub(super) fn pause() -> RwLockWriteGuard<'static, ()> {
    BEING_BORN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps those that have ended although they had been given up.
pub(super) fn reap_outliving() {
    locked(&OUTLIVING).retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
