//! When a schedule fires: cron expressions, distances and single times, what is due after a pause, and the limits.
//!
//! A cron expression is read on the wall clock of its time zone. Where clocks go forward, a fixed time in the skipped
//! hour fires at the first moment after it; where they go back, it fires in the first of the two hours. Expressions with
//! `*` or a step in the hour or the minute fire in both.

mod cron;

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use quell_protocol::schedule::{MissedPolicy, ScheduleRequest};

use cron::CronExpression;

/// A firing that is later than this counts as missed.
pub const LATE_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// Most missed firings that are counted one by one.
const MAX_COUNTED: u64 = 1000;
/// Distances between firings of a cron expression that are compared with the limit.
const CHECKED_DISTANCES: usize = 60;
/// The longest distance, and the latest single time, from now: ten years.
const MAX_DISTANCE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// When a schedule fires.
#[derive(Debug, Clone)]
pub struct ScheduleTiming {
    kind: TimingKind,
    zone: TimeZone,
}

#[derive(Debug, Clone)]
enum TimingKind {
    Cron(Box<CronExpression>),
    Every(SignedDuration),
    At(Timestamp),
}

/// What limits the times of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleRate {
    /// The smallest distance between two firings.
    pub min_interval: Duration,
}

/// Why a schedule cannot be made from a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error(
        "give one of `cron`, `every` and `at`, such as cron \"0 9 * * mon-fri\", every \"15m\" or at \"2026-12-24T18:00:00Z\""
    )]
    NotOneTiming,
    #[error("the text is empty; say what each firing sends")]
    EmptyText,
    #[error("there is no time zone {0:?}; give an IANA name, such as Europe/Berlin or UTC")]
    UnknownZone(String),
    #[error(
        "the cron expression {expression:?} is wrong: {why}; write minute, hour, day, month and weekday, such as \"30 9 * * mon-fri\""
    )]
    BadCron { expression: String, why: String },
    #[error("the distance {0:?} is wrong; write a number and s, m, h or d, such as 90s, 15m, 2h or 1d")]
    BadInterval(String),
    #[error("the time {0:?} is wrong; write 2026-12-24T18:00:00Z, or 2026-12-24T18:00 for a time in the time zone")]
    BadTime(String),
    #[error("the time {0} is in the past; the clock says {1}")]
    InThePast(Timestamp, Timestamp),
    #[error("the schedule never fires")]
    NeverFires,
    #[error("the schedule fires every {found} s, and {least} s are the least (`[schedules] min_interval_s`)")]
    TooOften { found: i64, least: u64 },
    #[error("the time is more than ten years away")]
    TooFar,
}

impl ScheduleTiming {
    /// Parses the times of a request. `default_zone` is the name of the zone that counts where the request names none.
    ///
    /// # Errors
    /// [`ScheduleError`] says what to write instead.
    pub fn parse(request: &ScheduleRequest, default_zone: &str) -> Result<Self, ScheduleError> {
        let zone = parse_zone(request.timezone.as_deref().unwrap_or(default_zone))?;
        let kind = match (&request.cron, &request.every, &request.at) {
            (Some(expression), None, None) => TimingKind::Cron(Box::new(parse_cron(expression)?)),
            (None, Some(interval), None) => TimingKind::Every(parse_interval(interval)?),
            (None, None, Some(time)) => TimingKind::At(parse_time(time, &zone)?),
            _ => return Err(ScheduleError::NotOneTiming),
        };
        Ok(Self { kind, zone })
    }

    /// The first firing of a new schedule, if the limits admit it.
    ///
    /// # Errors
    /// It would fire too often, too late or never.
    pub fn first_after(&self, now: Timestamp, rate: ScheduleRate) -> Result<Timestamp, ScheduleError> {
        if let TimingKind::At(time) = self.kind
            && time <= now
        {
            return Err(ScheduleError::InThePast(time, now));
        }
        // Distances are counted from a whole second, so that people read short times.
        let start = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let first = self.next_after(start, now).ok_or(ScheduleError::NeverFires)?;
        if first.duration_since(now) > to_signed(MAX_DISTANCE) {
            return Err(ScheduleError::TooFar);
        }
        let mut earlier = first;
        for _ in 0..CHECKED_DISTANCES {
            let Some(next) = self.next_after(earlier, earlier) else { break };
            let found = next.duration_since(earlier);
            if found < to_signed(rate.min_interval) {
                return Err(ScheduleError::TooOften { found: found.as_secs(), least: rate.min_interval.as_secs() });
            }
            earlier = next;
        }
        Ok(first)
    }

