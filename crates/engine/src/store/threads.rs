//! A set of named threads behind one bounded queue, and the way to end them: what is queued is done, then they are joined.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, watch};

use super::error::StoreError;

/// What comes through the queue.
pub(super) enum Message<J> {
    /// A piece of work.
    Do(J),
    /// Take no more; finish what is queued.
    Close,
}

/// Threads that take work of kind `J`.
pub(super) struct Threads<J> {
    queue: mpsc::Sender<Message<J>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
    /// Closed when the last thread has dropped everything it had.
    alive: watch::Receiver<()>,
}

impl<J: Send + 'static> Threads<J> {
    /// Starts one thread for each of `bodies`. `queue` is the sending end of what they take their work from.
    pub(super) fn start<B>(name: &str, queue: mpsc::Sender<Message<J>>, bodies: Vec<B>) -> Result<Self, StoreError>
    where
        B: FnOnce() + Send + 'static,
    {
        let (here, alive) = watch::channel(());
        let mut joins = Vec::with_capacity(bodies.len());
        for body in bodies {
            let here = here.clone();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                body();
                drop(here);
            });
            joins.push(thread.map_err(|error| StoreError::Unwritable(format!("no thread for it: {error}")))?);
        }
        Ok(Self { queue, joins: Mutex::new(joins), alive })
    }

    /// Puts work into the queue, waiting while it is full.
    ///
    /// # Cancel safety
    /// Safe: the work is queued or it is not. Once queued it is done, whether or not anybody waits for it.
    pub(super) async fn send(&self, work: J) -> Result<(), StoreError> {
        self.queue.send(Message::Do(work)).await.map_err(|_| StoreError::Closed)
    }

    /// Lets the threads finish what is queued and joins them. Later calls wait for the same.
    ///
    /// # Cancel safety
    /// Safe: the threads end anyway; call it again to wait for that.
    pub(super) async fn close(&self) {
        // A failed send means that they are closed already.
        let _ = self.queue.send(Message::Close).await;
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
        let joins = std::mem::take(&mut *self.joins.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in joins {
            if thread.join().is_err() {
                tracing::error!("a database thread panicked");
            }
        }
    }
}
