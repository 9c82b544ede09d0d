//! Timestamps in milliseconds. The state machine never reads a clock: each input brings its time.

use std::time::Duration;

/// Milliseconds since 1970, comparable with the daemon's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct UnixMillis(pub(crate) u64);

impl UnixMillis {
    pub(crate) fn parse_rfc3339(text: &str) -> Option<Self> {
        let at: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(at.as_millisecond()).ok().map(Self)
    }

    /// Milliseconds from `earlier` to this time; 0 if `earlier` is later.
    pub(crate) fn millis_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}
