//! One gateway connection that counts the ends of all runs, whoever started them.

use std::sync::{Arc, Mutex, PoisonError};

use quell_testkit::gateway::{Gateway, is_ended};

use crate::site::Site;
use crate::tally::{Ends, Fault};

/// The ends so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Feed {
    ends: Arc<Mutex<Ends>>,
    /// How often the gateway closed the connection because this side was too slow. Ends may be missed meanwhile.
    gaps: Arc<Mutex<u64>>,
}

impl Feed {
    /// Begins to count; returns when the connection stands.
    pub(crate) async fn open(site: &Arc<Site>) -> Self {
        let feed = Self::default();
        let gateway = Gateway::connect(&site.daemon).await;
        tokio::spawn(feed.clone().count(Arc::clone(site), gateway));
        feed
    }

    async fn count(self, site: Arc<Site>, mut gateway: Gateway) {
        loop {
            while let Some((_, frame)) = gateway.frame().await {
                if !is_ended(&frame) {
                    continue;
                }
                let payload = &frame["payload"];
                let run = payload["runId"].as_str().unwrap_or_default();
                if !payload["receipt"].is_object() {
                    site.tally.fault(Fault::MissingEnd, run, "its end came without a receipt");
                }
                *lock(&self.ends).entry(run.to_owned()).or_default() += 1;
            }
            if site.daemon.has_ended() {
                return;
            }
            *lock(&self.gaps) += 1;
            gateway = Gateway::connect(&site.daemon).await;
        }
    }

    /// How often this run's end was told.
    pub(crate) fn ends_of(&self, run: &str) -> u32 {
        lock(&self.ends).get(run).copied().unwrap_or(0)
    }

    pub(crate) fn gaps(&self) -> u64 {
        *lock(&self.gaps)
    }

    /// Runs that ended more than once.
    pub(crate) fn doubles(&self) -> Vec<String> {
        lock(&self.ends).iter().filter(|(_, count)| **count > 1).map(|(run, _)| run.clone()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
