//! The engine's clock: monotonic time with the wall clock that belongs to each moment, also after suspends and clock
//! changes.
//!
//! Monotonic time does not advance while a machine is suspended, and the wall clock can be set. Each read of the
//! monotonic time also reads the wall clock and records the drift between the two. So a moment before a suspend keeps
//! its wall time, and a moment after it gets the right one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use quell_kernel::Moment;
use tokio::time::Instant;

/// The wall clock now, for a file name: `20261121T120000Z`.
pub fn file_timestamp() -> String {
    Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Minimum drift that is recorded. Smaller ones are normal adjustments of the system.
const MIN_DRIFT: SignedDuration = SignedDuration::from_millis(100);
/// Maximum number of recorded jumps; the oldest are dropped.
const MAX_JUMPS: usize = 1000;

/// Drift of the wall clock against monotonic time.
#[derive(Debug)]
struct WallClock {
    /// Monotonic and wall time at the start. Not tokio's clock, which tests pause.
    start: (std::time::Instant, Timestamp),
    /// The drift since each moment, oldest first.
    jumps: RwLock<Vec<(Duration, SignedDuration)>>,
    /// For tests: simulated change of the wall clock in seconds.
    test_offset_s: AtomicI64,
}

impl WallClock {
    fn start() -> Self {
        let start = (std::time::Instant::now(), Timestamp::now());
        Self { start, jumps: RwLock::default(), test_offset_s: AtomicI64::new(0) }
    }

    /// Records a jump of the wall clock, if there is one, at this moment.
    fn detect_jump(&self, moment: Duration) {
        let (monotonic, wall) = self.start;
        let now = Timestamp::now() + SignedDuration::from_secs(self.test_offset_s.load(Ordering::Relaxed));
        let elapsed = SignedDuration::try_from(monotonic.elapsed()).unwrap_or(SignedDuration::MAX);
        let drift = now.duration_since(wall).saturating_sub(elapsed);
        let last_drift = self
            .jumps
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .last()
            .map_or(SignedDuration::ZERO, |jump| jump.1);
        if drift.saturating_sub(last_drift).abs() < MIN_DRIFT {
            return;
        }
        let mut jumps = self.jumps.write().unwrap_or_else(PoisonError::into_inner);
        if jumps.len() >= MAX_JUMPS {
            jumps.remove(0);
        }
        jumps.push((moment, drift));
    }

    fn time_at(&self, moment: Duration) -> Timestamp {
        let jumps = self.jumps.read().unwrap_or_else(PoisonError::into_inner);
        let drift = jumps.iter().rev().find(|(since, _)| *since <= moment).map_or(SignedDuration::ZERO, |jump| jump.1);
        let distance = SignedDuration::try_from(moment).unwrap_or(SignedDuration::MAX);
        self.start.1.checked_add(distance.saturating_add(drift)).unwrap_or(Timestamp::MAX)
    }
}

/// Monotonic time with its wall time. It follows tokio's clock, so that tests can pause it.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    wall: &'static WallClock,
    skipped: Option<&'static SkippedTime>,
}

/// Skipped time: tests and simulations can let a day pass without waiting. Running timers are not affected.
#[derive(Debug, Default)]
pub struct SkippedTime(AtomicU64);

impl SkippedTime {
    pub fn skip(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The IANA name of the machine's time zone, such as `Europe/Berlin`. `variable` is the value of `TZ`.
pub fn time_zone_name(variable: Option<&str>) -> String {
    let named =
        variable.map(|name| name.trim_start_matches(':')).filter(|name| !name.is_empty() && !name.starts_with('/'));
    let linked = || {
        let target = std::fs::read_link("/etc/localtime").ok()?;
        target.to_str()?.split_once("zoneinfo/").map(|(_, name)| name.to_owned())
    };
    named.map(str::to_owned).or_else(linked).unwrap_or_else(|| "UTC".to_owned())
}

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        // Leaked on purpose: there is one per daemon, and clocks are copied everywhere.
        let wall = Box::leak(Box::new(WallClock::start()));
        Self { start: Instant::now(), wall, skipped: None }
    }

    /// A clock that starts now and adds the skipped time.
    #[must_use]
    pub fn with_skipped_time(skipped: &'static SkippedTime) -> Self {
        Self { skipped: Some(skipped), ..Self::start() }
    }

    pub fn now(&self) -> Moment {
        let now = self.start.elapsed() + self.skipped_time();
        self.wall.detect_jump(now);
        Moment(now)
    }

    /// The tokio instant of a moment, for timers.
    pub fn instant(&self, moment: Moment) -> Instant {
        self.start + moment.0.saturating_sub(self.skipped_time())
    }

    fn skipped_time(&self) -> Duration {
        self.skipped.map_or(Duration::ZERO, SkippedTime::total)
    }

    /// Wall time of a moment in RFC 3339 format, in UTC with microseconds.
    pub fn rfc3339(&self, moment: Moment) -> String {
        format!("{:.6}", self.timestamp(moment))
    }

    pub fn timestamp(&self, moment: Moment) -> Timestamp {
        self.wall.time_at(moment.0)
    }

    /// The machine's wall clock in seconds since 1970, for times that other machines or later daemons compare with
    /// theirs. Unlike monotonic time it advances while the machine is suspended.
    pub fn wall_seconds() -> i64 {
        Timestamp::now().as_second()
    }

    /// The UTC day of a moment.
    pub fn day(&self, moment: Moment) -> Date {
        self.timestamp(moment).to_zoned(TimeZone::UTC).date()
    }

    /// Milliseconds from `from` to `to`, negative when `to` is earlier.
    pub fn ms_between(from: Moment, to: Moment) -> f64 {
        let micros = |d: Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        let distance = micros(to.0).saturating_sub(micros(from.0));
        #[expect(clippy::cast_precision_loss, reason = "an f64 is exact for microseconds of up to 285 years")]
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
        let recorded = clock.timestamp(before);
        // Simulate a suspend of one hour.
        clock.wall.test_offset_s.store(3600, Ordering::Relaxed);
        let after = clock.now();
        let away = clock.timestamp(after).duration_since(Timestamp::now()) - SignedDuration::from_hours(1);
        assert!(away.abs() < SignedDuration::from_secs(60), "the time after the suspend is off by {away:#}");
        assert_eq!(clock.timestamp(before), recorded, "a moment before the suspend got another time");
        assert!(Clock::ms_between(before, after) < 60_000.0, "a duration must not change with the wall clock");
        // Simulate setting the clock back.
        clock.wall.test_offset_s.store(-3600, Ordering::Relaxed);
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
