//! The SQLite store: one writer thread that commits in batches, reader threads, and a thread for exports and backups.
//!
//! Each operation is a closure that is sent to a thread, so a cancelled caller never leaves half an operation behind.
//! Only this module knows `rusqlite`.

mod access;
mod agents;
mod amendments;
mod archive;
mod audit;
mod backup;
mod boot;
mod channels;
mod columns;
mod copy;
mod file_changes;
mod history;
mod hold;
mod inspect;
mod journal;
mod maintenance;
mod notes;
mod push_targets;
mod read_connection;
mod responses;
mod runs;
mod schedules;
mod schema;
mod sessions;
mod spend;
#[cfg(test)]
mod tests;
mod webhooks;
mod write_connection;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use backup::{RestoredDatabase, check_database_copy, copy_database, restore_database};
pub(crate) use copy::SqliteCopy;
pub use inspect::inspect_database;
#[cfg(feature = "test-support")]
pub(crate) use notes::insert_note;

use crate::batch_writer::{self, SyncLevel, WriteOperation};
use crate::lock::{DirectoryLock, create_data_directory};
use crate::reader_threads::{self, ReadOperation, ReadQueue};
use crate::worker_threads::{WorkerThreads, send_work};
use crate::{StoreBackend, StoreError, StoreFuture};
use boot::BootNumber;
use read_connection::{ReadConnection, ReadInterrupt};
use write_connection::WriteConnection;

/// Operations that can wait for a thread before callers have to wait for room. Larger than the number of runs in
/// flight, so that queueing a write does not wait in practice.
const QUEUE_CAPACITY: usize = 1024;

/// Exports and backups that can be queued before callers have to wait for room.
const COPY_QUEUE_CAPACITY: usize = 16;

const READER_THREADS: usize = 2;

/// The database of one data directory. Clones share one store.
///
/// A journal line that was answered survives the end of the process; a crash of the machine can lose the latest ones.
/// All other writes that were answered are on the disk.
#[derive(Clone)]
pub struct SqliteStore(Arc<StoreInner>);

struct StoreInner {
    writer: WorkerThreads<Box<dyn WriteOperation<Connection>>>,
    readers: WorkerThreads<ReadOperation<ReadConnection>>,
    /// Runs exports and backups one after the other, so that they delay no other read.
    copier: WorkerThreads<ReadOperation<ReadConnection>>,
    copy_interrupt: ReadInterrupt,
    /// Cancelled when no further copy may begin.
    copies_cancelled: CancellationToken,
    data_dir: PathBuf,
    file: PathBuf,
    /// Cancelled at the first write that was refused because a later daemon has opened the database.
    fenced: CancellationToken,
}

impl StoreBackend for SqliteStore {}

impl SqliteStore {
    /// Opens the database `file` in a data directory and migrates it to the newest schema. Creates the directory when
    /// it does not exist. The directory stays locked until the store is closed or dropped.
    ///
    /// # Errors
    /// [`StoreError`] names the process that holds the directory, or the defect of the file.
    pub fn open(data_dir: &Path, file: &str) -> Result<Self, StoreError> {
        create_data_directory(data_dir)?;
        let lock = DirectoryLock::acquire(data_dir)?;
        let path = data_dir.join(file);
        let (mut connection, index) = schema::open_writer(&path)?;
        let boot = take_boot_number(&mut connection).map_err(|error| error.with_file_name(&path))?;
        let (to_readers, reads) = mpsc::channel(QUEUE_CAPACITY);
        let reads: ReadQueue<ReadConnection> = Arc::new(Mutex::new(reads));
        let mut readers = Vec::with_capacity(READER_THREADS);
        for _ in 0..READER_THREADS {
            let (mut connection, reads) = (ReadConnection::new(path.clone(), index), Arc::clone(&reads));
            readers.push(move || {
                // Beside the rest of the start, whose own reads wait for it. After an error the first read tries again,
                // and answers with it.
                let _ = connection.open();
                reader_threads::run(connection, &reads);
            });
        }
        let (to_writer, writes) = mpsc::channel(QUEUE_CAPACITY);
        let fenced = CancellationToken::new();
        let connection = WriteConnection::new(connection, boot, fenced.clone());
        let write = move || {
            batch_writer::run(connection, writes);
            drop(lock);
        };
        let copies = ReadConnection::new(path.clone(), index);
        let (copy_interrupt, copies_cancelled) = (copies.interrupt(), CancellationToken::new());
        let data_dir = data_dir.to_path_buf();
        let (to_copier, copy_queue) = mpsc::channel(COPY_QUEUE_CAPACITY);
        let copy_queue: ReadQueue<ReadConnection> = Arc::new(Mutex::new(copy_queue));
        let copier =
            WorkerThreads::start("quell-store-c", to_copier, vec![move || reader_threads::run(copies, &copy_queue)])?;
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

    /// Queues a write. Its commit waits for a sync of the disk.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        send_work(&self.0.writer, batch_writer::queued_write(SyncLevel::Full, work))
    }

    /// As [`SqliteStore::write`], but the commit does not wait for a sync of the disk.
    fn write_relaxed<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        send_work(&self.0.writer, batch_writer::queued_write(SyncLevel::Normal, work))
    }

    /// Queues a read that sees one state of the database.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        // The transaction makes several statements see the same state.
        self.read_raw(|connection| Ok(connection.transaction().and_then(|transaction| work(&transaction))?))
    }

    /// Queues a short read outside of any transaction.
    fn read_raw<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        send_work(&self.0.readers, reader_threads::queued_read(|db: &mut ReadConnection| work(db.open()?)))
    }

    /// Queues a long read on the copier thread.
    fn run_on_copier<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let cancelled = self.0.copies_cancelled.clone();
        let unless_closed = move |db: &mut ReadConnection| {
            if cancelled.is_cancelled() { Err(StoreError::Closed) } else { work(db.open()?) }
        };
        send_work(&self.0.copier, reader_threads::queued_read(unless_closed))
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
