//! Scan the system for processes with a marker, one scan for all waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_testkit::commands::ProcessMarker;
use quell_testkit::leaks::{self, ObservedProcess};
use tokio::sync::Mutex;

/// Shortest time between the beginnings of two scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(50);

/// All marked processes, by marker.
type MarkedProcesses = HashMap<String, Vec<ObservedProcess>>;

/// The last scan, and when it began.
#[derive(Debug, Default)]
pub(crate) struct MarkerScanner(Mutex<Option<(Instant, Arc<MarkedProcesses>)>>);

impl MarkerScanner {
    /// Waits until no process has the marker, in scans that begin after the call. Returns what the first scan found
    /// and how long it stayed, or what is left at the end of the limit.
    pub(crate) async fn wait_until_gone(
        &self,
        mark: &ProcessMarker,
        limit: Duration,
    ) -> Result<(Vec<ObservedProcess>, Duration), Vec<ObservedProcess>> {
        let begun = Instant::now();
        let mut first = None;
        loop {
            let found = self.scan().await.get(mark.as_str()).cloned().unwrap_or_default();
            if found.is_empty() {
                return Ok((first.unwrap_or_default(), begun.elapsed()));
            }
            if begun.elapsed() > limit {
                return Err(found);
            }
            first.get_or_insert(found);
        }
    }

    /// Returns all marked processes, from a scan that begins after the call.
    pub(crate) async fn scan(&self) -> Arc<MarkedProcesses> {
        let called = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((begun, found)) = &*last {
            if *begun > called {
                return Arc::clone(found);
            }
            // Those who call meanwhile share the next scan.
            tokio::time::sleep_until((*begun + SCAN_INTERVAL).into()).await;
        }
        let begun = Instant::now();
        let scan = tokio::task::spawn_blocking(|| leaks::processes_by_marker(&ProcessMarker::prefix()));
        let found = Arc::new(scan.await.expect("the scan does not panic"));
        *last = Some((begun, Arc::clone(&found)));
        found
    }
}
