//! Looks after the marked processes of all rounds at once: one look at the system answers everybody who waits for one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use quell_testkit::commands::Marker;
use quell_testkit::leaks::{self, Process};
use tokio::sync::watch;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(30);

/// What a look found, by marker.
#[derive(Debug, Default, Clone)]
struct Look {
    number: u64,
    found: Arc<HashMap<String, Vec<Process>>>,
}

/// The one who looks.
#[derive(Debug)]
pub(crate) struct Marks {
    begun: Arc<AtomicU64>,
    looks: watch::Receiver<Look>,
    wake: SyncSender<()>,
}

/// How the marked processes of a round have gone.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The first look found none.
    AtOnce,
    /// A later look found none.
    After(Duration, Vec<Process>),
    /// Some are left.
    Never(Vec<Process>),
}

impl Marks {
    pub(crate) fn watch() -> Self {
        let begun = Arc::new(AtomicU64::new(0));
        let (told, looks) = watch::channel(Look::default());
        let (wake, woken) = sync_channel(1);
        let counter = Arc::clone(&begun);
        let look = move || {
            while woken.recv().is_ok() {
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                told.send_replace(Look { number, found: Arc::new(everybody()) });
                std::thread::sleep(PAUSE);
            }
        };
        std::thread::Builder::new().name("marks".into()).spawn(look).expect("a thread that looks");
        Self { begun, looks, wake }
    }

    /// Waits until nobody carries the marker, in looks that begin after the call.
    pub(crate) async fn gone(&self, mark: &Marker, limit: Duration) -> Gone {
        let begun = Instant::now();
        let mut first: Vec<Process> = Vec::new();
        loop {
            let found = self.look().await.get(mark.as_str()).cloned().unwrap_or_default();
            match (found.is_empty(), first.is_empty()) {
                (true, true) => return Gone::AtOnce,
                (true, false) => return Gone::After(begun.elapsed(), first),
                (false, _) if begun.elapsed() > limit => return Gone::Never(found),
                (false, true) => first = found,
                (false, false) => {}
            }
        }
    }

    /// Everybody who carries a marker, in a look that begins after the call.
    pub(crate) async fn look(&self) -> Arc<HashMap<String, Vec<Process>>> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut looks = self.looks.clone();
        loop {
            // A full channel means that somebody has asked for the next look already.
            let _ = self.wake.try_send(());
            let look = looks.borrow_and_update().clone();
            if look.number > before {
                return look.found;
            }
            looks.changed().await.expect("the one who looks is there");
        }
    }
}

fn everybody() -> HashMap<String, Vec<Process>> {
    let mut found: HashMap<String, Vec<Process>> = HashMap::new();
    for (mark, process) in leaks::marks(&Marker::prefix()) {
        found.entry(mark).or_default().push(process);
    }
    found
}
