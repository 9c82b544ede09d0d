//! Sample the daemon's resident memory once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_testkit::leaks;

/// Seconds in which a daemon has probably met every scene.
const WARM_UP_SAMPLES: usize = 20;
/// From this length on, the first and the last minute are compared.
const LONG_SOAK_SAMPLES: usize = 240;

/// The samples so far, in MiB.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemorySamples(Arc<Mutex<Vec<f64>>>);

/// Resident memory at the beginning and at the end, in MiB.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MemoryTrend {
    /// The compared time spans, for people.
    pub(crate) spans: String,
    pub(crate) first: f64,
    pub(crate) last: f64,
}

impl MemoryTrend {
    pub(crate) fn ratio(&self) -> f64 {
        self.last / self.first
    }
}

impl MemorySamples {
    /// Starts to sample.
    pub(crate) fn start(pid: u32) -> Self {
        let memory = Self::default();
        let samples = memory.clone();
        tokio::spawn(async move {
            let mut second = tokio::time::interval(Duration::from_secs(1));
            loop {
                second.tick().await;
                let Some(bytes) = leaks::rss_bytes(pid) else { return };
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

    /// Compares the medians of the first and the last part; `None` when there are too few samples.
    pub(crate) fn trend(&self) -> Option<MemoryTrend> {
        let all = self.samples().clone();
        let warm = all.get(WARM_UP_SAMPLES..)?;
        let (part, name) = if all.len() >= LONG_SOAK_SAMPLES { (60, "minute") } else { (warm.len() / 4, "quarter") };
        let first = warm.get(..part).filter(|part| !part.is_empty())?;
        let last = warm.get(warm.len() - part..)?;
        let spans = format!("first and last {name} ({part} s) after {WARM_UP_SAMPLES} s of warm-up");
        Some(MemoryTrend { spans, first: median(first), last: median(last) })
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
