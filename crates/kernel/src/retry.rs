//! Retry policy of model requests: exponential backoff and Retry-After.
//!
//! The engine asks for a retry only after an error before the first byte of an answer.

use std::time::Duration;

/// Maximum delay that the Retry-After of a server can demand.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first one. Default 5.
    pub max_retries: u32,
    /// First delay; each further delay is twice as long. Default 500 ms.
    pub base: Duration,
    /// Maximum of the exponential delay. Default 30 s.
    pub cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_retries: 5, base: Duration::from_millis(500), cap: Duration::from_secs(30) }
    }
}

impl RetryPolicy {
    /// The delay before retry number `attempt`, from 1; `None` when the retries are used up. A Retry-After of the
    /// server counts up to its maximum; a Retry-After of zero is ignored.
    pub fn delay(&self, attempt: u32, retry_after: Option<Duration>) -> Option<Duration> {
        if attempt > self.max_retries {
            return None;
        }
        let server_delay = retry_after.filter(|wait| !wait.is_zero()).map(|wait| wait.min(MAX_RETRY_AFTER));
        Some(server_delay.unwrap_or_else(|| self.exponential_backoff(attempt)))
    }

    fn exponential_backoff(&self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }
}

/// True for statuses after which a retry may succeed: request time-out, too many requests, and server errors.
pub fn is_retryable_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn ms(wait: u64) -> Option<Duration> {
        Some(Duration::from_millis(wait))
    }

    #[test]
    fn waits_double_up_to_the_cap_and_end_when_used_up() {
        let policy = RetryPolicy { max_retries: 9, ..RetryPolicy::default() };
        let waits: Vec<_> = (1..=10).map(|attempt| policy.delay(attempt, None)).collect();
        let expected =
            [ms(500), ms(1000), ms(2000), ms(4000), ms(8000), ms(16_000), ms(30_000), ms(30_000), ms(30_000), None];
        assert_eq!(waits, expected);
    }

    #[test]
    fn five_retries_by_default_and_none_where_none_is_wanted() {
        assert_eq!(RetryPolicy::default().delay(5, None), ms(8000));
        assert_eq!(RetryPolicy::default().delay(6, None), None);
        let never = RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
        assert_eq!(never.delay(1, ms(1)), None);
    }

    #[test]
    fn retry_after_is_obeyed_within_reason() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay(1, ms(7000)), ms(7000));
        assert_eq!(policy.delay(4, ms(100)), ms(100));
        assert_eq!(policy.delay(1, ms(3_600_000)), ms(60_000));
        assert_eq!(policy.delay(2, ms(0)), ms(1000));
    }

    #[test]
    fn huge_numbers_do_not_overflow() {
        let policy = RetryPolicy { max_retries: u32::MAX, base: Duration::MAX, cap: Duration::from_secs(9) };
        assert_eq!(policy.delay(u32::MAX, None), ms(9000));
        assert_eq!(policy.delay(0, None), ms(9000));
    }

    #[rstest]
    #[case(408, true)]
    #[case(429, true)]
    #[case(500, true)]
    #[case(503, true)]
    #[case(529, true)]
    #[case(599, true)]
    #[case(200, false)]
    #[case(400, false)]
    #[case(401, false)]
    #[case(404, false)]
    #[case(409, false)]
    #[case(600, false)]
    fn statuses(#[case] status: u16, #[case] again: bool) {
        assert_eq!(is_retryable_status(status), again);
    }
}
