//! Computes the reply timeout of a chat message from its tool iterations.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeBudget {
    /// Seconds for one iteration of model and tools.
    pub message_timeout_s: u64,
    /// Iterations that an answer is expected to take.
    pub max_tool_iterations: u32,
    /// Maximum number of iterations that count.
    pub timeout_scale_cap: u32,
}

impl TimeBudget {
    /// `message_timeout_s * min(max(1, max_tool_iterations), timeout_scale_cap)`, saturating.
    #[must_use]
    pub fn total(self) -> Duration {
        let iterations = self.max_tool_iterations.max(1).min(self.timeout_scale_cap);
        Duration::from_secs(self.message_timeout_s.saturating_mul(u64::from(iterations)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::by_default(300, 10, 4, 1200)]
    #[case::fewer_rounds_than_the_cap(300, 2, 4, 600)]
    #[case::no_tools_is_one_round(300, 0, 4, 300)]
    #[case::cap_of_one(300, 10, 1, 300)]
    #[case::more_than_a_clock_counts(u64::MAX, 10, 4, u64::MAX)]
    fn time_is_paid_for_so_many_rounds(#[case] each: u64, #[case] rounds: u32, #[case] cap: u32, #[case] seconds: u64) {
        let budget = TimeBudget { message_timeout_s: each, max_tool_iterations: rounds, timeout_scale_cap: cap };
        assert_eq!(budget.total(), Duration::from_secs(seconds));
    }
}
