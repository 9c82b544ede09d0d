//! The database: what was accepted, what was said, who may ask. It knows neither turns nor views from the inside; it keeps
//! their JSON.
//!
//! One thread writes and commits whatever is queued at once; a few threads read. An operation is a value that is handed to
//! a thread, so a caller that leaves never leaves half an operation behind.

mod agents;
mod amendments;
mod archive;
mod audit;
mod backup;
mod boot;
mod channels;
mod cookies;
mod cursor;
mod error;
mod history;
mod hold;
mod inspect;
mod journal;
mod lock;
mod notes;
mod outbox;
mod reader;
mod retention;
mod rows;
mod runs;
mod schema;
mod sessions;
mod spend;
mod spool;
#[cfg(test)]
mod tests;
mod threads;
mod tokens;
mod traces;
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
pub use archive::{Archive, Archived, Imported};
pub use audit::AuditEntry;
pub use backup::{Restored, check_copy, copy, holder, restore};
pub use cookies::StoredCookie;
pub use error::StoreError;
pub use inspect::{Database, Inspection, inspect};
pub use lock::Holder;
pub use notes::{FoundNote, Note, NoteScope, Remembered};
pub use outbox::{Delivery, StoredDelivery};
pub use retention::Idle;
pub use rows::{
    AcceptedRow, Past, PrivateEndpoints, RunFilter, RunRow, SealedRun, SessionFilter, SessionSetup, SetUp, SetUpAccess,
    StoredSession, StoredState, StoredToken,
};
pub use sessions::Deleted;
pub use spend::Spent;
pub use spool::Spool;
pub use traces::{LeftTrace, Trace};

use boot::Boot;
use lock::DirectoryLock;
use reader::Read;
use threads::Threads;
use writer::{Sync, Write};

/// Operations that may wait for a thread before callers have to wait for room. More than there are runs in flight, so
/// that handing over a write does not wait in practice.
const QUEUE: usize = 1024;

/// Below this much free space a disk counts as full: the log of the database grows to about as much.
const ROOM: u64 = 4 << 20;

/// Copies that may wait for their turn before callers have to wait for room.
const COPIES: usize = 16;

/// Between two calls for a copy to end.
const HURRY: Duration = Duration::from_millis(10);

/// Threads that read.
const READERS: usize = 2;

/// The database of one data directory. Clones are the same store.
///
/// # Cancel safety
/// Every operation is handed to a thread as soon as its future is polled and the queue has room. From then on it is done
/// whether or not anybody waits for its answer; before, it is not done at all. An answered write is durable, but for the journal,
/// which a crash of the machine may take back.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    writer: Threads<Box<dyn Write>>,
    readers: Threads<Read>,
    /// Makes what takes long, one after the other, so that it holds up no other read.
    copier: Threads<Read>,
    /// Ends what the copier is at.
    hurry: InterruptHandle,
    /// Cancelled when no copy is to begin any more.
    hurried: CancellationToken,
    /// The data directory.
    ground: PathBuf,
    /// The database.
    file: PathBuf,
    /// Cancelled at the first write that came too late.
    fenced: CancellationToken,
}

