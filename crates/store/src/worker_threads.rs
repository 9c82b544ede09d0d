//! A set of named threads behind a bounded queue; closing finishes the queue and handles the threads.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};

use crate::{StoreError, StoreFuture};

pub(crate) enum WorkerMessage<J> {
    Do(J),
    /// Accept no more work; finish the queue.
    Close,
}

/// Work for a thread, and where its result arrives.
pub(crate) struct QueuedWork<J, T> {
    pub(crate) work: J,
    pub(crate) answer: oneshot::Receiver<Result<T, StoreError>>,
}

pub(crate) struct WorkerThreads<J> {
    queue: mpsc::Sender<WorkerMessage<J>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// Closed when the last thread has dropped everything it held.
    all_ended: watch::Receiver<()>,
}

impl<J: Send + 'static> WorkerThreads<J> {
    /// Starts one thread for each of `bodies`. `queue` is the sending end of the queue that they receive from.
    pub(crate) fn start(
        name: &str,
        queue: mpsc::Sender<WorkerMessage<J>>,
        bodies: Vec<impl FnOnce() + Send + 'static>,
    ) -> Result<Self, StoreError> {
        let (alive_guard, alive) = watch::channel(());
        let mut handles = Vec::with_capacity(bodies.len());
        for body in bodies {
            let alive_guard = alive_guard.clone();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                body();
                drop(alive_guard);
            });
            handles.push(thread.map_err(|error| StoreError::Unwritable(format!("cannot start a thread: {error}")))?);
        }
        Ok(Self { queue, handles: Mutex::new(handles), all_ended: alive })
    }

    /// Queues work; waits while the queue is full.
    ///
    /// # Cancel safety
    /// Safe: dropped before the work is queued, nothing happens. Queued work is done whether or not the caller waits.
    pub(crate) async fn send(&self, work: J) -> Result<(), StoreError> {
        self.queue.send(WorkerMessage::Do(work)).await.map_err(|_| StoreError::Closed)
    }

    /// Lets the threads finish the queue, and joins them. Later calls wait for the same end.
    ///
    /// # Cancel safety
    /// Safe: the threads end in any case; a second call waits for them.
    pub(crate) async fn close(&self) {
        // The send fails only when they are closed already.
        let _ = self.queue.send(WorkerMessage::Close).await;
        let mut alive = self.all_ended.clone();
        while alive.changed().await.is_ok() {}
        let handles = std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in handles {
            if thread.join().is_err() {
                tracing::error!("a database thread panicked");
            }
        }
    }
}

/// Queues work at the first poll, and waits for its result.
pub(crate) fn send_work<J: Send + 'static, T: Send + 'static>(
    threads: &WorkerThreads<J>,
    queued: QueuedWork<J, T>,
) -> StoreFuture<'_, T> {
    Box::pin(async move {
        threads.send(queued.work).await?;
        queued.answer.await.map_err(|_| StoreError::Closed)?
    })
}
