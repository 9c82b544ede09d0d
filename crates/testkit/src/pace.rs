//! How much slower than an idle machine this one is now: what measures time compares with that, so that it says something of
//! the program and not of what else runs beside it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the start and the end of one process cost on a machine that has nothing else to do, at most.
const IDLE: Duration = Duration::from_millis(3);

/// The time that something may take now which may take `limit` on an idle machine. Ask right after it.
///
/// # Panics
/// When no process can be started.
#[must_use]
pub fn allowed(limit: Duration) -> Duration {
    limit.mul_f64((floor().as_secs_f64() / IDLE.as_secs_f64()).max(1.0))
}

/// What the start and the end of one process cost now: the worst of three.
#[expect(clippy::disallowed_methods, reason = "the process is the measure; it belongs to no run")]
fn floor() -> Duration {
    let one = |_| {
        let begun = Instant::now();
        let ended = Command::new("sh").args(["-c", ":"]).stdin(Stdio::null()).status();
        assert!(ended.is_ok_and(|status| status.success()), "no process can be started");
        begun.elapsed()
    };
    (0..3).map(one).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_has_its_limit_and_a_busy_one_more() {
        let limit = Duration::from_millis(50);
        let now = allowed(limit);
        assert!(now >= limit && now < limit * 10_000, "{now:?}");
    }
}
