//! Rate limit for outgoing lines (RFC 2813 5.8): each line costs two seconds, and ten seconds may be owed.

use std::time::Duration;

use tokio::time::Instant;

const LINE_COST: Duration = Duration::from_secs(2);
const MAX_DEBT: Duration = Duration::from_secs(10);

/// The debt as the server counts it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloodControl {
    /// When the debt will be zero.
    debt_free_at: Instant,
}

impl FloodControl {
    /// Starts without a debt.
    pub(super) fn new(now: Instant) -> Self {
        Self { debt_free_at: now }
    }

    /// When the next line may be sent.
    pub(super) fn next_send_at(&self) -> Instant {
        let after = self.debt_free_at + LINE_COST;
        after.checked_sub(MAX_DEBT).unwrap_or(after)
    }

    /// Records that a line was sent.
    pub(super) fn record_line(&mut self, now: Instant) {
        self.debt_free_at = self.debt_free_at.max(now) + LINE_COST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_lines_go_at_once_and_then_one_in_two_seconds() {
        let begin = Instant::now();
        let (mut flood, mut now, mut sent) = (FloodControl::new(begin), begin, Vec::new());
        for _ in 0..8 {
            now = now.max(flood.next_send_at());
            flood.record_line(now);
            sent.push((now - begin).as_secs());
        }
        assert_eq!(sent, [0, 0, 0, 0, 0, 2, 4, 6]);
        now += Duration::from_secs(100);
        for _ in 0..5 {
            assert!(flood.next_send_at() <= now, "after a pause five go at once again");
            flood.record_line(now);
        }
        assert!(flood.next_send_at() > now);
    }
}
