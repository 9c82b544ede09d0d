//! Rate limits, counted as Discord counts them: a number of calls of one kind in a channel within a time window.

use std::collections::HashMap;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiscordRoute {
    Me,
    Application,
    Gateway,
    Send,
    Edit,
    React,
    Unreact,
    Typing,
    File,
    Respond,
}

/// Remaining calls, or the time until the next one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RateLimitStatus {
    pub(super) limit: usize,
    pub(super) remaining: usize,
    pub(super) reset_after: Duration,
    /// True when the call itself exceeded the limit.
    pub(super) exceeded: bool,
}

/// Times of the calls within the window.
#[derive(Debug, Clone, Default)]
pub struct RateLimitCounters {
    calls: HashMap<(DiscordRoute, String), Vec<Instant>>,
}

impl RateLimitCounters {
    /// Counts a call, unless it exceeds the limit.
    pub(super) fn count_call(&mut self, route: DiscordRoute, channel: &str, now: Instant) -> RateLimitStatus {
        let (limit, window) = rate_limit_of(route);
        let calls = self.calls.entry((bucket_of(route), channel.to_owned())).or_default();
        calls.retain(|at| now.duration_since(*at) < window);
        let exceeded = calls.len() >= limit;
        if !exceeded {
            calls.push(now);
        }
        let oldest = calls.first().map_or(Duration::ZERO, |at| now.duration_since(*at));
        let (remaining, reset_after) = (limit - calls.len(), window.saturating_sub(oldest));
        RateLimitStatus { limit, remaining, reset_after, exceeded }
    }
}

/// Calls within a time, as measured from the `X-RateLimit` headers of the real API; the documentation guarantees none.
fn rate_limit_of(route: DiscordRoute) -> (usize, Duration) {
    match route {
        DiscordRoute::Send | DiscordRoute::Edit | DiscordRoute::Typing => (5, Duration::from_secs(5)),
        DiscordRoute::React | DiscordRoute::Unreact => (1, Duration::from_millis(250)),
        DiscordRoute::Me
        | DiscordRoute::Application
        | DiscordRoute::Gateway
        | DiscordRoute::File
        | DiscordRoute::Respond => (50, Duration::from_secs(1)),
    }
}

/// Adding and removing reactions share one bucket.
fn bucket_of(route: DiscordRoute) -> DiscordRoute {
    if route == DiscordRoute::Unreact { DiscordRoute::React } else { route }
}
