//! The writer thread: runs all queued writes in one transaction, commits, then answers their callers. Many callers
//! share one sync of the disk, and none waits for a timer.

use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::worker_threads::{QueuedWork, WorkerMessage};

/// Operations in one transaction, at most.
const MAX_BATCH: usize = 256;

/// A database as its writer thread uses it.
pub(crate) trait BatchDatabase {
    /// What an operation runs its statements on, inside of a transaction.
    type Db;

    /// Applies operations in one transaction and commits it. After an error nothing is changed.
    fn commit(
        &mut self,
        sync: SyncLevel,
        apply: &mut dyn FnMut(&Self::Db) -> Result<(), StoreError>,
    ) -> Result<(), BatchFailure>;

    /// Called once, after the last commit.
    fn finish(&mut self);
}

pub(crate) enum BatchFailure {
    /// The transaction could not begin, waited in vain for a lock of another program, or whether it was committed is not
    /// known: all operations fail.
    Database(StoreError),
    /// One operation or the commit failed, and nothing was changed.
    NotCommitted(StoreError),
}

/// One write together with the caller that waits for it. It can be applied several times, each time to a database
/// that does not contain its effect yet.
pub(crate) trait WriteOperation<D>: Send {
    fn sync_level(&self) -> SyncLevel;
    /// Runs the write inside of a transaction.
    fn apply(&mut self, db: &D) -> Result<(), StoreError>;
    /// Answers the caller, after the commit or its failure.
    fn send_outcome(self: Box<Self>, outcome: Result<(), StoreError>);
}

/// Durability that a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SyncLevel {
    /// The database has the data: the death of this process loses nothing.
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

pub(crate) fn queued_write<D: 'static, T: Send + 'static, E: Into<StoreError> + 'static>(
    sync: SyncLevel,
    work: impl FnMut(&D) -> Result<T, E> + Send + 'static,
) -> QueuedWork<Box<dyn WriteOperation<D>>, T> {
    let (outcome_sender, answer) = oneshot::channel();
    QueuedWork { work: Box::new(QueuedWrite { sync, work, output: None, outcome_sender }), answer }
}

impl<D, T, E, F> WriteOperation<D> for QueuedWrite<T, F>
where
    T: Send,
    E: Into<StoreError>,
    F: FnMut(&D) -> Result<T, E> + Send,
{
    fn sync_level(&self) -> SyncLevel {
        self.sync
    }

    fn apply(&mut self, db: &D) -> Result<(), StoreError> {
        self.output = Some((self.work)(db).map_err(Into::into)?);
        Ok(())
    }

    fn send_outcome(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { output, outcome_sender, .. } = *self;
        // A caller that left does not change what is written.
        let _ = outcome_sender.send(outcome.and_then(|()| output.ok_or(StoreError::Closed)));
    }
}

/// Body of the writer thread: returns when the queue is closed and empty.
pub(crate) fn run<W: BatchDatabase>(
    mut database: W,
    mut queue: mpsc::Receiver<WorkerMessage<Box<dyn WriteOperation<W::Db>>>>,
) {
    let mut taken = Vec::with_capacity(MAX_BATCH);
    while queue.blocking_recv_many(&mut taken, MAX_BATCH) > 0 {
        let mut batch = Vec::with_capacity(taken.len());
        for message in taken.drain(..) {
            match message {
                WorkerMessage::Do(write) => batch.push(write),
                WorkerMessage::Close => queue.close(),
            }
        }
        if !batch.is_empty() {
            commit_batch(&mut database, batch);
        }
    }
    database.finish();
}

fn commit_batch<W: BatchDatabase>(database: &mut W, mut batch: Vec<Box<dyn WriteOperation<W::Db>>>) {
    match apply_batch(database, &mut batch) {
        Ok(()) => send_outcomes(batch, &Ok(())),
        // A failed write must not fail the others, so each gets a transaction of its own.
        Err(BatchFailure::NotCommitted(_)) if batch.len() > 1 => commit_each(database, batch),
        Err(BatchFailure::Database(error) | BatchFailure::NotCommitted(error)) => send_outcomes(batch, &Err(error)),
    }
}

/// Commits writes one by one until the database fails: then it is not waited for again for each of the others.
fn commit_each<W: BatchDatabase>(database: &mut W, batch: Vec<Box<dyn WriteOperation<W::Db>>>) {
    let mut writes = batch.into_iter();
    for write in writes.by_ref() {
        let mut batch = vec![write];
        match apply_batch(database, &mut batch) {
            Ok(()) => send_outcomes(batch, &Ok(())),
            Err(BatchFailure::NotCommitted(error)) => send_outcomes(batch, &Err(error)),
            Err(BatchFailure::Database(error)) => {
                batch.extend(writes);
                return send_outcomes(batch, &Err(error));
            }
        }
    }
}

fn apply_batch<W: BatchDatabase>(
    database: &mut W,
    batch: &mut [Box<dyn WriteOperation<W::Db>>],
) -> Result<(), BatchFailure> {
    let sync = batch.iter().map(|write| write.sync_level()).max().unwrap_or(SyncLevel::Normal);
    database.commit(sync, &mut |db| batch.iter_mut().try_for_each(|write| write.apply(db)))
}

fn send_outcomes<D>(batch: Vec<Box<dyn WriteOperation<D>>>, outcome: &Result<(), StoreError>) {
    for write in batch {
        write.send_outcome(outcome.clone());
    }
}
