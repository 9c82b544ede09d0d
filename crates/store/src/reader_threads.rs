//! Reader threads, each with a connection of its own, so that no read waits behind a write. A read sees all writes that
//! were answered before it was queued.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::StoreError;
use crate::worker_threads::{QueuedWork, WorkerMessage};

/// One read together with the caller that waits for it.
pub(crate) type ReadOperation<C> = Box<dyn FnOnce(&mut C) + Send>;

/// The queue that the reader threads share: the thread that holds the lock waits for a read, the others wait for the
/// lock.
pub(crate) type ReadQueue<C> = Arc<Mutex<mpsc::Receiver<WorkerMessage<ReadOperation<C>>>>>;

/// A read that is left out when its caller has gone by then.
pub(crate) fn queued_read<C: 'static, T: Send + 'static>(
    work: impl FnOnce(&mut C) -> Result<T, StoreError> + Send + 'static,
) -> QueuedWork<ReadOperation<C>, T> {
    let (caller, answer) = oneshot::channel();
    let read = move |connection: &mut C| {
        if !caller.is_closed() {
            let _ = caller.send(work(connection));
        }
    };
    QueuedWork { work: Box::new(read), answer }
}

/// Body of a reader thread: returns when the queue is closed and empty.
pub(crate) fn run<C>(mut connection: C, queue: &ReadQueue<C>) {
    while let Some(read) = next_read(queue) {
        read(&mut connection);
    }
}

fn next_read<C>(queue: &ReadQueue<C>) -> Option<ReadOperation<C>> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match queue.blocking_recv()? {
            WorkerMessage::Do(read) => return Some(read),
            WorkerMessage::Close => queue.close(),
        }
    }
}
