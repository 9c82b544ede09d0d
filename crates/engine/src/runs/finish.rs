//! The finaliser: it works for a run, outside the run's token, until the run is recorded, released and stored.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_kernel::run::Outcome;
use quell_kernel::turn::Turn;
use quell_kernel::{Input, Moment, Push};
use quell_protocol::StopReason;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::Runs;
use crate::agent::{Agent, Job, Reins};
use crate::cell::{Acceptance, Cell, Progress};
use crate::scope::{Cancelled, Held, Point};
use crate::store::StoreError;

/// A run's place among those that work at the same time.
#[derive(Debug)]
pub struct Place {
    /// Its line in the ledger.
    pub held: Held,
    /// The place itself.
    pub permit: OwnedSemaphorePermit,
}

/// Who works for a run.
#[derive(Clone, Copy)]
pub struct Hands<'a> {
    /// The agent that runs.
    pub agent: &'a Agent,
    /// What it tells and asks.
    pub reins: &'a dyn Reins,
}

impl Place {
    fn give_back(self) {
        drop(self.permit);
        self.held.release("finished");
    }
}

impl Runs {
    /// Sees one started run through: works, releases, records. Returns when all three are done, however long that takes; the
    /// run itself ends at its hard limit at the latest.
    ///
    /// # Cancel safety
    /// Not to be dropped: it is the finaliser, spawned on the engine's tracker.
    pub async fn see_through<H>(&self, cell: &Arc<Cell>, hands: Hands<'_>, place: Option<Place>, history: H)
    where
        H: Future<Output = Result<Vec<Arc<Turn>>, StoreError>>,
    {
        let release = async {
            let outcome = self.work(cell, hands, history).await;
            if let Some(place) = place {
                place.give_back();
            }
            // What the cancel dropped is closed by tasks of its own; their turn comes before the book-keeping, so that of a
            // thousand runs stopped at once the last socket does not wait for 999 receipts.
            tokio::task::yield_now().await;
            self.input(cell.id(), Input::Returned(outcome));
            let _released = cell.scope.close().await;
            self.input(cell.id(), Input::Released);
        };
        let record = async {
            cell.sealed().await;
            if let Err(error) = self.record(cell).await {
                tracing::error!(run = %cell.id(), %error, "turn could not be recorded; it is tried again");
                self.input(cell.id(), Input::RecordFailed);
            }
        };
        // The first in the line: the writer keeps the order in which it was asked.
        let start = self.note_started(cell);
        futures_util::join!(start, release, record);
    }

    async fn note_started(&self, cell: &Cell) {
        if let Err(error) = self.store().start_run(cell.run.id.clone(), stored_view(cell)).await {
            tracing::error!(run = %cell.id(), %error, "the start of a run could not be stored");
        }
    }

    async fn work<H>(&self, cell: &Arc<Cell>, hands: Hands<'_>, history: H) -> Outcome
    where
        H: Future<Output = Result<Vec<Arc<Turn>>, StoreError>>,
    {
        let Hands { agent, reins } = hands;
        let work = async {
            let history = match cell.scope.race(Point::LoadHistory, history).await? {
                Ok(history) => history,
                Err(error) => return Ok(Outcome::Failed { code: "store".to_owned(), message: error.to_string() }),
            };
            let (run, workshop, scope, pen) = (cell.id(), &**self.workshop(), &cell.scope, cell.pen());
            let visit = workshop.mcp.visit(agent.visitor(run, &cell.run.session));
            let delegation = workshop.society.delegation();
            Job { run, agent, workshop, history: &history, delegation, visit, scope, pen, reins }.work().await
        };
        // Force drops the work wherever it stands: what it holds ends by itself, and the scope waits for that.
        let worked = tokio::select! {
            biased;
            () = cell.scope.forced() => Ok(Err(Cancelled)),
            worked = AssertUnwindSafe(work).catch_unwind() => worked,
        };
        match worked {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Cancelled)) => Outcome::Failed {
                code: "bug".to_owned(),
                message: "the work was cancelled without an abort; please report this".to_owned(),
            },
            Err(_panic) => {
                tracing::error!(run = %cell.id(), "the work of a run panicked");
                let message = "Quell has a bug: the work of this run panicked; the daemon goes on".to_owned();
                Outcome::Failed { code: "bug".to_owned(), message }
            }
        }
    }
}

/// Sends an input to a run at a moment, unless the run is over before.
pub(super) async fn timer(runs: Runs, cell: Arc<Cell>, at: Moment, input: Input) {
    let at = runs.clock().instant(at);
    tokio::select! {
        () = cell.reached(Progress::Ended) => {}
        () = tokio::time::sleep_until(at) => runs.input(cell.id(), input),
    }
}

/// Aborts a run when its time is used up, unless it is over before.
///
/// # Cancel safety
/// Not to be dropped: it is a timer of the engine.
pub async fn deadline(runs: Runs, cell: Arc<Cell>, at: Moment) {
    let instant = runs.clock().instant(at);
    tokio::select! {
        () = cell.reached(Progress::Ending) => {}
        () = tokio::time::sleep_until(instant) => {
            runs.abort(vec![cell.run.id.clone()], Push::Gentle, &StopReason::Timeout);
        }
    }
}

/// How long an end that cannot be stored is kept in memory and tried again (row A6).
const KEPT: Duration = Duration::from_secs(3600);
/// Between two tries.
const AGAIN: Duration = Duration::from_secs(10);

/// Stores the end of a run, or its amended receipt, with its turn if the database refused that, and forgets it. While it
/// refuses, the run stays in memory, so that its receipt can be read, and its journal in the database, so that a later daemon
/// finds it.
pub(super) async fn close_book(runs: Runs, cell: Arc<Cell>) {
    let begun = Instant::now();
    if cell.acceptance().await == Acceptance::Durable {
        while let Err(error) = store_end(&runs, &cell).await {
            // Its session was deleted with all it left: there is nothing that a later try could end.
            if matches!(error, StoreError::NoSuchRun(_)) {
                break;
            }
            tracing::error!(run = %cell.id(), %error, "the end of a run could not be stored");
            if begun.elapsed() > KEPT {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    runs.give_up(&cell);
    runs.forget(cell.id());
}

async fn store_end(runs: &Runs, cell: &Arc<Cell>) -> Result<(), StoreError> {
    if cell.is_unrecorded() {
        runs.record(cell).await?;
    }
    runs.store().end_run(cell.run.id.clone(), stored_view(cell)).await
}

/// Stores that a message was taken by another run, once it is in that one's journal: no crash finds it in neither.
pub(super) async fn note_steered(runs: Runs, cell: Arc<Cell>, into: Arc<Cell>) {
    while into.written().await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    if let Err(error) = runs.store().steered(cell.run.id.clone(), into.run.id.clone()).await {
        tracing::error!(run = %cell.id(), %error, "a steered message could not be stored");
    }
    runs.forget_message(cell.id());
}

/// A run's view as the database keeps it.
#[must_use]
pub fn stored_view(cell: &Cell) -> String {
    serde_json::to_string(&cell.view()).unwrap_or_default()
}
