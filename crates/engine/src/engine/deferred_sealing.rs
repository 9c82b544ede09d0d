//! Start with an unwritable database, for example on a full disk: end what the last daemon left, answer queries, stops
//! and holds, and refuse runs. Retry the sealing of interrupted runs until it succeeds, and then take runs without a
//! restart.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use quell_protocol::RunId;
use quell_protocol::api::RunView;
use quell_store::StoreError;
use tokio::time::{MissedTickBehavior, interval};

use super::recovery::Recovery;
use super::{Engine, SubmitError};
use crate::runs::DaySums;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs of the last daemon that are still open in the database.
#[derive(Debug)]
pub(super) struct UnsealedRuns {
    pub(super) reason: StoreError,
    /// Their views as they will be sealed.
    pub(super) views: HashMap<RunId, RunView>,
}

/// Seals the runs that the last daemon left. Returns those that have to wait until the database can be written.
///
/// # Errors
/// The store's error, if it is not transient.
///
/// # Cancel safety
/// Safe: every run is sealed in one transaction.
pub(super) async fn seal_or_defer(recovery: &Recovery) -> Result<Option<UnsealedRuns>, StoreError> {
    let why = match recovery.seal_open_runs().await {
        Ok(()) => return Ok(None),
        Err(why) if why.is_transient() => why,
        Err(error) => return Err(error),
    };
    tracing::error!(%why, "no run is taken until the database can be written; looks, stops and holds work");
    let views = recovery.views_of_open_runs().await?;
    Ok(Some(UnsealedRuns { reason: why, views }))
}

impl Engine {
    /// Refuses a message while runs of the last daemon are not sealed: its turn would come before theirs.
    pub(super) fn check_ready(&self) -> Result<(), SubmitError> {
        self.unsealed_reason().map_or(Ok(()), |why| Err(SubmitError::NotReady(why)))
    }

    pub(super) fn unsealed_reason(&self) -> Option<StoreError> {
        self.lock_unsealed_runs().as_ref().map(|unsealed| unsealed.reason.clone())
    }

    /// The view of a run of the last daemon that is over, although the database still shows it as open.
    pub(super) fn find_unsealed_run(&self, id: &RunId) -> Option<RunView> {
        self.lock_unsealed_runs().as_ref()?.views.get(id).cloned()
    }

    fn lock_unsealed_runs(&self) -> MutexGuard<'_, Option<UnsealedRuns>> {
        self.inner().unsealed_runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retries the sealing until it succeeds, and takes runs from then on.
    ///
    /// # Cancel safety
    /// Safe: every run is sealed in one transaction.
    pub(super) async fn retry_sealing(self, recovery: Recovery) {
        let mut ticker = interval(RETRY_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let inner = self.inner();
        loop {
            tokio::select! {
                () = inner.closing.cancelled() => return,
                _ = ticker.tick() => {}
            }
            match recovery.seal_open_runs().await {
                Ok(()) => break,
                Err(why) => {
                    if let Some(unsealed) = &mut *self.lock_unsealed_runs()
                        && unsealed.reason != why
                    {
                        tracing::error!(%why, "the runs of the last daemon still cannot be sealed");
                        unsealed.reason = why;
                    }
                }
            }
        }
        let today = inner.clock.day(inner.clock.now());
        match DaySums::load(&inner.store, today.to_string()).await {
            Ok(spent) => inner.runs.load_spend(today, spent),
            Err(error) => {
                tracing::error!(%error, "the usage of today cannot be read; the daily limits start at zero")
            }
        }
        *self.lock_unsealed_runs() = None;
        inner.push.note_sealed_runs();
        tracing::info!("the database can be written again: runs are taken from now on");
    }
}
