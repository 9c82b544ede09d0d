//! Limit the requests of each principal, over HTTP and WebSocket together. The routes and methods of the stop contract
//! are not limited: see `is_outside_limits` in `http/stop.rs` and `ws/methods.rs`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::rate_limit::{RateLimit, RequestRate};
use quell_protocol::Principal;

/// Principals above which those without recent requests are forgotten.
const MAX_IDLE_PRINCIPALS: usize = 1024;
/// Time between two lines of the log about one principal.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct RequestLimits {
    limit: RateLimit,
    principals: Mutex<HashMap<Principal, PrincipalRate>>,
}

#[derive(Debug, Default)]
struct PrincipalRate {
    rate: RequestRate,
    logged_at: Option<Moment>,
}

impl RequestLimits {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self { limit, principals: Mutex::default() }
    }

    /// Counts a request of this principal.
    ///
    /// # Errors
    /// It made too many: the time after which it may make the next one.
    pub(crate) fn count_request(&self, principal: &Principal, now: Moment) -> Result<(), Duration> {
        let mut principals = self.principals.lock().unwrap_or_else(PoisonError::into_inner);
        if principals.len() > MAX_IDLE_PRINCIPALS {
            principals.retain(|_, entry| !entry.rate.is_whole(now));
        }
        let entry = match principals.get_mut(principal) {
            Some(entry) => entry,
            None => principals.entry(principal.clone()).or_default(),
        };
        let counted = entry.rate.count_request(self.limit, now);
        if counted.is_err() && entry.logged_at.is_none_or(|at| now.since(at) >= LOG_INTERVAL) {
            entry.logged_at = Some(now);
            tracing::warn!(%principal, limit = ?self.limit, "requests were refused: there were too many");
        }
        counted
    }
}

/// Whole seconds to wait, at least one.
pub(crate) fn retry_after_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
