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

use super::errand::Carried;
use super::{Runs, errand};
use crate::agent::{Agent, Gallery, Job, Reins};
use crate::cell::{Acceptance, Cell, Progress};
use crate::mcp::Endpoint;
use crate::scope::{Cancelled, Held};
use crate::store::StoreError;

/// A run's place among those that work at the same time.
#[derive(Debug)]
pub struct Place {
    /// Its line in the ledger.
    pub held: Held,
    /// The place itself.
    pub permit: OwnedSemaphorePermit,
}

/// What a run works with.
#[derive(Debug)]
pub struct Outfit {
    /// The agent that runs, as its session has it.
    pub agent: Arc<Agent>,
    /// The session's own MCP endpoint.
    pub endpoint: Option<Endpoint>,
    /// The sealed turns that it continues on.
    pub history: Vec<Arc<Turn>>,
}

/// Why a run has nothing to work with: it fails.
#[derive(Debug)]
pub struct Unfit {
    /// A stable word.
    pub code: &'static str,
    /// What happened, for people.
    pub message: String,
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
    pub async fn see_through<O>(&self, cell: &Arc<Cell>, reins: &dyn Reins, place: Option<Place>, outfit: O)
    where
        O: Future<Output = Result<Result<Outfit, Unfit>, Cancelled>>,
    {
        let release = async {
            let mut place = place;
            let outcome = self.work(cell, reins, (outfit, &mut place)).await;
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
        // Before anything that could end this run, so that a reset of its session forgets this too. Of a message from a chat
        // network what its hooks left of it is saved, when they have been asked.
        let save = async {
            if cell.errand.is_none() {
                self.save_message(cell).await;
            }
        };
        futures_util::join!(start, save, release, record);
    }

    /// Stores the end of a run that is over, with its turn if the database refused that. Again it changes nothing but the view.
    pub(crate) async fn store_end(&self, cell: &Arc<Cell>) -> Result<(), StoreError> {
        if cell.is_unrecorded() {
            self.record(cell).await?;
        }
        let spent = self.spending().of_run(cell);
        let stored = self.store().end_run(cell.run.id.clone(), stored_view(cell), spent.clone()).await;
        // A run that was deleted is counted all the same.
        if matches!(stored, Ok(()) | Err(StoreError::NoSuchRun(_))) {
            self.spending().count(cell.id(), &spent);
        }
        stored
    }

    async fn note_started(&self, cell: &Cell) {
        if let Err(error) = self.store().start_run(cell.run.id.clone(), stored_view(cell)).await {
            tracing::error!(run = %cell.id(), %error, "the start of a run could not be stored");
        }
    }

    async fn save_message(&self, cell: &Cell) {
        let heard = cell.errand.as_ref().map(|errand| (errand, cell.run.text.as_str()));
        self.workshop().memory.save_message(&cell.run, heard, (cell.accepted(), || cell.view().accepted_at)).await;
    }

    async fn work<O>(&self, cell: &Arc<Cell>, reins: &dyn Reins, (outfit, place): (O, &mut Option<Place>)) -> Outcome
    where
        O: Future<Output = Result<Result<Outfit, Unfit>, Cancelled>>,
    {
        let work = self.steps(cell, reins, (outfit, place));
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

    /// What the run does, from its session to its answer and what comes of that.
    async fn steps<O>(
        &self,
        cell: &Arc<Cell>,
        reins: &dyn Reins,
        (outfit, place): (O, &mut Option<Place>),
    ) -> Result<Outcome, Cancelled>
    where
        O: Future<Output = Result<Result<Outfit, Unfit>, Cancelled>>,
    {
        // waits: each of its waits is raced by the session.
        let Outfit { agent, endpoint, history } = match outfit.await? {
            Ok(outfit) => outfit,
            Err(Unfit { code, message }) => return Ok(Outcome::Failed { code: code.to_owned(), message }),
        };
        // waits: raced in the hooks.
        self.ask_start(cell).await?;
        let outfitted = agent;
        let agent = &*outfitted;
        let _ = cell.bill.set(agent.bill());
        let (run, workshop, scope, pen) = (cell.id(), &**self.workshop(), &cell.scope, cell.pen());
        let errand = cell.errand.as_ref();
        let gathered = match errand {
            // waits: raced there.
            Some(errand) => match self.gather(cell, errand, &agent.workdir).await? {
                Ok(words) => Some((errand, words)),
                Err(outcome) => return Ok(outcome),
            },
            None => None,
        };
        let history = errand::shown(history, errand);
        let heard = gathered.as_ref().map(|(errand, words)| (*errand, words.as_str()));
        let told = errand.map(|errand| self.circumstances(errand, agent, &history));
        let recalled = workshop.memory.preamble(scope, &cell.run, heard).await?;
        let preamble = [told, recalled].into_iter().flatten().reduce(|told, recalled| format!("{told}\n\n{recalled}"));
        let visit = workshop.mcp.visit(agent.visitor(run, &cell.run.session, endpoint));
        let delegation = workshop.society.delegation(agent);
        let history = &history;
        let gallery = Gallery::default();
        let job = Job { run, agent, workshop, history, delegation, preamble, gallery, visit, scope, pen, reins };
        let worked = job.work().await?;
        if worked != Outcome::Completed {
            return Ok(worked);
        }
        if let Some(errand) = errand {
            // An answer may wait for its network for long, and needs no model and no tool for that.
            if let Some(place) = place.take() {
                place.give_back();
            }
            // waits: raced there.
            match self.carry(cell, errand, agent).await? {
                Carried::Away => {}
                Carried::Withheld => return Ok(Outcome::Completed),
                Carried::Not(outcome) => return Ok(outcome),
            }
        }
        self.consolidate(cell, &outfitted, heard);
        Ok(Outcome::Completed)
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
pub(super) const KEPT: Duration = Duration::from_secs(3600);
/// Between two tries.
pub(super) const AGAIN: Duration = Duration::from_secs(10);

/// Stores the end of a run, or its amended receipt, with its turn if the database refused that, and forgets it. While it
/// refuses, the run stays in memory, so that its receipt can be read, and its journal in the database, so that a later daemon
/// finds it.
pub(super) async fn close_book(runs: Runs, cell: Arc<Cell>) {
    let begun = Instant::now();
    if cell.acceptance().await == Acceptance::Durable {
        while let Err(error) = runs.store_end(&cell).await {
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

/// Stores that a message was taken by another run, once it is in that one's journal: no crash finds it in neither.
pub(super) async fn note_steered(runs: Runs, cell: Arc<Cell>, into: Arc<Cell>) {
    runs.save_message(&cell).await;
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
