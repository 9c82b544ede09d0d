//! When a changed file is to be read: a decision about what it looks like from outside, and since when.

use std::time::{Duration, Instant, SystemTime};

use crate::config::Stamp;

/// A file that was not written to for so long is taken to be whole: editors and scripts write in more than one step.
pub(super) const QUIET: Duration = Duration::from_millis(100);

/// What is known of the file.
#[derive(Debug)]
pub(super) struct Watched {
    /// As it was when it was read last, whatever came of that.
    read: Option<Stamp>,
    /// As it looks since then, and since when.
    changed: Option<(Option<Stamp>, Instant)>,
}

/// What a look at the file comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It is as it was read.
    Same,
    /// It has changed, and may not be whole yet.
    Changing,
    /// It has changed and is to be read.
    Changed(Option<Stamp>),
}

/// The clocks of a look: one that only goes on, and the one of the file system.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) steady: Instant,
    pub(super) wall: SystemTime,
}

impl Watched {
    /// Of a file that was read when it looked like this.
    pub(super) fn new(read: Option<Stamp>) -> Self {
        Self { read, changed: None }
    }

    /// The file looks like this now.
    pub(super) fn look(&mut self, stamp: Option<Stamp>, now: Now) -> Look {
        if stamp == self.read {
            self.changed = None;
            return Look::Same;
        }
        let since = match self.changed {
            Some((seen, since)) if seen == stamp => since,
            _ => now.steady,
        };
        self.changed = Some((stamp, since));
        let seen_quiet = now.steady.saturating_duration_since(since) >= QUIET;
        // One that was moved here is whole, and so is one that nobody has looked at since it was written.
        let written_before = stamp.and_then(|stamp| now.wall.duration_since(stamp.written).ok());
        if seen_quiet || written_before.is_some_and(|before| before >= QUIET) {
            Look::Changed(stamp)
        } else {
            Look::Changing
        }
    }

    /// It was read when it looked like this.
    pub(super) fn was_read(&mut self, stamp: Option<Stamp>) {
        *self = Self::new(stamp);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use super::*;

    /// A file of so many bytes that was written so long before now.
    fn stamp(bytes: usize, before: Duration, now: Now) -> Option<Stamp> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![b'x'; bytes]).unwrap();
        let times = FileTimes::new().set_modified(now.wall - before);
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        Stamp::of(&path)
    }

    fn now() -> Now {
        Now { steady: Instant::now(), wall: SystemTime::now() }
    }

    fn later(now: Now, by: Duration) -> Now {
        Now { steady: now.steady + by, wall: now.wall + by }
    }

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_file_that_is_as_it_was_read_is_left_alone() {
        let now = now();
        let first = stamp(3, Duration::ZERO, now);
        let mut watched = Watched::new(first);
        assert_eq!(watched.look(first, now), Look::Same);
        assert_eq!(watched.look(first, later(now, QUIET * 9)), Look::Same);
    }

    #[test]
    fn a_file_that_was_just_written_is_read_when_it_is_quiet() {
        let now = now();
        let (old, new) = (stamp(3, QUIET, now), stamp(5, Duration::ZERO, now));
        let mut watched = Watched::new(old);
        assert_eq!(watched.look(new, now), Look::Changing);
        assert_eq!(watched.look(new, later(now, QUIET - SHORT)), Look::Changing);
        assert_eq!(watched.look(new, later(now, QUIET)), Look::Changed(new));
        watched.was_read(new);
        assert_eq!(watched.look(new, later(now, QUIET * 2)), Look::Same);
    }

    #[test]
    fn each_write_makes_the_wait_start_anew() {
        let begin = now();
        let mut watched = Watched::new(None);
        for step in 0..5 {
            let now = later(begin, QUIET * step / 2);
            assert_eq!(watched.look(stamp(5, Duration::ZERO, now), now), Look::Changing);
        }
    }

    #[test]
    fn a_file_that_was_moved_here_is_read_at_once() {
        let now = now();
        let (old, new) = (stamp(3, QUIET * 7, now), stamp(3, QUIET * 5, now));
        let mut watched = Watched::new(old);
        assert_eq!(watched.look(new, now), Look::Changed(new));
    }

    #[test]
    fn a_file_from_the_future_is_read_when_it_was_seen_long_enough() {
        let now = now();
        let future = later(now, Duration::from_secs(3600));
        let new = stamp(3, Duration::ZERO, future);
        let mut watched = Watched::new(None);
        assert_eq!(watched.look(new, now), Look::Changing);
        assert_eq!(watched.look(new, later(now, QUIET)), Look::Changed(new));
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_is_no_change() {
        let now = now();
        let first = stamp(3, QUIET, now);
        let mut watched = Watched::new(first);
        assert_eq!(watched.look(None, now), Look::Changing);
        assert_eq!(watched.look(first, later(now, SHORT)), Look::Same);
        assert_eq!(watched.look(None, later(now, SHORT * 2)), Look::Changing);
        assert_eq!(watched.look(None, later(now, SHORT * 2 + QUIET)), Look::Changed(None));
        watched.was_read(None);
        assert_eq!(watched.look(None, later(now, QUIET * 3)), Look::Same);
    }
}
