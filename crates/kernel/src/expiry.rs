//! Computes when the registry expires a run (docs/design/requirements.md, A5). The exact timers of a run come first.

use std::time::Duration;

use crate::time::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiryLimits {
    /// Added to the run's own time limit, so that its exact timer fires first. Default 60 s.
    pub grace: Duration,
    /// Shortest time to expiry, unless `max` is shorter. Default 2 min.
    pub min: Duration,
    /// Longest time to expiry. Default 24 h.
    pub max: Duration,
}

impl Default for ExpiryLimits {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(60),
            min: Duration::from_secs(2 * 60),
            max: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Time at which a run that is accepted at `now` with this time limit expires. `max` has precedence over `min`.
pub fn expires_at(now: Moment, timeout: Duration, limits: &ExpiryLimits) -> Moment {
    let wanted = timeout.saturating_add(limits.grace);
    now.plus(wanted.max(limits.min).min(limits.max))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const HOUR: u64 = 3600;

    #[rstest]
    #[case::timeout_and_grace(600, 660)]
    #[case::short_ones_get_the_minimum(0, 120)]
    #[case::at_the_minimum(60, 120)]
    #[case::just_above_the_minimum(61, 121)]
    #[case::long_ones_get_the_maximum(30 * HOUR, 24 * HOUR)]
    #[case::at_the_maximum(24 * HOUR - 60, 24 * HOUR)]
    #[case::endless(u64::MAX, 24 * HOUR)]
    fn default_limits(#[case] timeout: u64, #[case] lives: u64) {
        let now = Moment(Duration::from_secs(1000));
        let at = expires_at(now, Duration::from_secs(timeout), &ExpiryLimits::default());
        assert_eq!(at.since(now), Duration::from_secs(lives));
    }

    #[test]
    fn the_maximum_wins_over_the_minimum_and_over_the_grace() {
        let limits = ExpiryLimits { grace: Duration::MAX, min: Duration::from_secs(100), max: Duration::from_secs(7) };
        let now = Moment(Duration::from_secs(5));
        assert_eq!(expires_at(now, Duration::ZERO, &limits), Moment(Duration::from_secs(12)));
        let endless = ExpiryLimits { max: Duration::MAX, ..limits };
        assert_eq!(expires_at(now, Duration::ZERO, &endless), Moment(Duration::MAX));
    }
}
