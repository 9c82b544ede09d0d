//! The one thread that writes. It takes everything that is queued, does it in one transaction, commits, and only then
//! answers: many callers share one sync of the disk, and nobody waits for a timer.

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::error::StoreError;
use super::threads::Message;

/// Most operations in one transaction.
const BATCH: usize = 256;

/// One write with the caller that waits for it. It may be applied several times, each time to a database where it has not
/// been applied yet.
pub(super) trait Write: Send {
    /// Does it, inside a transaction.
    fn apply(&mut self, transaction: &Connection) -> rusqlite::Result<()>;
    /// Tells the caller, after the commit or its failure.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Asked<T, F> {
    work: F,
    output: Option<T>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

/// A write and the place where its answer arrives.
pub(super) fn asked<T, F>(work: F) -> (Box<dyn Write>, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    (Box::new(Asked { work, output: None, caller }), answer)
}

impl<T, F> Write for Asked<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> rusqlite::Result<T> + Send,
{
    fn apply(&mut self, transaction: &Connection) -> rusqlite::Result<()> {
        self.output = Some((self.work)(transaction)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { output, caller, .. } = *self;
        // A caller that left does not change what was written.
        let _ = caller.send(outcome.and_then(|()| output.ok_or(StoreError::Closed)));
    }
}

/// The body of the thread: returns when the queue is closed and empty.
pub(super) fn run(mut connection: Connection, mut queue: mpsc::Receiver<Message<Box<dyn Write>>>) {
    let mut taken = Vec::with_capacity(BATCH);
    while queue.blocking_recv_many(&mut taken, BATCH) > 0 {
        let mut batch = Vec::with_capacity(taken.len());
        for message in taken.drain(..) {
            match message {
                Message::Do(write) => batch.push(write),
                Message::Close => queue.close(),
            }
        }
        settle(&mut connection, batch);
    }
    // Leaves one file instead of three. What cannot be moved now stays in the log and is moved at the next start.
    if let Err(error) = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
        tracing::debug!(%error, "the database's log was not emptied at the close");
    }
}

enum Failure {
    /// The transaction could not begin: nobody's fault, everybody's failure.
    NotBegun(StoreError),
    /// One operation or the commit failed.
    NotCommitted(StoreError),
}

fn settle(connection: &mut Connection, mut batch: Vec<Box<dyn Write>>) {
    match transact(connection, &mut batch) {
        Ok(()) => answer(batch, &Ok(())),
        // One bad write must not fail its neighbours, so each gets a transaction of its own.
        Err(Failure::NotCommitted(_)) if batch.len() > 1 => {
            for write in batch {
                settle(connection, vec![write]);
            }
        }
        Err(Failure::NotBegun(error) | Failure::NotCommitted(error)) => answer(batch, &Err(error)),
    }
}

fn transact(connection: &mut Connection, batch: &mut [Box<dyn Write>]) -> Result<(), Failure> {
    if batch.is_empty() {
        return Ok(());
    }
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = begun.map_err(|error| Failure::NotBegun(error.into()))?;
    // Dropping the transaction on an error rolls it back.
    let failed = |error: rusqlite::Error| Failure::NotCommitted(error.into());
    for write in batch {
        write.apply(&transaction).map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

fn answer(batch: Vec<Box<dyn Write>>, outcome: &Result<(), StoreError>) {
    for write in batch {
        write.answer(outcome.clone());
    }
}
