//! Decide from a file's stamps when a change is complete and should be read.

use std::time::{Duration, Instant, SystemTime};

use crate::config::FileStamp;

/// A file without a write for this long counts as complete: editors and scripts write in several steps.
pub(super) const SETTLE_TIME: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct FileWatch {
    /// The stamp of the last read, whether or not the file was applied.
    last_read: Option<FileStamp>,
    /// The changed stamp, and when it was first seen.
    last_change: Option<(Option<FileStamp>, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileCheck {
    Unchanged,
    /// It has changed, and may be incomplete.
    Settling,
    /// It has changed and should be read.
    Changed(Option<FileStamp>),
}

/// The time of a check by the monotonic clock and by the file system's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckTime {
    pub(super) monotonic: Instant,
    pub(super) wall: SystemTime,
}

impl FileWatch {
    /// For a file that was read when it had this stamp.
    pub(super) fn new(last_read: Option<FileStamp>) -> Self {
        Self { last_read, last_change: None }
    }

    /// Decides by the file's current stamp.
    pub(super) fn check(&mut self, stamp: Option<FileStamp>, now: CheckTime) -> FileCheck {
        if stamp == self.last_read {
            self.last_change = None;
            return FileCheck::Unchanged;
        }
        let since = match self.last_change {
            Some((seen, since)) if seen == stamp => since,
            _ => now.monotonic,
        };
        self.last_change = Some((stamp, since));
        let seen_quiet = now.monotonic.saturating_duration_since(since) >= SETTLE_TIME;
        // A file that was moved here is complete, and so is one that was written a while before its first check.
        let written_before = stamp.and_then(|stamp| now.wall.duration_since(stamp.modified).ok());
        if seen_quiet || written_before.is_some_and(|before| before >= SETTLE_TIME) {
            FileCheck::Changed(stamp)
        } else {
            FileCheck::Settling
        }
    }

    /// Records that the file was read when it had this stamp.
    pub(super) fn mark_read(&mut self, stamp: Option<FileStamp>) {
        *self = Self::new(stamp);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use super::*;

    /// The stamp of a file of this size that was written this long before `now`.
    fn stamp(bytes: usize, before: Duration, now: CheckTime) -> Option<FileStamp> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![b'x'; bytes]).unwrap();
        let times = FileTimes::new().set_modified(now.wall - before);
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        FileStamp::of(&path)
    }

    fn now() -> CheckTime {
        CheckTime { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    fn later(now: CheckTime, by: Duration) -> CheckTime {
        CheckTime { monotonic: now.monotonic + by, wall: now.wall + by }
    }

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_file_that_is_as_it_was_read_is_left_alone() {
        let now = now();
        let first = stamp(3, Duration::ZERO, now);
        let mut watched = FileWatch::new(first);
        assert_eq!(watched.check(first, now), FileCheck::Unchanged);
        assert_eq!(watched.check(first, later(now, SETTLE_TIME * 9)), FileCheck::Unchanged);
    }

    #[test]
    fn a_file_that_was_just_written_is_read_when_it_is_quiet() {
        let now = now();
        let (old, new) = (stamp(3, SETTLE_TIME, now), stamp(5, Duration::ZERO, now));
        let mut watched = FileWatch::new(old);
        assert_eq!(watched.check(new, now), FileCheck::Settling);
        assert_eq!(watched.check(new, later(now, SETTLE_TIME - SHORT)), FileCheck::Settling);
        assert_eq!(watched.check(new, later(now, SETTLE_TIME)), FileCheck::Changed(new));
        watched.mark_read(new);
        assert_eq!(watched.check(new, later(now, SETTLE_TIME * 2)), FileCheck::Unchanged);
    }

    #[test]
    fn each_write_makes_the_wait_start_anew() {
        let begin = now();
        let mut watched = FileWatch::new(None);
        for step in 0..5 {
            let now = later(begin, SETTLE_TIME * step / 2);
            assert_eq!(watched.check(stamp(5, Duration::ZERO, now), now), FileCheck::Settling);
        }
    }

    #[test]
    fn a_file_that_was_moved_here_is_read_at_once() {
        let now = now();
        let (old, new) = (stamp(3, SETTLE_TIME * 7, now), stamp(3, SETTLE_TIME * 5, now));
        let mut watched = FileWatch::new(old);
        assert_eq!(watched.check(new, now), FileCheck::Changed(new));
    }

    #[test]
    fn a_file_from_the_future_is_read_when_it_was_seen_long_enough() {
        let now = now();
        let future = later(now, Duration::from_secs(3600));
        let new = stamp(3, Duration::ZERO, future);
        let mut watched = FileWatch::new(None);
        assert_eq!(watched.check(new, now), FileCheck::Settling);
        assert_eq!(watched.check(new, later(now, SETTLE_TIME)), FileCheck::Changed(new));
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_is_no_change() {
        let now = now();
        let first = stamp(3, SETTLE_TIME, now);
        let mut watched = FileWatch::new(first);
        assert_eq!(watched.check(None, now), FileCheck::Settling);
        assert_eq!(watched.check(first, later(now, SHORT)), FileCheck::Unchanged);
        assert_eq!(watched.check(None, later(now, SHORT * 2)), FileCheck::Settling);
        assert_eq!(watched.check(None, later(now, SHORT * 2 + SETTLE_TIME)), FileCheck::Changed(None));
        watched.mark_read(None);
        assert_eq!(watched.check(None, later(now, SETTLE_TIME * 3)), FileCheck::Unchanged);
    }
}
