//! Time as the rules see it: a moment is a distance from the start of the engine, handed in from outside.

use std::time::Duration;

/// A point in time, as the distance from the engine's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// This moment and `later` more.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }

    /// How long before this moment `earlier` was; zero if it was not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The times of the stop ladder (decisions.md, "Times").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopTimes {
    /// From SIGTERM to SIGKILL, inside the warden. Default 500 ms.
    pub term: Duration,
    /// From a gentle abort to force, inside the run machine. Default 2000 ms.
    pub grace: Duration,
    /// From force to giving up. Default 5000 ms.
    pub hard: Duration,
}

impl Default for StopTimes {
    fn default() -> Self {
        Self { term: Duration::from_millis(500), grace: Duration::from_millis(2000), hard: Duration::from_millis(5000) }
    }
}
