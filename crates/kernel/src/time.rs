//! Monotonic moments that callers pass in, and the timeouts of a stop.

use std::time::Duration;

/// A point in time, as the duration since the start of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Moment {
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// Time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Timeouts of a stop; see "Times" in `docs/design/contract.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopTimeouts {
    /// From SIGTERM to SIGKILL, counted by the warden. Default 500 ms.
    pub term: Duration,
    /// From a gentle abort to a forced one, counted by the run machine. Default 2000 ms.
    pub grace: Duration,
    /// From a forced abort to the end with leftovers named. Default 5000 ms.
    pub hard: Duration,
}

impl Default for StopTimeouts {
    fn default() -> Self {
        Self { term: Duration::from_millis(500), grace: Duration::from_millis(2000), hard: Duration::from_millis(5000) }
    }
}
