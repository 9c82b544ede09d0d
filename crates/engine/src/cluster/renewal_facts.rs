//! What a renewal tells about the database besides the lease.

use std::time::Duration;

/// A renewal that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalFacts {
    /// From the request to its answer. A renewal is several statements.
    pub round_trip: Duration,
    /// The clock of the database minus this node's, see [`quell_kernel::clock_skew`].
    pub clock_skew_ms: i64,
}