impl Store {
    /// Opens the database `file` of a data directory, which is created when it does not exist, and brings it to the newest
    /// schema. The directory is locked until the store is closed or dropped.
    ///
    /// # Errors
    /// [`StoreError`] says who holds the directory, or what is wrong with the file.
    pub fn open(data_dir: &Path, file: &str) -> Result<Self, StoreError> {
        schema::create_directory(data_dir)?;
        let lock = DirectoryLock::take(data_dir)?;
        let path = data_dir.join(file);
        let (mut connection, index) = schema::open_writer(&path)?;
        let boot = begin(&mut connection).map_err(|error| error.of_file(&path))?;
        let (to_readers, reads) = mpsc::channel(QUEUE);
        let reads: reader::Queue = Arc::new(Mutex::new(reads));
        let mut readers = Vec::with_capacity(READERS);
        for _ in 0..READERS {
            let (connection, reads) = (schema::open_reader(&path, index)?, Arc::clone(&reads));
            readers.push(move || reader::run(connection, &reads));
        }
        let (to_writer, writes) = mpsc::channel(QUEUE);
        let fenced = CancellationToken::new();
        let pencil = writer::Pencil::new(connection, boot, fenced.clone());
        let write = move || {
            writer::run(pencil, writes);
            drop(lock);
        };
        let copies = schema::open_reader(&path, index)?;
        let (hurry, hurried) = (copies.get_interrupt_handle(), CancellationToken::new());
        let ground = data_dir.to_path_buf();
        let (to_copier, orders) = mpsc::channel(COPIES);
        let orders: reader::Queue = Arc::new(Mutex::new(orders));
        let copier = Threads::start("quell-store-c", to_copier, vec![move || reader::run(copies, &orders)])?;
        let readers = Threads::start("quell-store-r", to_readers, readers)?;
        let writer = Threads::start("quell-store-w", to_writer, vec![write])?;
        Ok(Self(Arc::new(Inner { writer, readers, copier, hurry, hurried, ground, file: path, fenced })))
    }

    /// Fires when another daemon has opened the database since and a write of this one was refused for that: all will be.
    #[must_use]
    pub fn fenced(&self) -> &CancellationToken {
        &self.0.fenced
    }

    /// Finishes what is queued, empties the log into the file, ends the threads and unlocks the directory. Operations of
    /// other clones are refused from now on.
    ///
    /// # Cancel safety
    /// Safe: what was begun goes on by itself. Dropped before its first poll it does nothing.
    pub async fn close(self) {
        // A copy that is cut short was nobody's promise; whoever waits for it is told.
        self.0.hurried.cancel();
        let mut copier = std::pin::pin!(self.0.copier.close());
        loop {
            self.0.hurry.interrupt();
            tokio::select! {
                () = &mut copier => break,
                // It reaches only what has begun, and a copy may be about to begin.
                () = tokio::time::sleep(HURRY) => {}
            }
        }
        // Readers first, so that the writer is the last one and can leave a single file behind.
        self.0.readers.close().await;
        self.0.writer.close().await;
    }

    /// Writes next to nothing. The first write takes the number of this start.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn touch(&self) -> Result<(), StoreError> {
        self.write_relaxed(|db| db.execute("UPDATE boot SET number = number", []).map(drop)).await
    }

    /// As [`Store::touch`], after a look for room on the disk.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be written, or would soon not be.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn probe(&self) -> Result<(), StoreError> {
        // A small write finds room in the log on a disk that is full for all others.
        let free = statvfs(&self.0.file).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        if let Ok(free @ 0..ROOM) = free {
            return Err(StoreError::NoRoom { file: self.0.file.clone(), free });
        }
        self.touch().await
    }

    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.hand_over(Sync::Full, work).await
    }

    /// As [`Store::write`], without a sync of the disk of its own.
    async fn write_relaxed<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.hand_over(Sync::Normal, work).await
    }

    async fn hand_over<T, F>(&self, sync: Sync, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (write, answer) = writer::asked(sync, work);
        self.0.writer.send(write).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (read, answer) = reader::asked(work);
        self.0.readers.send(read).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

impl Store {
    /// A short read outside of any transaction.
    async fn read_raw<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (read, answer) = reader::asked_raw(work);
        self.0.readers.send(read).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// A read that takes its time.
    async fn copy<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let hurried = self.0.hurried.clone();
        let unless_closed =
            move |db: &mut Connection| if hurried.is_cancelled() { Err(StoreError::Closed) } else { work(db) };
        let (read, answer) = reader::asked_raw(unless_closed);
        self.0.copier.send(read).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

/// Takes the number of this start. A database that cannot be written for now gets it with the first write.
fn begin(connection: &mut Connection) -> Result<Boot, StoreError> {
    let mut boot = Boot::find(connection)?;
    match boot.take(connection) {
        Err(error) if error.may_pass() => {
            tracing::error!(%error, "nothing can be written for now: runs can be looked at, and new ones are refused");
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
