//! Points in time inside the chat. The core never reads a clock: every input brings the moment at which it came.

use std::time::Duration;

/// Milliseconds since 1970, so that it can be compared with what the daemon says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Reads an RFC 3339 time.
    pub(super) fn read(text: &str) -> Option<Self> {
        let at: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(at.as_millisecond()).ok().map(Self)
    }

    /// Milliseconds from `earlier` until this; none when it was later.
    pub(super) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    pub(super) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}
