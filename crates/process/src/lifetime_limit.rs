//! The lifetime limit: a moment at which the wardens end all commands, even if the daemon hangs or is stopped.
//!
//! The daemon writes the moment to a file in memory; each warden has a descriptor that can only read it. A warden
//! reads it again whenever its wait ends, and a timer ends the wait at the moment that it has read last.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use quell_scope::StopLevel;
use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime, timerfd_create,
    timerfd_settime,
};

use super::fd_passing;
use super::warden_protocol::StartFailure;
use super::warden_watch::{StopCause, WardenControl};

/// The value in the file for commands without a limit. Any other value is a moment in nanoseconds of `CLOCK_BOOTTIME`.
const UNLIMITED: u64 = 0;
/// A moment that has always passed.
const PASSED: u64 = 1;
/// The file has the value and then its complement, so that a reader notices a write that is not complete.
const FILE_BYTES: usize = 16;
/// A write takes less than a microsecond, unless its process is suspended in it.
const READ_ATTEMPTS: u32 = 16;

/// Returns the time since the boot of the machine on `CLOCK_BOOTTIME`, which goes on while the machine is suspended.
#[must_use]
pub fn boot_time_now() -> Duration {
    // The clock is never negative.
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Until when the processes of all commands may live. There is no limit before the first [`LifetimeLimit::extend`].
///
/// Each warden kills its whole process tree when the limit has passed, without any help from the daemon. A new moment
/// is noticed at the old one at the latest. A first limit is noticed by the commands that run already within a second,
/// or, if they are being stopped, within the time that SIGTERM gives them.
#[derive(Debug)]
pub struct LifetimeLimit {
    file: File,
    /// The same file, which cannot be written through this descriptor.
    read_only: File,
    state: Mutex<LimitState>,
}

#[derive(Debug, Default)]
struct LimitState {
    limit: Limit,
    /// The wardens that [`LifetimeLimit::end_now`] has to stop.
    controls: Vec<Weak<WardenControl>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Limit {
    #[default]
    Unlimited,
    Until(Duration),
    Ended,
}

impl LifetimeLimit {
    pub(super) fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("lifetime-limit", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all_at(&to_bytes(UNLIMITED), 0)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Self { file, read_only, state: Mutex::default() })
    }

    /// Lets processes live until this moment of [`boot_time_now`]. The limit only moves forward: an earlier moment, or
    /// any moment after [`LifetimeLimit::end_now`], has no effect.
    pub fn extend(&self, until: Duration) {
        let mut state = self.lock_state();
        let is_later = match state.limit {
            Limit::Unlimited => true,
            Limit::Until(current) => until > current,
            Limit::Ended => false,
        };
        if is_later {
            state.limit = Limit::Until(until);
            self.write(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX).max(PASSED));
        }
    }

    /// Kills the processes of all commands at once, without waiting. Final: later commands are refused.
    pub fn end_now(&self) {
        let mut state = self.lock_state();
        state.limit = Limit::Ended;
        // Written before the stop is sent, so that the wardens report why they were stopped.
        self.write(PASSED);
        for control in state.controls.drain(..).filter_map(|control| control.upgrade()) {
            control.send_stop(StopLevel::Forced, StopCause::LifetimeOver);
        }
    }

    pub(super) fn has_passed(&self) -> bool {
        match self.lock_state().limit {
            Limit::Unlimited => false,
            Limit::Until(until) => until <= boot_time_now(),
            Limit::Ended => true,
        }
    }

    /// Registers a warden that was just started, and stops it if [`LifetimeLimit::end_now`] came first.
    pub(super) fn register(&self, control: &Arc<WardenControl>) {
        let mut state = self.lock_state();
        if state.limit == Limit::Ended {
            control.send_stop(StopLevel::Forced, StopCause::LifetimeOver);
            return;
        }
        state.controls.retain(|control| control.strong_count() > 0);
        state.controls.push(Arc::downgrade(control));
    }

    pub(super) fn send_to(&self, socket: impl AsFd) -> io::Result<()> {
        fd_passing::send_descriptor(socket, &self.read_only)
    }

    fn write(&self, value: u64) {
        if let Err(error) = self.file.write_all_at(&to_bytes(value), 0) {
            tracing::error!(%error, "cannot tell the wardens until when commands may live");
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_bytes(value: u64) -> [u8; FILE_BYTES] {
    let mut bytes = [0; FILE_BYTES];
    let (first, second) = bytes.split_at_mut(FILE_BYTES / 2);
    first.copy_from_slice(&value.to_ne_bytes());
    second.copy_from_slice(&(!value).to_ne_bytes());
    bytes
}

/// Returns `None` for a write that is not complete.
fn from_bytes(bytes: [u8; FILE_BYTES]) -> Option<u64> {
    let (first, second) = bytes.split_at(FILE_BYTES / 2);
    let value = u64::from_ne_bytes(first.try_into().ok()?);
    (second == (!value).to_ne_bytes()).then_some(value)
}

/// The limit as a warden, or the init of a namespace, reads it.
#[derive(Debug)]
pub(super) struct ReceivedLimit {
    file: File,
    /// Set to `until`. On `CLOCK_BOOTTIME`, so that it expires as soon as a suspended machine wakes.
    timer: OwnedFd,
    until: Option<Duration>,
    has_passed: bool,
}

impl ReceivedLimit {
    pub(super) fn receive_from(socket: impl AsFd) -> io::Result<Self> {
        Self::new(fd_passing::receive_descriptor(socket)?.into())
    }

    fn new(file: File) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let value = read_value(&file).ok_or(io::ErrorKind::InvalidData)?;
        let mut received = Self { file, timer, until: None, has_passed: false };
        received.set_until(value);
        Ok(received)
    }

    /// Reads the limit again. True once it has passed; this is final.
    pub(super) fn update(&mut self) -> bool {
        // If a write is not complete, the last value stays in force.
        if let Some(value) = read_value(&self.file) {
            self.set_until(value);
        }
        self.has_passed |= self.until.is_some_and(|until| until <= boot_time_now());
        self.has_passed
    }

    /// # Errors
    /// When the limit has passed: nothing may be started any more.
    pub(super) fn check(&mut self) -> Result<(), StartFailure> {
        if self.update() { Err(StartFailure::lifetime_over()) } else { Ok(()) }
    }

    /// Readable when the limit has passed. `None` without a limit, and when [`Self::update`] has returned true.
    pub(super) fn timer(&self) -> Option<BorrowedFd<'_>> {
        (self.until.is_some() && !self.has_passed).then(|| self.timer.as_fd())
    }

    fn set_until(&mut self, value: u64) {
        let until = (value != UNLIMITED).then(|| Duration::from_nanos(value));
        if until == self.until {
            return;
        }
        self.until = until;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = until.and_then(|until| Timespec::try_from(until).ok()).unwrap_or(zero);
        // Also makes the timer unreadable again. Fails only for values that are no times.
        let _ =
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: zero, it_value: at });
    }
}

