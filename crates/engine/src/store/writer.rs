//! The one thread that writes. It takes everything that is queued, does it in one transaction, commits, and only then
//! answers: many callers share one sync of the disk, and nobody waits for a timer.

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::boot::Boot;
use super::error::StoreError;
use super::threads::Message;

/// Most operations in one transaction.
const BATCH: usize = 256;

/// One write with the caller that waits for it. It may be applied several times, each time to a database where it has not
/// been applied yet.
pub(super) trait Write: Send {
    /// What the transaction has to wait for.
    fn sync(&self) -> Sync;
    /// Does it, inside a transaction.
    fn apply(&mut self, transaction: &Connection) -> rusqlite::Result<()>;
    /// Tells the caller, after the commit or its failure.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
}

/// What a commit waits for: the values of `PRAGMA synchronous`, where the log is written ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sync {
    /// That the system has it: the death of the process loses nothing.
    Normal,
    /// That the disk has it.
    Full,
}

struct Asked<T, F> {
    sync: Sync,
    work: F,
    output: Option<T>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

/// A write and the place where its answer arrives.
pub(super) fn asked<T, F>(sync: Sync, work: F) -> (Box<dyn Write>, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    (Box::new(Asked { sync, work, output: None, caller }), answer)
}

impl<T, F> Write for Asked<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> rusqlite::Result<T> + Send,
{
    fn sync(&self) -> Sync {
        self.sync
    }

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

/// The connection that writes.
pub(super) struct Pencil {
    connection: Connection,
    /// The start that it belongs to.
    boot: Boot,
    /// Cancelled when there is a later one.
    fenced: CancellationToken,
    sync: Sync,
}

impl Pencil {
    /// A connection that syncs, of this start.
    pub(super) fn new(connection: Connection, boot: Boot, fenced: CancellationToken) -> Self {
        Self { connection, boot, fenced, sync: Sync::Full }
    }

    fn begin(&mut self, sync: Sync) -> Result<Transaction<'_>, StoreError> {
        // Before the first commit that does not wait for the disk.
        let own = self.boot.take(&mut self.connection).inspect_err(|error| self.fence(error))?;
        if self.sync != sync {
            self.connection.execute_batch(match sync {
                Sync::Normal => "PRAGMA synchronous = NORMAL",
                Sync::Full => "PRAGMA synchronous = FULL",
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

    fn fence(&self, error: &StoreError) {
        if *error == StoreError::Fenced {
            self.fenced.cancel();
        }
    }
}

/// The body of the thread: returns when the queue is closed and empty.
pub(super) fn run(mut pencil: Pencil, mut queue: mpsc::Receiver<Message<Box<dyn Write>>>) {
    let mut taken = Vec::with_capacity(BATCH);
    while queue.blocking_recv_many(&mut taken, BATCH) > 0 {
        let mut batch = Vec::with_capacity(taken.len());
        for message in taken.drain(..) {
            match message {
                Message::Do(write) => batch.push(write),
                Message::Close => queue.close(),
            }
        }
        settle(&mut pencil, batch);
    }
    // Leaves one file instead of three. What cannot be moved now stays in the log and is moved at the next start.
    if let Err(error) = pencil.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
        tracing::debug!(%error, "the database's log was not emptied at the close");
    }
}

enum Failure {
    /// The transaction could not begin: nobody's fault, everybody's failure.
    NotBegun(StoreError),
    /// One operation or the commit failed.
    NotCommitted(StoreError),
}

fn settle(pencil: &mut Pencil, mut batch: Vec<Box<dyn Write>>) {
    match transact(pencil, &mut batch) {
        Ok(()) => answer(batch, &Ok(())),
        // One bad write must not fail its neighbours, so each gets a transaction of its own.
        Err(Failure::NotCommitted(_)) if batch.len() > 1 => {
            for write in batch {
                settle(pencil, vec![write]);
            }
        }
        Err(Failure::NotBegun(error) | Failure::NotCommitted(error)) => answer(batch, &Err(error)),
    }
}

fn transact(pencil: &mut Pencil, batch: &mut [Box<dyn Write>]) -> Result<(), Failure> {
    let Some(sync) = batch.iter().map(|write| write.sync()).max() else { return Ok(()) };
    let transaction = pencil.begin(sync).map_err(Failure::NotBegun)?;
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
