//! The daemon's resident memory, once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_testkit::leaks;

/// How long a daemon may take to have met every scene.
const WARM_UP: usize = 20;
/// A soak of this length has a first and a last minute that are far apart.
const LONG: usize = 240;

/// The samples so far, in MiB.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Vec<f64>>>);

/// How memory went.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Course {
    /// What is compared, in words.
    pub(crate) spans: String,
    pub(crate) first: f64,
    pub(crate) last: f64,
}

impl Course {
    pub(crate) fn ratio(&self) -> f64 {
        self.last / self.first
    }
}

impl Memory {
    /// Begins to look.
    pub(crate) fn watch(pid: u32) -> Self {
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

    /// The last sample.
    pub(crate) fn now(&self) -> f64 {
        self.samples().last().copied().unwrap_or(0.0)
    }

    /// The medians of the first and of the last part; none when there are too few samples.
    pub(crate) fn course(&self) -> Option<Course> {
        let all = self.samples().clone();
        let warm = all.get(WARM_UP..)?;
        let (part, name) = if all.len() >= LONG { (60, "minute") } else { (warm.len() / 4, "quarter") };
        let first = warm.get(..part).filter(|part| !part.is_empty())?;
        let last = warm.get(warm.len() - part..)?;
        let spans = format!("first and last {name} ({part} s) after {WARM_UP} s of warm-up");
        Some(Course { spans, first: median(first), last: median(last) })
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