fn read_value(file: &File) -> Option<u64> {
    (0..READ_ATTEMPTS).find_map(|_| {
        let mut bytes = [0; FILE_BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        from_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn limit_and_reader() -> (LifetimeLimit, ReceivedLimit) {
        let limit = LifetimeLimit::new().unwrap();
        let reader = ReceivedLimit::new(limit.read_only.try_clone().unwrap()).unwrap();
        (limit, reader)
    }

    fn is_timer_readable(reader: &ReceivedLimit, wait: Duration) -> bool {
        let timer = reader.timer().unwrap();
        let timeout = Timespec::try_from(wait).unwrap();
        poll(&mut [PollFd::from_borrowed_fd(timer, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    }

    #[test]
    fn without_a_limit_nothing_passes() {
        let (limit, mut reader) = limit_and_reader();
        assert!(!limit.has_passed() && !reader.update() && reader.timer().is_none());
    }

    #[test]
    fn the_limit_only_moves_forward() {
        let (limit, mut reader) = limit_and_reader();
        let later = boot_time_now() + HOUR;
        limit.extend(later);
        limit.extend(Duration::ZERO);
        assert!(!limit.has_passed() && !reader.update());
        assert_eq!(reader.until, Some(later));
        limit.extend(Duration::MAX);
        assert!(!limit.has_passed() && !reader.update());
    }

    #[test]
    fn a_first_limit_in_the_past_has_passed() {
        let (limit, mut reader) = limit_and_reader();
        limit.extend(Duration::ZERO);
        assert!(limit.has_passed() && reader.update() && reader.timer().is_none());
    }

    #[test]
    fn the_end_is_final() {
        let (limit, mut reader) = limit_and_reader();
        limit.end_now();
        limit.extend(boot_time_now() + HOUR);
        assert!(limit.has_passed() && reader.update());
        let mut next = ReceivedLimit::new(limit.read_only.try_clone().unwrap()).unwrap();
        assert!(next.check().is_err());
    }

    #[test]
    fn a_limit_that_has_passed_stays_passed_for_a_warden() {
        let (limit, mut reader) = limit_and_reader();
        limit.extend(Duration::ZERO);
        assert!(reader.update());
        limit.extend(boot_time_now() + HOUR);
        assert!(reader.update() && !limit.has_passed());
    }

    #[test]
    fn the_timer_follows_the_limit() {
        let (limit, mut reader) = limit_and_reader();
        reader.set_until(PASSED);
        assert!(is_timer_readable(&reader, HOUR));
        limit.extend(boot_time_now() + HOUR);
        assert!(!reader.update());
        assert!(!is_timer_readable(&reader, Duration::ZERO));
    }

    #[test]
    fn a_write_that_is_not_complete_changes_nothing() {
        let (limit, mut reader) = limit_and_reader();
        let later = boot_time_now() + HOUR;
        limit.extend(later);
        assert!(!reader.update());
        limit.file.write_all_at(&PASSED.to_ne_bytes(), 0).unwrap();
        assert!(!reader.update());
        assert_eq!(reader.until, Some(later));
        limit.end_now();
        assert!(reader.update());
    }

    #[test]
    fn a_warden_cannot_change_the_limit() {
        let (limit, reader) = limit_and_reader();
        assert!(reader.file.write_all_at(&to_bytes(PASSED), 0).is_err());
        assert!(limit.file.set_len(0).is_err());
        assert!(limit.file.set_len(64).is_err());
    }
}
