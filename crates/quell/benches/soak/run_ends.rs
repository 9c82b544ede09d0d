//! Count `run.ended` events over a gateway connection, for all runs.

use std::sync::{Arc, Mutex, PoisonError};

use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};

use crate::fixture::SoakFixture;
use crate::results::{FaultKind, RunEndCounts};

/// The ends that were reported so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunEndFeed {
    ends: Arc<Mutex<RunEndCounts>>,
    /// How often the gateway closed the connection because this side was too slow. Ends may be missed meanwhile.
    gaps: Arc<Mutex<u64>>,
}

impl RunEndFeed {
    /// Starts to count; returns once the connection is open.
    pub(crate) async fn open(fixture: &Arc<SoakFixture>) -> Self {
        let feed = Self::default();
        let gateway = GatewayTestClient::connect(&fixture.daemon).await;
        tokio::spawn(feed.clone().count_ends(Arc::clone(fixture), gateway));
        feed
    }

    async fn count_ends(self, fixture: Arc<SoakFixture>, mut gateway: GatewayTestClient) {
        loop {
            while let Some((_, frame)) = gateway.next_frame().await {
                if !is_run_ended(&frame) {
                    continue;
                }
                let payload = &frame["payload"];
                let run = payload["runId"].as_str().unwrap_or_default();
                if !payload["receipt"].is_object() {
                    fixture.results.add_fault(FaultKind::MissingEnd, run, "its end came without a receipt");
                }
                *lock(&self.ends).entry(run.to_owned()).or_default() += 1;
            }
            if fixture.daemon.has_exited() {
                return;
            }
            *lock(&self.gaps) += 1;
            gateway = GatewayTestClient::connect(&fixture.daemon).await;
        }
    }

    /// How often the end of this run was reported.
    pub(crate) fn ends_of(&self, run: &str) -> u32 {
        lock(&self.ends).get(run).copied().unwrap_or(0)
    }

    pub(crate) fn gaps(&self) -> u64 {
        *lock(&self.gaps)
    }

    /// Runs whose end was reported more than once.
    pub(crate) fn runs_ended_twice(&self) -> Vec<String> {
        lock(&self.ends).iter().filter(|(_, count)| **count > 1).map(|(run, _)| run.clone()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
