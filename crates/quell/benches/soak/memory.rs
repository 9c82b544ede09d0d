//! Sample the daemon's anonymous memory once a second. Its code is not counted: a daemon gives back what only its start
//! needed, and reads again what a scene needs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_testkit::leaks;

/// Seconds in which a daemon has probably met every scene.
const WARM_UP_SAMPLES: usize = 20;
/// From this length on, the minute after a third of the time is compared with the last one, at the earliest after
/// [`LONG_WARM_UP_SAMPLES`].
const LONG_SOAK_SAMPLES: usize = 300;
/// Seconds after which the caches of all sessions are full. A leak goes on after that.
const LONG_WARM_UP_SAMPLES: usize = 180;

/// Largest allowed ratio of memory in the last part to memory in the first.
const MAX_GROWTH: f64 = 1.10;

/// The samples so far, in MiB.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemorySamples(Arc<Mutex<Vec<f64>>>);

impl MemorySamples {
    pub(crate) fn start(pid: u32) -> Self {
        let memory = Self::default();
        let samples = memory.clone();
        tokio::spawn(async move {
            let mut second = tokio::time::interval(Duration::from_secs(1));
            loop {
                second.tick().await;
                let Some(bytes) = leaks::anonymous_bytes(pid) else { return };
                #[expect(clippy::cast_precision_loss, reason = "a size in MiB")]
                samples.samples().push(bytes as f64 / f64::from(1 << 20));
            }
        });
        memory
    }

    fn samples(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn latest(&self) -> f64 {
        self.samples().last().copied().unwrap_or(0.0)
    }

    /// Compares the medians of the first and the last part. Returns a line for people, and whether memory stays flat;
    /// with too few samples it does.
    pub(crate) fn compare(&self) -> (String, bool) {
        let all = self.samples().clone();
        let is_long = all.len() >= LONG_SOAK_SAMPLES;
        let warm_up = if is_long { (all.len() / 3).max(LONG_WARM_UP_SAMPLES) } else { WARM_UP_SAMPLES };
        let warm = all.get(warm_up..).unwrap_or_default();
        let (part, name) = if is_long { (60, "minute") } else { (warm.len() / 4, "quarter") };
        if part == 0 {
            return ("too few samples".to_owned(), true);
        }
        let (first, last) = (median(&warm[..part]), median(&warm[warm.len() - part..]));
        let flat = last / first <= MAX_GROWTH;
        let (word, percent) = (if flat { "flat" } else { "GROWS" }, (last / first - 1.0) * 100.0);
        let spans = format!("first and last {name} ({part} s) after {warm_up} s of warm-up");
        (format!("{first:.1} MiB, {last:.1} MiB, {percent:+.1} %: {word}; {spans}"), flat)
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
