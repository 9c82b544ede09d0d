//! The writer thread: runs all queued writes in one transaction, commits, then answers their callers. Many callers
//! share one sync of the disk, and none waits for a timer.

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::boot::BootNumber;
use super::worker_threads::{QueuedWork, WorkerMessage};
use crate::StoreError;

/// Operations in one transaction, at most.
const MAX_BATCH: usize = 256;

/// One write together with the caller that waits for it. It can be applied several times, each time to a database
/// that does not contain its effect yet.
pub(super) trait WriteOperation: Send {
    fn sync_level(&self) -> SyncLevel;
    /// Runs the write inside of a transaction.
    fn apply(&mut self, transaction: &Connection) -> rusqlite::Result<()>;
    /// Answers the caller, after the commit or its failure.
    fn send_outcome(self: Box<Self>, outcome: Result<(), StoreError>);
}

/// Durability that a commit waits for: a value of `PRAGMA synchronous` in WAL mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SyncLevel {
    /// The operating system has the data: the death of the process loses nothing.
    Normal,
    /// The disk has the data.
    Full,
}

struct QueuedWrite<T, F> {
    sync: SyncLevel,
    work: F,
    output: Option<T>,
    outcome_sender: oneshot::Sender<Result<T, StoreError>>,
}

pub(super) fn queued_write<T: Send + 'static>(
    sync: SyncLevel,
    work: impl FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> QueuedWork<Box<dyn WriteOperation>, T> {
    let (outcome_sender, answer) = oneshot::channel();
    QueuedWork { work: Box::new(QueuedWrite { sync, work, output: None, outcome_sender }), answer }
}

impl<T, F> WriteOperation for QueuedWrite<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> rusqlite::Result<T> + Send,
{
    fn sync_level(&self) -> SyncLevel {
        self.sync
    }

    fn apply(&mut self, transaction: &Connection) -> rusqlite::Result<()> {
        self.output = Some((self.work)(transaction)?);
        Ok(())
    }

    fn send_outcome(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { output, outcome_sender, .. } = *self;
        // A caller that left does not change what is written.
        let _ = outcome_sender.send(outcome.and_then(|()| output.ok_or(StoreError::Closed)));
    }
}

pub(super) struct WriteConnection {
    connection: Connection,
    boot: BootNumber,
    /// Cancelled when a later start has taken a number.
    fenced: CancellationToken,
    sync: SyncLevel,
}

impl WriteConnection {
    pub(super) fn new(connection: Connection, boot: BootNumber, fenced: CancellationToken) -> Self {
        Self { connection, boot, fenced, sync: SyncLevel::Full }
    }

    fn begin_transaction(&mut self, sync: SyncLevel) -> Result<Transaction<'_>, StoreError> {
        // Must be synced, so it runs before the level can be lowered.
        let own = self.boot.claim(&mut self.connection).inspect_err(|error| self.cancel_if_fenced(error))?;
        if self.sync != sync {
            self.connection.execute_batch(match sync {
                SyncLevel::Normal => "PRAGMA synchronous = NORMAL",
                SyncLevel::Full => "PRAGMA synchronous = FULL",
            })?;
            self.sync = sync;
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let boot: i64 = transaction.prepare_cached("SELECT number FROM boot")?.query_row([], |row| row.get(0))?;
        if boot == own {
            return Ok(transaction);
        }
        self.fenced.cancel();
        Err(StoreError::Fenced)
    }

    fn cancel_if_fenced(&self, error: &StoreError) {
        if *error == StoreError::Fenced {
            self.fenced.cancel();
        }
    }
}

/// Body of the writer thread: returns when the queue is closed and empty.
pub(super) fn run(mut writer: WriteConnection, mut queue: mpsc::Receiver<WorkerMessage<Box<dyn WriteOperation>>>) {
    let mut taken = Vec::with_capacity(MAX_BATCH);
    while queue.blocking_recv_many(&mut taken, MAX_BATCH) > 0 {
        let mut batch = Vec::with_capacity(taken.len());
        for message in taken.drain(..) {
            match message {
                WorkerMessage::Do(write) => batch.push(write),
                WorkerMessage::Close => queue.close(),
            }
        }
        commit_batch(&mut writer, batch);
    }
    // Leaves one file instead of three. If something cannot be moved now, the next start moves it.
    if let Err(error) = writer.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
        tracing::debug!(%error, "the database's log was not emptied at the close");
    }
}

enum BatchFailure {
    /// The transaction could not begin, so all operations of the batch fail.
    NotBegun(StoreError),
    /// One operation or the commit failed.
    NotCommitted(StoreError),
}

fn commit_batch(writer: &mut WriteConnection, mut batch: Vec<Box<dyn WriteOperation>>) {
    match apply_batch(writer, &mut batch) {
        Ok(()) => send_outcomes(batch, &Ok(())),
        // A failed write must not fail the others, so each gets a transaction of its own.
        Err(BatchFailure::NotCommitted(_)) if batch.len() > 1 => {
            for write in batch {
                commit_batch(writer, vec![write]);
            }
        }
        Err(BatchFailure::NotBegun(error) | BatchFailure::NotCommitted(error)) => send_outcomes(batch, &Err(error)),
    }
}

fn apply_batch(writer: &mut WriteConnection, batch: &mut [Box<dyn WriteOperation>]) -> Result<(), BatchFailure> {
    let Some(sync) = batch.iter().map(|write| write.sync_level()).max() else { return Ok(()) };
    let transaction = writer.begin_transaction(sync).map_err(BatchFailure::NotBegun)?;
    // Dropping the transaction on an error rolls it back.
    let failed = |error: rusqlite::Error| BatchFailure::NotCommitted(error.into());
    for write in batch {
        write.apply(&transaction).map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

fn send_outcomes(batch: Vec<Box<dyn WriteOperation>>, outcome: &Result<(), StoreError>) {
    for write in batch {
        write.send_outcome(outcome.clone());
    }
}
