//! Scan the system for processes with a marker, one scan for all waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use quell_testkit::commands::ProcessMarker;
use quell_testkit::leaks::{self, ObservedProcess};
use tokio::sync::watch;

/// Time between two scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(30);

/// Result of a scan, by marker.
#[derive(Debug, Default, Clone)]
struct MarkerScan {
    number: u64,
    found: Arc<HashMap<String, Vec<ObservedProcess>>>,
}

/// A thread that scans the system on request.
#[derive(Debug)]
pub(crate) struct MarkerScanner {
    scans_begun: Arc<AtomicU64>,
    scans: watch::Receiver<MarkerScan>,
    scan_requests: SyncSender<()>,
}

/// Result of waiting for a round's processes.
#[derive(Debug)]
pub(crate) enum MarkerOutcome {
    /// The first scan found none.
    GoneAtOnce,
    /// A later scan found none.
    GoneAfter(Duration, Vec<ObservedProcess>),
    /// Some are left at the end of the limit.
    StillThere(Vec<ObservedProcess>),
}

impl MarkerScanner {
    pub(crate) fn start() -> Self {
        let scans_begun = Arc::new(AtomicU64::new(0));
        let (scan_sender, scans) = watch::channel(MarkerScan::default());
        let (scan_requests, requests) = sync_channel(1);
        let counter = Arc::clone(&scans_begun);
        let scan_loop = move || {
            while requests.recv().is_ok() {
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                scan_sender.send_replace(MarkerScan { number, found: Arc::new(marked_processes()) });
                std::thread::sleep(SCAN_INTERVAL);
            }
        };
        std::thread::Builder::new().name("marks".into()).spawn(scan_loop).expect("a thread for scans");
        Self { scans_begun, scans, scan_requests }
    }

    /// Waits until no process has the marker, in scans that begin after the call.
    pub(crate) async fn wait_until_gone(&self, mark: &ProcessMarker, limit: Duration) -> MarkerOutcome {
        let begun = Instant::now();
        let mut first: Vec<ObservedProcess> = Vec::new();
        loop {
            let found = self.scan().await.get(mark.as_str()).cloned().unwrap_or_default();
            match (found.is_empty(), first.is_empty()) {
                (true, true) => return MarkerOutcome::GoneAtOnce,
                (true, false) => return MarkerOutcome::GoneAfter(begun.elapsed(), first),
                (false, _) if begun.elapsed() > limit => return MarkerOutcome::StillThere(found),
                (false, true) => first = found,
                (false, false) => {}
            }
        }
    }

    /// Returns all marked processes, from a scan that begins after the call.
    pub(crate) async fn scan(&self) -> Arc<HashMap<String, Vec<ObservedProcess>>> {
        let before = self.scans_begun.load(Ordering::SeqCst);
        let mut scans = self.scans.clone();
        loop {
            // A full channel means that the next scan is requested already.
            let _ = self.scan_requests.try_send(());
            let scan = scans.borrow_and_update().clone();
            if scan.number > before {
                return scan.found;
            }
            scans.changed().await.expect("the scan thread runs");
        }
    }
}

fn marked_processes() -> HashMap<String, Vec<ObservedProcess>> {
    let mut found: HashMap<String, Vec<ObservedProcess>> = HashMap::new();
    for (mark, process) in leaks::processes_by_marker(&ProcessMarker::prefix()) {
        found.entry(mark).or_default().push(process);
    }
    found
}
