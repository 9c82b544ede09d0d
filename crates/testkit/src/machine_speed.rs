//! Scale time limits by the load of the machine, so that a time measurement tests the program and not the load.

use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::or_fail::OrFail as _;

/// Upper bound for starting and ending one process on an idle machine.
const IDLE_PROCESS_TIME: Duration = Duration::from_millis(3);
/// Pause between two measurements of the machine while an operation runs.
const MEASURE_INTERVAL: Duration = Duration::from_millis(200);

/// The limit for now of an operation that may take `limit` on an idle machine. Call it right after the operation, or use
/// [`LoadMonitor`] for one that takes longer than a moment.
pub fn scaled_limit(limit: Duration) -> Duration {
    scale(limit, measure_process_time())
}

/// Measures the machine for as long as an operation takes: it may be idle again when the operation has ended.
#[derive(Debug)]
pub struct LoadMonitor {
    begun: Instant,
    slowest: Arc<Mutex<Duration>>,
    /// The measurements end when it is dropped.
    _running: Sender<()>,
}

impl LoadMonitor {
    pub fn start() -> Self {
        let slowest = Arc::new(Mutex::new(Duration::ZERO));
        let (running, ended) = channel();
        let measured = Arc::clone(&slowest);
        let measure = move || {
            while ended.recv_timeout(MEASURE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let took = time_one_process();
                let mut slowest = measured.lock().unwrap_or_else(PoisonError::into_inner);
                *slowest = took.max(*slowest);
            }
        };
        thread::Builder::new()
            .name("load-monitor".into())
            .spawn(measure)
            .or_fail("no thread for measuring the machine");
        Self { begun: Instant::now(), slowest, _running: running }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The limit for work since the start that may take `limit` on an idle machine.
    pub fn scaled_limit(&self, limit: Duration) -> Duration {
        let now = measure_process_time();
        scale(limit, now.max(*self.slowest.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn scale(limit: Duration, process_time: Duration) -> Duration {
    limit.mul_f64((process_time.as_secs_f64() / IDLE_PROCESS_TIME.as_secs_f64()).max(1.0))
}

/// Time to start and end one process now: the worst of three.
fn measure_process_time() -> Duration {
    (0..3).map(|_| time_one_process()).max().unwrap_or_default()
}

#[expect(clippy::disallowed_methods, reason = "the process is a measurement and belongs to no run")]
fn time_one_process() -> Duration {
    let begun = Instant::now();
    let ended = Command::new("sh").args(["-c", ":"]).stdin(Stdio::null()).status();
    assert!(ended.is_ok_and(|status| status.success()), "no process can be started");
    begun.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_limit_grows_with_the_load_and_never_shrinks() {
        assert_eq!(scale(SECOND, Duration::from_millis(1)), SECOND);
        assert_eq!(scale(SECOND, IDLE_PROCESS_TIME * 4), SECOND * 4);
    }

    #[test]
    fn a_monitor_keeps_the_slowest_moment_of_an_operation() {
        let monitor = LoadMonitor::start();
        *monitor.slowest.lock().unwrap() = IDLE_PROCESS_TIME * 1000;
        assert!(monitor.scaled_limit(SECOND) >= SECOND * 1000);
    }

    #[test]
    fn a_monitor_measures_while_an_operation_runs() {
        let monitor = LoadMonitor::start();
        while *monitor.slowest.lock().unwrap() == Duration::ZERO {
            assert!(monitor.elapsed() < crate::WAIT_TIMEOUT, "nothing was measured");
            thread::yield_now();
        }
    }
}
