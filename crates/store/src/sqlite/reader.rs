//! Reader threads, each with a read-only connection, so that no read waits behind a write. Each read sees one state
//! of the database, with all writes that were answered before it was queued.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::worker_threads::{QueuedWork, WorkerMessage};
use crate::StoreError;

/// One read together with the caller that waits for it.
pub(super) type ReadOperation = Box<dyn FnOnce(&mut Connection) + Send>;

/// The queue that the reader threads share: the thread that holds the lock waits for a read, the others wait for the
/// lock.
pub(super) type ReadQueue = Arc<Mutex<mpsc::Receiver<WorkerMessage<ReadOperation>>>>;

pub(super) fn queued_read<T: Send + 'static>(
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> QueuedWork<ReadOperation, T> {
    let (caller, answer) = oneshot::channel();
    let read = move |connection: &mut Connection| {
        if caller.is_closed() {
            return;
        }
        // The transaction makes several statements see the same state.
        let output = connection.transaction().and_then(|transaction| work(&transaction));
        let _ = caller.send(output.map_err(StoreError::from));
    };
    QueuedWork { work: Box::new(read), answer }
}

/// As [`queued_read`], for work that opens its own transactions, or none.
pub(super) fn queued_raw_read<T: Send + 'static>(
    work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
) -> QueuedWork<ReadOperation, T> {
    let (caller, answer) = oneshot::channel();
    let read = move |connection: &mut Connection| {
        if !caller.is_closed() {
            let _ = caller.send(work(connection));
        }
    };
    QueuedWork { work: Box::new(read), answer }
}

/// Body of a reader thread: returns when the queue is closed and empty.
pub(super) fn run(mut connection: Connection, queue: &ReadQueue) {
    while let Some(read) = next_read(queue) {
        read(&mut connection);
    }
}

fn next_read(queue: &ReadQueue) -> Option<ReadOperation> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match queue.blocking_recv()? {
            WorkerMessage::Do(read) => return Some(read),
            WorkerMessage::Close => queue.close(),
        }
    }
}
