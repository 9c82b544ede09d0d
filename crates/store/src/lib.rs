//! The SQLite store: one writer thread that commits in batches, reader threads, and a thread for exports and backups.
//!
//! The store keeps turns and views as JSON text and does not interpret them. Each operation is a closure that is sent
//! to a thread, so a cancelled caller never leaves half an operation behind.

mod agents;
mod amendments;
mod archive;
mod audit;
mod backup;
mod boot;
mod channel_state;
mod cookies;
mod cursor;
mod error;
mod history;
mod hold;
mod hook_outbox;
mod inspect;
mod journal;
mod lock;
mod notes;
mod pending_replies;
mod reader;
mod retention;
mod rows;
mod runs;
mod schema;
mod sessions;
mod spend;
mod temp_file;
#[cfg(test)]
mod tests;
mod tokens;
mod worker_threads;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, InterruptHandle};
use rustix::fs::statvfs;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use agents::StoredAgent;
pub use archive::{ArchivedHistoryItem, ImportOutcome, SessionArchive};
pub use audit::AuditEntry;
pub use backup::{RestoredDatabase, check_database_copy, copy_database, find_running_daemon, restore_database};
pub use cookies::StoredCookie;
pub use error::StoreError;
pub use hook_outbox::{QueuedWebhook, StoredWebhook};
pub use inspect::{DatabaseInspection, DatabaseState, inspect_database};
pub use journal::JournalRow;
pub use lock::LockHolder;
pub use notes::{FoundNote, Note, NoteScope, SaveNoteOutcome};
pub use pending_replies::{PendingReply, StaleReply};
pub use retention::IdleSession;
pub use rows::{
    AcceptRunOutcome, HistoryItem, PrivateEndpoints, RunListFilter, RunRow, SealedRun, SessionListFilter, SessionSetup,
    SessionSetupAccess, SessionSetupOutcome, StoredRunState, StoredSession, StoredToken,
};
pub use sessions::DeleteSessionOutcome;
pub use spend::RunSpend;
pub use temp_file::TempFile;

use boot::BootNumber;
use lock::DirectoryLock;
use reader::ReadOperation;
use worker_threads::WorkerThreads;
use writer::{SyncLevel, WriteOperation};

/// Operations that can wait for a thread before callers have to wait for room. Larger than the number of runs in
/// flight, so that queueing a write does not wait in practice.
const QUEUE_CAPACITY: usize = 1024;

/// Below this much free space a disk counts as full: the write-ahead log grows to about this size.
const MIN_FREE_BYTES: u64 = 4 << 20;

/// Exports and backups that can be queued before callers have to wait for room.
const COPY_QUEUE_CAPACITY: usize = 16;

/// Pause between two interrupts of the copier while the store closes.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(10);

const READER_THREADS: usize = 2;

/// The database of one data directory. Clones share one store.
///
/// # Cancel safety
/// Every operation is sent to a thread as soon as its future is polled and the queue has room. From then on it runs
/// whether or not the caller waits; before, it does not run at all. A write that was answered is durable, except for
/// the journal: a crash of the machine can lose its latest lines.
#[derive(Clone)]
pub struct Store(Arc<StoreInner>);

struct StoreInner {
    writer: WorkerThreads<Box<dyn WriteOperation>>,
    readers: WorkerThreads<ReadOperation>,
    /// Runs exports and backups one after the other, so that they delay no other read.
    copier: WorkerThreads<ReadOperation>,
    /// Interrupts the copier's current statement.
    copy_interrupt: InterruptHandle,
    /// Cancelled when no further copy may begin.
    copies_cancelled: CancellationToken,
    data_dir: PathBuf,
    file: PathBuf,
    /// Cancelled at the first write that was refused because a later daemon has opened the database.
    fenced: CancellationToken,
}

