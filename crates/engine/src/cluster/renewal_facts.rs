//! What a renewal tells about the database besides the lease: how fast it answers, and how far its clock is from this
//! node's.

use std::time::Duration;

/// A confirmed renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalFacts {
    /// From the request to its answer. A renewal is several statements.
    pub round_trip: Duration,
    /// The clock of the database minus this node's. What the round trip may explain is left out.
    pub clock_skew_ms: i64,
}

impl RenewalFacts {
    /// All times in milliseconds since 1970: the database read its clock between `sent_ms` and `received_ms`.
    pub fn new(sent_ms: i64, received_ms: i64, database_ms: i64) -> Self {
        let round_trip = Duration::from_millis(u64::try_from(received_ms.saturating_sub(sent_ms)).unwrap_or(0));
        let clock_skew_ms = database_ms.saturating_sub(database_ms.clamp(sent_ms, received_ms.max(sent_ms)));
        Self { round_trip, clock_skew_ms }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::within_the_round_trip(1_000, 1_020, 1_010, 20, 0)]
    #[case::ahead(1_000, 1_020, 4_020, 20, 3_000)]
    #[case::behind(5_000, 5_020, 2_000, 20, -3_000)]
    fn only_what_the_round_trip_does_not_explain_is_skew(
        #[case] sent: i64,
        #[case] received: i64,
        #[case] database: i64,
        #[case] round_trip_ms: u64,
        #[case] clock_skew_ms: i64,
    ) {
        let facts = RenewalFacts { round_trip: Duration::from_millis(round_trip_ms), clock_skew_ms };
        assert_eq!(RenewalFacts::new(sent, received, database), facts);
    }
}
