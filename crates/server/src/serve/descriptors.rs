//! Raise the open file limit, and keep descriptors in reserve for stop requests.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of descriptors in reserve for stops, for each kind of listener.
pub(super) const RESERVED_FOR_TCP: usize = 8;
pub(super) const RESERVED_FOR_UNIX: usize = 8;
/// Upper bound of the requested limit: programs that close every descriptor up to the limit would be slow under a
/// higher one.
const MAX_OPEN_FILES: u64 = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFileLimit {
    pub before: u64,
    pub now: u64,
}

/// Raises the soft limit of open files to the hard limit, at most to 65,536. This needs no privilege.
pub fn raise_open_files() -> io::Result<OpenFileLimit> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current.unwrap_or(u64::MAX);
    let wanted = maximum.unwrap_or(u64::MAX).min(MAX_OPEN_FILES);
    if wanted <= before {
        return Ok(OpenFileLimit { before, now: before });
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    Ok(OpenFileLimit { before, now: wanted })
}

pub(super) fn soft_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit again if another process has lowered it, which processes of the same user can do. Returns whether
/// it did.
pub(super) fn restore_lowered_limit() -> bool {
    let raised = raise_open_files().is_ok_and(|limit| limit.now > limit.before);
    if raised {
        tracing::warn!("another process had lowered the limit of open files; it is raised again");
    }
    raised
}

/// True for the errors of a process or a system without free descriptors.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Descriptors that are kept open, to be closed when one is needed.
#[derive(Debug)]
pub(super) struct ReservedDescriptors {
    capacity: usize,
    held: Mutex<Vec<OwnedFd>>,
}

impl ReservedDescriptors {
    pub(super) fn new(capacity: usize) -> Self {
        let reserve = Self { capacity, held: Mutex::default() };
        reserve.refill();
        reserve
    }

    /// Closes one descriptor; false if there is none.
    pub(super) fn release_one(&self) -> bool {
        self.held().pop().is_some()
    }

    /// Opens descriptors up to the capacity, as far as the system allows.
    pub(super) fn refill(&self) {
        let mut held = self.held();
        while held.len() < self.capacity {
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
        let reserve = ReservedDescriptors::new(2);
        assert_eq!([reserve.release_one(), reserve.release_one(), reserve.release_one()], [true, true, false]);
        reserve.refill();
        assert!(reserve.release_one());
    }

    #[test]
    fn only_used_up_descriptors_count_as_used_up() {
        assert!(is_out_of_descriptors(&Errno::MFILE.into()) && is_out_of_descriptors(&Errno::NFILE.into()));
        assert!(!is_out_of_descriptors(&Errno::CONNABORTED.into()) && !is_out_of_descriptors(&io::Error::other("x")));
    }
}
