//! The limit of open files, and the descriptors that are kept back for stops.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are kept back for stops by TCP and by the Unix socket.
pub(super) const KEPT_FOR_TCP: usize = 8;
pub(super) const KEPT_FOR_LOCAL: usize = 8;
/// More than this is not asked for: programs that close every descriptor up to the limit would take long under it.
const ENOUGH: u64 = 1 << 16;

/// The limit of open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// As it was found.
    pub before: u64,
    /// As it is now.
    pub now: u64,
}

/// Raises the soft limit of open files as far as the hard one and common sense allow. That takes no rights.
///
/// # Errors
/// What the kernel says.
pub fn raise_open_files() -> io::Result<OpenFiles> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current.unwrap_or(u64::MAX);
    let wanted = maximum.unwrap_or(u64::MAX).min(ENOUGH);
    if wanted <= before {
        return Ok(OpenFiles { before, now: before });
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    Ok(OpenFiles { before, now: wanted })
}

/// The soft limit of open files.
pub(super) fn soft_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// True when the limit was below what it may be, as another process of this user can set it, and was raised again.
pub(super) fn raised_again() -> bool {
    let raised = raise_open_files().is_ok_and(|limit| limit.now > limit.before);
    if raised {
        tracing::warn!("the limit of open files had been lowered from outside; it is raised again");
    }
    raised
}

/// True for the errors of a process or a machine that has no descriptors left.
pub(super) fn are_used_up(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Descriptors that are kept open for nothing, to be closed when one is needed.
#[derive(Debug)]
pub(super) struct Spares {
    most: usize,
    held: Mutex<Vec<OwnedFd>>,
}

impl Spares {
    pub(super) fn new(most: usize) -> Self {
        let spares = Self { most, held: Mutex::default() };
        spares.refill();
        spares
    }

    /// Closes one. False when there is none.
    pub(super) fn give_up(&self) -> bool {
        self.held().pop().is_some()
    }

    /// Opens those that are missing, as far as the system lets it.
    pub(super) fn refill(&self) {
        let mut held = self.held();
        while held.len() < self.most {
            let Ok(spare) = File::open("/dev/null") else { return };
            held.push(spare.into());
        }
    }

    fn held(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_given_up_one_by_one_and_taken_back() {
        let spares = Spares::new(2);
        assert_eq!([spares.give_up(), spares.give_up(), spares.give_up()], [true, true, false]);
        spares.refill();
        assert!(spares.give_up());
    }

    #[test]
    fn only_used_up_descriptors_count_as_used_up() {
        assert!(are_used_up(&Errno::MFILE.into()) && are_used_up(&Errno::NFILE.into()));
        assert!(!are_used_up(&Errno::CONNABORTED.into()) && !are_used_up(&io::Error::other("x")));
    }
}
