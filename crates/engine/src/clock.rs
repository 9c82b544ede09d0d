//! The engine's one source of time: a steady distance from its start, and the wall clock that goes with it.
//!
//! Steady time stands still while a machine sleeps, and the wall clock can be set. Each look at the steady time also looks at
//! the wall clock; how far the two have moved apart is noted, so that a moment before a suspend keeps its time and one after
//! it has the right one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
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

/// What the wall clock may be off before that is noted: less is the system keeping it in step.
const NOTED: SignedDuration = SignedDuration::from_millis(100);
/// Leaps that are remembered; the oldest are forgotten.
const LEAPS: usize = 1000;

/// How far the wall clock has moved against steady time.
#[derive(Debug)]
struct Wall {
    /// Both at the beginning. Not tokio's clock, which tests hold still.
    start: (std::time::Instant, Timestamp),
    /// The distance since a moment, oldest first.
    leaps: RwLock<Vec<(Duration, SignedDuration)>>,
    /// For tests: by how many seconds somebody has set the clock.
    set_by: AtomicI64,
}

impl Wall {
    fn start() -> Self {
        let (start, leaps) = ((std::time::Instant::now(), Timestamp::now()), RwLock::default());
        Self { start, leaps, set_by: AtomicI64::new(0) }
    }

    /// Notes a leap of the wall clock, seen at this moment.
    fn look(&self, moment: Duration) {
        let (steady, wall) = self.start;
        let now = Timestamp::now() + SignedDuration::from_secs(self.set_by.load(Ordering::Relaxed));
        let elapsed = SignedDuration::try_from(steady.elapsed()).unwrap_or(SignedDuration::MAX);
        let off = now.duration_since(wall).saturating_sub(elapsed);
        let known = self
            .leaps
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .last()
            .map_or(SignedDuration::ZERO, |leap| leap.1);
        if off.saturating_sub(known).abs() < NOTED {
            return;
        }
        let mut leaps = self.leaps.write().unwrap_or_else(PoisonError::into_inner);
        if leaps.len() >= LEAPS {
            leaps.remove(0);
        }
        leaps.push((moment, off));
    }

    /// The wall clock at a moment.
    fn at(&self, moment: Duration) -> Timestamp {
        let leaps = self.leaps.read().unwrap_or_else(PoisonError::into_inner);
        let off = leaps.iter().rev().find(|(since, _)| *since <= moment).map_or(SignedDuration::ZERO, |leap| leap.1);
        let distance = SignedDuration::try_from(moment).unwrap_or(SignedDuration::MAX);
        self.start.1.checked_add(distance.saturating_add(off)).unwrap_or(Timestamp::MAX)
    }
}

/// Steady time with the wall clock that goes with it. Follows tokio's clock, so tests can hold it still.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    wall: &'static Wall,
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
        // One for each daemon, and as long as that: clocks are copied everywhere.
        let wall = Box::leak(Box::new(Wall::start()));
        Self { start: Instant::now(), wall, skipped: None }
    }

    /// A clock that starts now, with which time can be skipped.
    #[must_use]
    pub fn skipping(skipped: &'static Skipped) -> Self {
        Self { skipped: Some(skipped), ..Self::start() }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        let now = self.start.elapsed() + self.skipped();
        self.wall.look(now);
        Moment(now)
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
        self.wall.at(moment.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_suspend_new_moments_are_right_and_old_ones_stay() {
        let clock = Clock::start();
        let before = clock.now();
        let told = clock.timestamp(before);
        // The steady clock stood still for an hour.
        clock.wall.set_by.store(3600, Ordering::Relaxed);
        let after = clock.now();
        let away = clock.timestamp(after).duration_since(Timestamp::now()) - SignedDuration::from_hours(1);
        assert!(away.abs() < SignedDuration::from_secs(60), "the time after the suspend is off by {away:#}");
        assert_eq!(clock.timestamp(before), told, "a fact from before the suspend got another time");
        assert!(Clock::ms_between(before, after) < 60_000.0, "the distance within a receipt is not steady");
        // Somebody sets it back.
        clock.wall.set_by.store(-3600, Ordering::Relaxed);
        let later = clock.now();
        let away = clock.timestamp(later).duration_since(Timestamp::now()) + SignedDuration::from_hours(1);
        assert!(away.abs() < SignedDuration::from_secs(60), "{away:#}");
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_a_test_lets_pass_is_no_leap() {
        let clock = Clock::start();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let passed = clock.timestamp(clock.now()).duration_since(clock.timestamp(before));
        assert_eq!(passed.as_secs(), 3600);
    }
}