    /// The first firing after `now`. Those of a distance are counted from `last`, which is one of them, or the time at
    /// which the schedule was made.
    pub fn next_after(&self, last: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match &self.kind {
            TimingKind::Cron(expression) => expression.next_after(now, &self.zone),
            TimingKind::Every(interval) => {
                let steps = now.duration_since(last).as_secs().div_euclid(interval.as_secs()).max(0).saturating_add(1);
                let distance = interval.as_secs().checked_mul(steps)?;
                last.checked_add(SignedDuration::from_secs(distance)).ok()
            }
            TimingKind::At(time) => Some(*time).filter(|time| *time > now),
        }
    }

    /// Firings after `from`, up to and including `until`. Many are counted as [`MAX_COUNTED`].
    fn count_between(&self, from: Timestamp, until: Timestamp) -> u64 {
        let (mut count, mut last) = (0, from);
        while let Some(next) = self.next_after(last, last).filter(|next| *next <= until)
            && count < MAX_COUNTED
        {
            (count, last) = (count + 1, next);
        }
        count
    }
}

/// What to do about a schedule at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueDecision {
    /// Nothing before the time of its next firing.
    Wait,
    /// One firing, for the time `due`. `missed` others are counted as missed.
    Fire { due: Timestamp, missed: u64, next: Option<Timestamp> },
    /// No firing: `missed` are counted as missed.
    Skip { missed: u64, next: Option<Timestamp> },
}

/// Decides what is due at `now`, when `next_at` is the next firing that is known.
///
/// A clock that was set back makes nothing fire twice: what has fired has moved `next_at`. One that was set forward makes
/// the firings in between late.
pub fn decide_due(timing: &ScheduleTiming, next_at: Timestamp, now: Timestamp, missed: MissedPolicy) -> DueDecision {
    if next_at > now {
        return DueDecision::Wait;
    }
    let later = timing.count_between(next_at, now);
    let next = timing.next_after(next_at, now);
    let is_late = now.duration_since(next_at) > LATE_AFTER;
    match missed {
        MissedPolicy::Skip if is_late => DueDecision::Skip { missed: later.saturating_add(1), next },
        MissedPolicy::Skip | MissedPolicy::Once => DueDecision::Fire { due: next_at, missed: later, next },
    }
}

/// True if the pause of a stop counts, and not the last resumption of the schedule. The stop has seen revision `seen`,
/// and the resumption has made revision `resumed_in`, or 0: the later of the two decisions stands.
pub fn stop_outlasts_resumption(seen: i64, resumed_in: i64) -> bool {
    resumed_in <= seen
}

/// The policy for missed firings where the request names none: a single time is made up for, others are not.
pub fn default_missed_policy(request: &ScheduleRequest) -> MissedPolicy {
    if request.at.is_some() { MissedPolicy::Once } else { MissedPolicy::Skip }
}

/// Checks the name of a time zone.
///
/// # Errors
/// There is no zone of this name.
pub fn check_zone(name: &str) -> Result<(), ScheduleError> {
    parse_zone(name).map(drop)
}

fn parse_zone(name: &str) -> Result<TimeZone, ScheduleError> {
    TimeZone::get(name).map_err(|_| ScheduleError::UnknownZone(name.to_owned()))
}

fn parse_cron(expression: &str) -> Result<CronExpression, ScheduleError> {
    let bad = |why: String| ScheduleError::BadCron { expression: expression.to_owned(), why };
    if expression.len() > 200 {
        return Err(bad("it is longer than 200 characters".to_owned()));
    }
    CronExpression::parse(expression).map_err(bad)
}

fn parse_interval(text: &str) -> Result<SignedDuration, ScheduleError> {
    let bad = || ScheduleError::BadInterval(text.to_owned());
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|sign: char| sign.is_ascii_alphabetic() || sign == ' ');
    let unit = match trimmed.get(digits.len()..).unwrap_or_default().trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(bad()),
    };
    let number: i64 = digits.parse().map_err(|_| bad())?;
    let seconds = number.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(bad)?;
    let interval = SignedDuration::from_secs(seconds);
    if interval > to_signed(MAX_DISTANCE) { Err(ScheduleError::TooFar) } else { Ok(interval) }
}

/// A local time that is skipped where clocks go forward is moved by what they are moved; of two, the first counts.
fn parse_time(text: &str, zone: &TimeZone) -> Result<Timestamp, ScheduleError> {
    let bad = |_| ScheduleError::BadTime(text.to_owned());
    if let Ok(time) = text.trim().parse::<Timestamp>() {
        return Ok(time);
    }
    let local: DateTime = text.trim().parse().map_err(bad)?;
    zone.to_ambiguous_zoned(local).compatible().map(|zoned| zoned.timestamp()).map_err(bad)
}

fn to_signed(time: Duration) -> SignedDuration {
    SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests;
