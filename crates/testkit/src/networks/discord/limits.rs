//! Rate limits, counted as Discord counts them: so many calls of a kind in a channel within a window of time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::rest::Route;

/// How often something may be done.
#[derive(Debug, Clone, Copy)]
struct Limit {
    calls: usize,
    window: Duration,
}

/// What is left after a call, or how long to wait before the next one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Allowance {
    pub(super) limit: usize,
    pub(super) remaining: usize,
    pub(super) reset_after: Duration,
    /// True when the call itself was one too many.
    pub(super) exceeded: bool,
}

/// The calls that still count.
#[derive(Debug, Clone, Default)]
pub(super) struct Limits {
    calls: HashMap<(Route, String), Vec<Instant>>,
}

impl Limits {
    /// Counts a call, unless it is one too many.
    pub(super) fn count(&mut self, route: Route, channel: &str, now: Instant) -> Allowance {
        let limit = limit_of(route);
        let calls = self.calls.entry((bucket_of(route), channel.to_owned())).or_default();
        calls.retain(|at| now.duration_since(*at) < limit.window);
        let exceeded = calls.len() >= limit.calls;
        if !exceeded {
            calls.push(now);
        }
        let oldest = calls.first().map_or(Duration::ZERO, |at| now.duration_since(*at));
        let (remaining, reset_after) = (limit.calls - calls.len(), limit.window.saturating_sub(oldest));
        Allowance { limit: limit.calls, remaining, reset_after, exceeded }
    }
}

/// As they are measured from the `X-RateLimit` headers of the real API; the documentation wants nobody to rely on them.
fn limit_of(route: Route) -> Limit {
    match route {
        Route::Send | Route::Edit | Route::Typing => Limit { calls: 5, window: Duration::from_secs(5) },
        Route::React | Route::Unreact => Limit { calls: 1, window: Duration::from_millis(250) },
        Route::Me | Route::Application | Route::Gateway | Route::File => {
            Limit { calls: 50, window: Duration::from_secs(1) }
        }
    }
}

/// Putting signs there and taking them off are counted together.
fn bucket_of(route: Route) -> Route {
    if route == Route::Unreact { Route::React } else { route }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sixth_message_within_five_seconds_is_one_too_many() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        for left in (0..5).rev() {
            let allowance = limits.count(Route::Send, "1", now);
            assert!(!allowance.exceeded);
            assert_eq!(allowance.remaining, left);
        }
        let allowance = limits.count(Route::Send, "1", now + Duration::from_secs(2));
        assert!(allowance.exceeded);
        assert_eq!(allowance.reset_after, Duration::from_secs(3));
        assert!(!limits.count(Route::Send, "2", now).exceeded, "another channel counts for itself");
        assert!(!limits.count(Route::Send, "1", now + Duration::from_secs(5)).exceeded);
    }

    #[test]
    fn signs_put_there_and_taken_off_are_counted_together() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        assert!(!limits.count(Route::React, "1", now).exceeded);
        assert!(limits.count(Route::Unreact, "1", now + Duration::from_millis(100)).exceeded);
        assert!(!limits.count(Route::Unreact, "1", now + Duration::from_millis(250)).exceeded);
    }
}