impl Store {
    /// Opens the database `file` in a data directory and migrates it to the newest schema. Creates the directory when
    /// it does not exist. The directory stays locked until the store is closed or dropped.
    ///
    /// # Errors
    /// [`StoreError`] names the process that holds the directory, or the defect of the file.
    pub fn open(data_dir: &Path, file: &str) -> Result<Self, StoreError> {
        schema::create_directory(data_dir)?;
        let lock = DirectoryLock::acquire(data_dir)?;
        let path = data_dir.join(file);
        let (mut connection, index) = schema::open_writer(&path)?;
        let boot = take_boot_number(&mut connection).map_err(|error| error.with_file_name(&path))?;
        let (to_readers, reads) = mpsc::channel(QUEUE_CAPACITY);
        let reads: reader::ReadQueue = Arc::new(Mutex::new(reads));
        let mut readers = Vec::with_capacity(READER_THREADS);
        for _ in 0..READER_THREADS {
            let (connection, reads) = (schema::open_reader(&path, index)?, Arc::clone(&reads));
            readers.push(move || reader::run(connection, &reads));
        }
        let (to_writer, writes) = mpsc::channel(QUEUE_CAPACITY);
        let fenced = CancellationToken::new();
        let connection = writer::WriteConnection::new(connection, boot, fenced.clone());
        let write = move || {
            writer::run(connection, writes);
            drop(lock);
        };
        let copies = schema::open_reader(&path, index)?;
        let (copy_interrupt, copies_cancelled) = (copies.get_interrupt_handle(), CancellationToken::new());
        let data_dir = data_dir.to_path_buf();
        let (to_copier, copy_queue) = mpsc::channel(COPY_QUEUE_CAPACITY);
        let copy_queue: reader::ReadQueue = Arc::new(Mutex::new(copy_queue));
        let copier = WorkerThreads::start("quell-store-c", to_copier, vec![move || reader::run(copies, &copy_queue)])?;
        let readers = WorkerThreads::start("quell-store-r", to_readers, readers)?;
        let writer = WorkerThreads::start("quell-store-w", to_writer, vec![write])?;
        Ok(Self(Arc::new(StoreInner {
            writer,
            readers,
            copier,
            copy_interrupt,
            copies_cancelled,
            data_dir,
            file: path,
            fenced,
        })))
    }

    /// Cancelled once a write was refused because another daemon has opened the database since. All later writes are
    /// refused, too.
    #[must_use]
    pub fn fenced(&self) -> &CancellationToken {
        &self.0.fenced
    }

    /// Finishes the queued operations, moves the write-ahead log into the file, joins the threads and unlocks the
    /// directory. From now on operations of other clones are refused.
    ///
    /// # Cancel safety
    /// Safe: the close continues by itself. Dropped before its first poll it does nothing.
    pub async fn close(self) {
        // A copy may be cut short: its caller gets an error.
        self.0.copies_cancelled.cancel();
        let mut copier = std::pin::pin!(self.0.copier.close());
        loop {
            self.0.copy_interrupt.interrupt();
            tokio::select! {
                () = &mut copier => break,
                // An interrupt ends only a statement that has begun, and a copy may be about to begin. So repeat it.
                () = tokio::time::sleep(INTERRUPT_INTERVAL) => {}
            }
        }
        // Readers first: the writer must be the last connection, so that it can leave a single file behind.
        self.0.readers.close().await;
        self.0.writer.close().await;
    }

    /// Writes to the database without changing anything in it. Takes the boot number of this start if that is still
    /// to be done.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn write_probe(&self) -> Result<(), StoreError> {
        self.write_relaxed(|db| db.execute("UPDATE boot SET number = number", []).map(drop)).await
    }

    /// Checks the free space of the disk, then does [`Store::write_probe`].
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be written, or the disk is nearly full.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn check_health(&self) -> Result<(), StoreError> {
        // A small write can find room in the log when the disk is full for everything else.
        let free = statvfs(&self.0.file).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        if let Ok(free @ 0..MIN_FREE_BYTES) = free {
            return Err(StoreError::LowDiskSpace { file: self.0.file.clone(), free });
        }
        self.write_probe().await
    }

    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.queue_write(SyncLevel::Full, work).await
    }

    /// As [`Store::write`], but the commit does not wait for a sync of the disk.
    async fn write_relaxed<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.queue_write(SyncLevel::Normal, work).await
    }

    async fn queue_write<T, F>(&self, sync: SyncLevel, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (write, answer) = writer::queued_write(sync, work);
        self.0.writer.send(write).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (read, answer) = reader::queued_read(work);
        self.0.readers.send(read).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

impl Store {
    /// Runs a short read outside of any transaction.
    async fn read_raw<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (read, answer) = reader::queued_raw_read(work);
        self.0.readers.send(read).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Runs a long read on the copier thread.
    async fn run_on_copier<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let cancelled = self.0.copies_cancelled.clone();
        let unless_closed =
            move |db: &mut Connection| if cancelled.is_cancelled() { Err(StoreError::Closed) } else { work(db) };
        let (read, answer) = reader::queued_raw_read(unless_closed);
        self.0.copier.send(read).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

/// Takes the boot number of this start. If the database cannot be written now, the first write takes it.
fn take_boot_number(connection: &mut Connection) -> Result<BootNumber, StoreError> {
    let mut boot = BootNumber::read_previous(connection)?;
    match boot.claim(connection) {
        Err(error) if error.is_transient() => {
            tracing::error!(%error, "the database cannot be written for now: runs can be read, and new ones are refused");
        }
        taken => drop(taken?),
    }
    Ok(boot)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}
