//! How fast a server wants to be written to (RFC 2813 5.8): each line costs two seconds, and ten of them may be owed.

use std::time::Duration;

use tokio::time::Instant;

const COST: Duration = Duration::from_secs(2);
const CREDIT: Duration = Duration::from_secs(10);

/// What is owed, as the server counts it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flood {
    /// When nothing will be owed any more.
    even: Instant,
}

impl Flood {
    /// Nothing is owed.
    pub(super) fn new(now: Instant) -> Self {
        Self { even: now }
    }

    /// When the next line may be sent.
    pub(super) fn ready(&self) -> Instant {
        let after = self.even + COST;
        after.checked_sub(CREDIT).unwrap_or(after)
    }

    /// A line was sent.
    pub(super) fn charge(&mut self, now: Instant) {
        self.even = self.even.max(now) + COST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_lines_go_at_once_and_then_one_in_two_seconds() {
        let begin = Instant::now();
        let (mut flood, mut now, mut sent) = (Flood::new(begin), begin, Vec::new());
        for _ in 0..8 {
            now = now.max(flood.ready());
            flood.charge(now);
            sent.push((now - begin).as_secs());
        }
        assert_eq!(sent, [0, 0, 0, 0, 0, 2, 4, 6]);
        now += Duration::from_secs(100);
        for _ in 0..5 {
            assert!(flood.ready() <= now, "after a pause five go at once again");
            flood.charge(now);
        }
        assert!(flood.ready() > now);
    }
}
