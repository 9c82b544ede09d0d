//! Amend the receipt of an ended run, in memory and in the database, when a late result of an MCP call arrives.

use quell_mcp::LateCallUpdate;
use quell_protocol::Instant;

use super::{RunTable, recording};
use crate::live_run::EngineNotice;

impl RunTable {
    /// Amends the receipt of a run that is over. If the run is not over, its receipt will include the fact. Not async.
    pub(super) fn add_late_fact(&self, fact: LateCallUpdate) {
        let live_run = self.live_run(&fact.run);
        let Some(live_run) = live_run else {
            let at = Instant { at: self.clock().rfc3339(self.clock().now()), ms: None };
            let (run, amendment) = (fact.run.clone(), fact.into_amendment(at));
            let runs = self.clone();
            self.spawn(async move {
                match runs.store().runs().amend(run.clone(), amendment).await {
                    Ok((session_key, amendment)) => {
                        runs.hub().publish(&EngineNotice::Amended { run_id: run, session_key, amendment });
                    }
                    // It was deleted with its session.
                    Err(quell_store::StoreError::NoSuchRun(_)) => {}
                    Err(error) => tracing::error!(%run, %error, "a receipt could not be amended"),
                }
            });
            return;
        };
        if let Some(amendment) = live_run.add_amendment(|at| fact.into_amendment(at)) {
            let runs = self.clone();
            self.spawn(async move {
                let (run_id, session_key) = (live_run.run.id.clone(), live_run.run.session.clone());
                // The run may leave the memory meanwhile, and who is told must find it.
                if recording::store_end_and_forget(runs.clone(), live_run).await {
                    runs.hub().publish(&EngineNotice::Amended { run_id, session_key, amendment });
                }
            });
        }
    }
}
