//! Count `run.ended` events over a gateway connection, for all runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};

use crate::fixture::SoakFixture;
use crate::results::FaultKind;

/// The ends that were reported so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunEndFeed(Arc<Mutex<ReportedEnds>>);

#[derive(Debug, Default)]
pub(crate) struct ReportedEnds {
    /// By run id.
    counts: HashMap<String, u32>,
    /// How often the gateway closed the connection because this side was too slow. Ends may be missed meanwhile.
    pub(crate) gaps: u64,
}

impl RunEndFeed {
    /// Starts to count; returns once the connection is open.
    pub(crate) async fn open(fixture: &Arc<SoakFixture>) -> Self {
        let feed = Self::default();
        let gateway = GatewayTestClient::connect(fixture.daemon()).await;
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
                *self.lock().counts.entry(run.to_owned()).or_default() += 1;
            }
            if fixture.has_exited() {
                return;
            }
            self.lock().gaps += 1;
            gateway = GatewayTestClient::connect(fixture.daemon()).await;
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ReportedEnds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReportedEnds {
    pub(crate) fn is_reported(&self, run: &str) -> bool {
        self.counts.contains_key(run)
    }

    /// Runs whose end was reported more than once.
    pub(crate) fn runs_ended_twice(&self) -> Vec<String> {
        self.counts.iter().filter(|(_, count)| **count > 1).map(|(run, _)| run.clone()).collect()
    }
}
