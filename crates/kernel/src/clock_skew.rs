//! How far the clock of another machine is from this one's, as far as the time of a question proves it.

/// The other clock minus this one, in milliseconds. All arguments are milliseconds since 1970: by this clock, when the
/// question was sent and its answer received, and what the other clock showed in between. A difference that the time in
/// between explains is 0.
#[must_use]
pub fn clock_skew_ms(sent_ms: i64, received_ms: i64, other_ms: i64) -> i64 {
    other_ms.saturating_sub(other_ms.clamp(sent_ms, received_ms.max(sent_ms)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::within_the_round_trip(1_000, 1_020, 1_010, 0)]
    #[case::ahead(1_000, 1_020, 4_020, 3_000)]
    #[case::behind(5_000, 5_020, 2_000, -3_000)]
    #[case::set_back_in_between(5_000, 4_000, 5_000, 0)]
    fn only_what_the_round_trip_does_not_explain_is_skew(
        #[case] sent: i64,
        #[case] received: i64,
        #[case] other: i64,
        #[case] skew: i64,
    ) {
        assert_eq!(clock_skew_ms(sent, received, other), skew);
    }
}
