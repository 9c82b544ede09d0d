//! Scale time limits by the current load of the machine, so that a time measurement tests the program and not the load.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Upper bound for starting and ending one process on an idle machine.
const IDLE_PROCESS_TIME: Duration = Duration::from_millis(3);

/// The limit for now of an operation that may take `limit` on an idle machine. Call it right after the operation.
pub fn scaled_limit(limit: Duration) -> Duration {
    limit.mul_f64((measure_process_time().as_secs_f64() / IDLE_PROCESS_TIME.as_secs_f64()).max(1.0))
}

/// Time to start and end one process now: the worst of three.
#[expect(clippy::disallowed_methods, reason = "the process is a measurement and belongs to no run")]
fn measure_process_time() -> Duration {
    let one = |_| {
        let begun = Instant::now();
        let ended = Command::new("sh").args(["-c", ":"]).stdin(Stdio::null()).status();
        assert!(ended.is_ok_and(|status| status.success()), "no process can be started");
        begun.elapsed()
    };
    (0..3).map(one).max().unwrap_or_default()
}
