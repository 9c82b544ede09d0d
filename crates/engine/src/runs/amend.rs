//! What becomes known of a run's call after the run's end: its receipt is amended, in memory and in the database.

use std::sync::Arc;

use quell_protocol::Instant;

use super::{Runs, finish};
use crate::cell::{Cell, Notice};
use crate::mcp::LateFact;

impl Runs {
    /// Amends the receipt of a run that is over; in one that is not, it will stand in the receipt. Not async.
    pub(super) fn learn(&self, fact: LateFact) {
        let cell = self.cell(&fact.run);
        let Some(cell) = cell else {
            let at = Instant { at: self.clock().rfc3339(self.clock().now()), ms: None };
            let (run, amendment) = (fact.run.clone(), fact.amendment(at));
            let runs = self.clone();
            self.spawn(async move {
                match runs.store().amend_run(run.clone(), amendment).await {
                    Ok((session_key, amendment)) => {
                        runs.hub().publish(&Notice::Amended { run_id: run, session_key, amendment });
                    }
                    // It was deleted with its session.
                    Err(crate::store::StoreError::NoSuchRun(_)) => {}
                    Err(error) => tracing::error!(%run, %error, "a receipt could not be amended"),
                }
            });
            return;
        };
        if let Some(amendment) = cell.learn(|at| fact.amendment(at)) {
            let (run_id, session_key) = (cell.run.id.clone(), cell.run.session.clone());
            self.hub().publish(&Notice::Amended { run_id, session_key, amendment });
            self.store_again(&cell);
        }
    }

    fn store_again(&self, cell: &Arc<Cell>) {
        self.spawn(finish::close_book(self.clone(), Arc::clone(cell)));
    }
}
