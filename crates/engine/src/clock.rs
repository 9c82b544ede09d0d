//! The engine's one source of time: a steady distance from its start, and the wall clock that goes with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use quell_kernel::Moment;
use tokio::time::Instant;

/// The wall clock now, for the name of a file: `20261121T120000Z`.
#[must_use]
pub fn stamp() -> String {
    Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Steady time with the wall clock of its beginning. Follows tokio's clock, so tests can hold it still.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    wall: Timestamp,
    skipped: Option<&'static Skipped>,
}

/// Time that was skipped: tests and simulations let a day pass without waiting for it. Timers that run do not see it.
#[derive(Debug, Default)]
pub struct Skipped(AtomicU64);

impl Skipped {
    /// Lets so much time pass at once.
    pub fn skip(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    fn so_far(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now(), wall: Timestamp::now(), skipped: None }
    }

    /// A clock that starts now, with which time can be skipped.
    #[must_use]
    pub fn skipping(skipped: &'static Skipped) -> Self {
        Self { skipped: Some(skipped), ..Self::start() }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.start.elapsed() + self.skipped())
    }

    /// The instant of a moment, for timers.
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.start + moment.0.saturating_sub(self.skipped())
    }

    fn skipped(&self) -> Duration {
        self.skipped.map_or(Duration::ZERO, Skipped::so_far)
    }

    /// A moment as RFC 3339 in UTC with microseconds.
    #[must_use]
    pub fn rfc3339(&self, moment: Moment) -> String {
        format!("{:.6}", self.timestamp(moment))
    }

    /// The wall clock of a moment.
    #[must_use]
    pub fn timestamp(&self, moment: Moment) -> Timestamp {
        let distance = SignedDuration::try_from(moment.0).unwrap_or(SignedDuration::MAX);
        self.wall.checked_add(distance).unwrap_or(Timestamp::MAX)
    }

    /// The machine's own clock in seconds since 1970: for what other machines compare with theirs, and other daemons with
    /// this one. Steady time stands still while a machine sleeps.
    #[must_use]
    pub fn wall_seconds() -> i64 {
        Timestamp::now().as_second()
    }

    /// The UTC day of a moment.
    #[must_use]
    pub fn day(&self, moment: Moment) -> Date {
        self.timestamp(moment).to_zoned(TimeZone::UTC).date()
    }

    /// Milliseconds from `from` to `to`, negative when `to` is earlier.
    #[must_use]
    pub fn ms_between(from: Moment, to: Moment) -> f64 {
        let micros = |d: Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        let distance = micros(to.0).saturating_sub(micros(from.0));
        #[expect(
            clippy::cast_precision_loss,
            reason = "a run is shorter than the 285 years that a f64 counts in microseconds"
        )]
        let ms = distance as f64 / 1000.0;
        ms
    }
}
