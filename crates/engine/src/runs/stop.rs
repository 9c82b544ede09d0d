//! What a stop did, and the claims on the ends that it will have.

use std::sync::Arc;

use quell_protocol::RunId;

use crate::cell::{Cell, Progress};
use crate::tools::background::{BackgroundProcess, BackgroundTask};

/// What a stop did, with the cells to wait for.
#[derive(Debug, Default)]
pub struct Stop {
    /// Runs that this call aborted.
    pub aborted: Vec<RunId>,
    /// Runs that it covers and that were ending before it came.
    pub ending: Vec<RunId>,
    /// Queued ones among the aborted, with their texts.
    pub withdrawn: Vec<(RunId, String)>,
    /// Every run that the stop covers, aborted by this call or not.
    pub tickets: Vec<Ticket>,
    /// Background commands that it covers and that are not over.
    pub processes: Vec<Arc<BackgroundProcess>>,
    /// How many of them this call was the first to end.
    pub ended: usize,
    /// What else goes on behind runs that it covers, and is ending. Nobody was waiting for that.
    pub tasks: Vec<Arc<BackgroundTask>>,
}

impl Stop {
    /// True when there was anything to stop.
    #[must_use]
    pub fn did_something(&self) -> bool {
        !self.aborted.is_empty() || self.ended > 0
    }

    /// Waits until everything that it covers is over.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; the stop itself has already happened.
    pub async fn settled(&self) {
        for ticket in &self.tickets {
            ticket.settled().await;
        }
        for process in &self.processes {
            process.ended().await;
        }
        for task in &self.tasks {
            task.ended().await;
        }
    }
}

/// A claim on the end of a run. Any number of people may wait for it, any number of times.
#[derive(Debug, Clone)]
pub struct Ticket(pub(super) Arc<Cell>);

impl Ticket {
    /// The run.
    #[must_use]
    pub fn cell(&self) -> &Arc<Cell> {
        &self.0
    }

    /// Waits for the end of the run.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition; the stop itself has already happened.
    pub async fn settled(&self) {
        self.0.reached(Progress::Ended).await;
    }
}
