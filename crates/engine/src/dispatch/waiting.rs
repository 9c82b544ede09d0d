//! A start that finds the database unwritable, such as on a full disk. What the last daemon left is ended all the same, and this
//! one is there for looks, stops and holds. It takes runs as soon as those of the last daemon are sealed, without a restart.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use quell_protocol::RunId;
use quell_protocol::api::RunView;
use tokio::time::{MissedTickBehavior, interval};

use super::recover::{self, Alive};
use super::{Engine, SubmitError};
use crate::agent::Workshop;
use crate::clock::Clock;
use crate::store::{Store, StoreError};

/// Between two attempts to seal.
const BEAT: Duration = Duration::from_secs(1);

/// Runs that the last daemon left, which the database shows as open.
#[derive(Debug)]
pub(super) struct Unsealed {
    /// Why they are not sealed.
    pub(super) why: StoreError,
    /// How they will be.
    pub(super) views: HashMap<RunId, RunView>,
}

/// Seals what the last daemon left. Answers what has to wait for a database that can be written.
///
/// # Errors
/// The store's error, when waiting would change nothing.
///
/// # Cancel safety
/// Safe: every run is sealed in one transaction.
pub(super) async fn seal_now(
    (store, clock): (&Store, Clock),
    workshop: &Workshop,
    alive: &Alive,
) -> Result<Option<Unsealed>, StoreError> {
    let why = match recover::seal_what_was_open(store, clock, workshop, alive).await {
        Ok(()) => return Ok(None),
        Err(why) if why.may_pass() => why,
        Err(error) => return Err(error),
    };
    tracing::error!(%why, "no run is taken until the database can be written; looks, stops and holds work");
    let views = recover::views_of_open(store, clock, workshop, alive).await?;
    Ok(Some(Unsealed { why, views }))
}

impl Engine {
    /// Refuses a message while runs of the last daemon are not sealed: its turn would come before theirs.
    pub(super) fn may_take(&self) -> Result<(), SubmitError> {
        self.why_unsealed().map_or(Ok(()), |why| Err(SubmitError::NotYet(why)))
    }

    /// Why this daemon takes no runs yet.
    pub(super) fn why_unsealed(&self) -> Option<StoreError> {
        self.unsealed().as_ref().map(|unsealed| unsealed.why.clone())
    }

    /// A run of the last daemon that is over, whatever the database says of it.
    pub(super) fn unsealed_run(&self, id: &RunId) -> Option<RunView> {
        self.unsealed().as_ref()?.views.get(id).cloned()
    }

    fn unsealed(&self) -> MutexGuard<'_, Option<Unsealed>> {
        self.inner().unsealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals as soon as that can be done, and takes runs from then on.
    ///
    /// # Cancel safety
    /// Safe: every run is sealed in one transaction.
    pub(super) async fn seal_later(self, alive: Alive) {
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let inner = self.inner();
        loop {
            tokio::select! {
                () = inner.closing.cancelled() => return,
                _ = beat.tick() => {}
            }
            match recover::seal_what_was_open(&inner.store, inner.clock, &inner.workshop, &alive).await {
                Ok(()) => break,
                Err(why) => {
                    if let Some(unsealed) = &mut *self.unsealed()
                        && unsealed.why != why
                    {
                        tracing::error!(%why, "the runs of the last daemon still cannot be sealed");
                        unsealed.why = why;
                    }
                }
            }
        }
        let today = inner.clock.day(inner.clock.now());
        match inner.store.spent_on(today.to_string()).await {
            Ok(spent) => inner.runs.bring_forward(today, spent),
            Err(error) => {
                tracing::error!(%error, "what agents have spent today cannot be read; they begin with nothing")
            }
        }
        *self.unsealed() = None;
        tracing::info!("the database can be written again: runs are taken from now on");
    }
}
