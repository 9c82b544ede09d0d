//! How many requests a caller may make: any number up to a burst at once, and then at a steady rate.

use std::time::Duration;

use crate::time::Moment;

const MINUTE: Duration = Duration::from_secs(60);

/// Requests per minute. As many may come at once; the allowance grows back evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimit {
    Unlimited,
    /// At least 1.
    PerMinute(u32),
}

/// The requests of one caller. A new one has its whole allowance.
///
/// This is the generic cell rate algorithm: one time stands for the whole history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestRate {
    /// When the allowance is whole again.
    whole_at: Moment,
}

impl RateLimit {
    /// 0 stands for no limit.
    #[must_use]
    pub fn from_setting(per_minute: u32) -> Self {
        if per_minute == 0 { Self::Unlimited } else { Self::PerMinute(per_minute) }
    }
}

impl RequestRate {
    /// Counts a request at `now`, if the limit admits it.
    ///
    /// # Errors
    /// The time after which it would be admitted. It is not counted then, so a caller that goes on asking is admitted
    /// as soon as one that waits.
    pub fn count_request(&mut self, limit: RateLimit, now: Moment) -> Result<(), Duration> {
        let RateLimit::PerMinute(per_minute) = limit else { return Ok(()) };
        let interval = MINUTE / per_minute.max(1);
        let whole_at = self.whole_at.max(now).plus(interval);
        let excess = whole_at.since(now).saturating_sub(MINUTE);
        if excess > Duration::ZERO {
            return Err(excess);
        }
        self.whole_at = whole_at;
        Ok(())
    }

    /// True if nothing that was counted matters any more.
    #[must_use]
    pub fn is_whole(&self, now: Moment) -> bool {
        self.whole_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit::PerMinute(60);

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    fn admitted(rate: &mut RequestRate, attempts: usize, now: Moment) -> usize {
        (0..attempts).filter(|_| rate.count_request(LIMIT, now).is_ok()).count()
    }

    #[test]
    fn a_burst_is_admitted_and_the_allowance_grows_back_evenly() {
        let mut rate = RequestRate::default();
        assert_eq!(admitted(&mut rate, 100, at(5000)), 60);
        assert_eq!(rate.count_request(LIMIT, at(5000)), Err(Duration::from_secs(1)));
        assert_eq!(rate.count_request(LIMIT, at(5400)), Err(Duration::from_millis(600)), "asking does not delay it");
        assert_eq!(admitted(&mut rate, 100, at(6000)), 1);
        assert_eq!(admitted(&mut rate, 100, at(16_000)), 10);
        assert!(!rate.is_whole(at(75_999)) && rate.is_whole(at(76_000)));
        assert_eq!(admitted(&mut rate, 100, at(600_000)), 60, "no more than a burst is saved up");
    }

    #[test]
    fn no_limit_admits_everything_and_the_smallest_one_request_a_minute() {
        let mut rate = RequestRate::default();
        let unlimited = RateLimit::from_setting(0);
        assert!((0..10_000).all(|_| rate.count_request(unlimited, at(0)).is_ok()));
        let one = RateLimit::from_setting(1);
        assert_eq!(rate.count_request(one, at(0)), Ok(()));
        assert_eq!(rate.count_request(one, at(0)), Err(MINUTE));
        assert_eq!(rate.count_request(one, at(60_000)), Ok(()));
        let fastest = RateLimit::PerMinute(u32::MAX);
        assert!((0..10_000).all(|_| rate.count_request(fastest, at(120_000)).is_ok()));
    }
}
