//! The PostgreSQL store: one writer thread that commits in batches, reader threads, and a thread for exports.
//!
//! Each operation is a closure that is sent to a thread, as in the SQLite store, so a cancelled caller never leaves a
//! transaction open. Only this module knows `tokio_postgres`.

mod access;
mod agents;
mod amendments;
mod archive;
mod audit;
mod boot;
mod channels;
mod cluster;
mod columns;
mod connection;
mod copy;
mod duties;
mod file_changes;
mod history;
mod hold;
mod inspect;
mod journal;
mod listener;
mod maintenance;
mod membership;
mod notes;
mod push_targets;
mod responses;
mod runs;
mod schedules;
mod schema;
mod sessions;
mod settings;
mod spend;
#[cfg(feature = "test-support")]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
mod tls;
mod webhooks;
mod write_connection;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use copy::PostgresCopy;
pub use inspect::inspect_database;
pub use settings::PostgresSettings;

use crate::batch_writer::{self, SyncLevel, WriteOperation};
use crate::lock::{DirectoryLock, create_data_directory};
use crate::reader_threads::{self, ReadOperation, ReadQueue};
use crate::worker_threads::{WorkerThreads, send_work};
use crate::{ClusterStore, StoreBackend, StoreError, StoreFuture};
use cluster::{ClusterMember, PgNode};
use connection::PgConnection;
use settings::Connector;
use write_connection::WriteConnection;

/// Operations that can wait for a thread before callers have to wait for room. Larger than the number of runs in
/// flight, so that queueing a write does not wait in practice.
const QUEUE_CAPACITY: usize = 1024;

/// Exports that can be queued before callers have to wait for room.
const COPY_QUEUE_CAPACITY: usize = 16;

/// Readers spend most of their time waiting for the server.
const READER_THREADS: usize = 4;

/// A database on a PostgreSQL server, version 15 or newer. Clones share one store.
///
/// A journal line that was answered survives the end of the process; a crash of the server can lose the latest ones.
/// All other writes that were answered are durable, as the server is configured.
#[derive(Clone)]
pub struct PostgresStore(Arc<StoreInner>);

struct StoreInner {
    writer: WorkerThreads<Box<dyn WriteOperation<PgConnection>>>,
    readers: WorkerThreads<ReadOperation<PgConnection>>,
    /// Runs exports one after the other, so that they delay no other read.
    copier: WorkerThreads<ReadOperation<PgConnection>>,
    /// For exports while they are read.
    data_dir: PathBuf,
    /// Cancelled at the first write that was refused because a later daemon has opened the database.
    fenced: CancellationToken,
    /// If the daemon is a node of a cluster.
    node: Option<Arc<PgNode>>,
}

impl StoreBackend for PostgresStore {
    fn cluster(&self) -> Option<Arc<dyn ClusterStore>> {
        let node = self.0.node.clone()?;
        Some(Arc::new(ClusterMember { store: self.clone(), node }))
    }
}

impl PostgresStore {
    /// Connects, brings the schema up to date, and fences off earlier daemons of this database, or joins their cluster. The
    /// data directory stays locked until the store is closed or dropped. Blocks until the server has answered.
    ///
    /// # Errors
    /// [`StoreError`] says what is wrong with the settings, the server or the schema.
    pub fn open(settings: &PostgresSettings, data_dir: &Path) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(settings)?);
        create_data_directory(data_dir)?;
        let lock = DirectoryLock::acquire(data_dir)?;
        let fenced = CancellationToken::new();
        let writer = on_own_thread({
            let (connector, fenced) = (Arc::clone(&connector), fenced.clone());
            let (cluster, data_dir) = (settings.cluster.clone(), data_dir.to_path_buf());
            move || WriteConnection::open(PgConnection::new(connector), cluster.as_ref(), &data_dir, fenced)
        })?;
        let node = settings.cluster.as_ref();
        let node = node
            .map(|cluster| PgNode::start(&connector, cluster, writer.membership(cluster)))
            .transpose()?
            .map(Arc::new);
        let (to_writer, writes) = mpsc::channel(QUEUE_CAPACITY);
        let write = move || {
            batch_writer::run(writer, writes);
            drop(lock);
        };
        let (to_readers, reads) = mpsc::channel(QUEUE_CAPACITY);
        let (to_copier, copies) = mpsc::channel(COPY_QUEUE_CAPACITY);
        let reads: ReadQueue<PgConnection> = Arc::new(Mutex::new(reads));
        let copies: ReadQueue<PgConnection> = Arc::new(Mutex::new(copies));
        let reader_of = |queue: &ReadQueue<PgConnection>| {
            let (connector, queue) = (Arc::clone(&connector), Arc::clone(queue));
            move || reader_threads::run(PgConnection::new(connector), &queue)
        };
        let readers = (0..READER_THREADS).map(|_| reader_of(&reads)).collect();
        Ok(Self(Arc::new(StoreInner {
            writer: WorkerThreads::start("quell-store-w", to_writer, vec![write])?,
            readers: WorkerThreads::start("quell-store-r", to_readers, readers)?,
            copier: WorkerThreads::start("quell-store-c", to_copier, vec![reader_of(&copies)])?,
            data_dir: data_dir.to_path_buf(),
            fenced,
            node,
        })))
    }

    /// Queues a write. Its commit waits for the disk of the server.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&PgConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        send_work(&self.0.writer, batch_writer::queued_write(SyncLevel::Full, work))
    }

    /// As [`PostgresStore::write`], but the commit does not wait for the disk of the server.
    fn write_relaxed<T: Send + 'static>(
        &self,
        work: impl FnMut(&PgConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        send_work(&self.0.writer, batch_writer::queued_write(SyncLevel::Normal, work))
    }

    /// Queues a read of one statement.
    fn read<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&PgConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        send_work(&self.0.readers, reader_threads::queued_read(move |db: &mut PgConnection| db.read(&mut work)))
    }

    /// Queues a read of several statements that see one state of the database.
    fn read_snapshot<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&PgConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let read = move |db: &mut PgConnection| db.read(&mut |db| db.in_snapshot(&mut work));
        send_work(&self.0.readers, reader_threads::queued_read(read))
    }

    /// Queues a long read of one state of the database.
    fn run_on_copier<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&PgConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let read = move |db: &mut PgConnection| db.read(&mut |db| db.in_snapshot(&mut work));
        send_work(&self.0.copier, reader_threads::queued_read(read))
    }
}

/// Runs blocking work that must not run on a thread of an async runtime, and waits for it.
fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let thread = std::thread::Builder::new().name("quell-store-o".to_owned()).spawn(work);
    let thread = thread.map_err(|error| StoreError::Unwritable(format!("cannot start a thread: {error}")))?;
    thread.join().unwrap_or_else(|_| Err(StoreError::Bug("the thread that opens the database panicked".to_owned())))
}
