//! The threads that read, each on a connection of its own, so that no read waits behind a write. Every read sees one
//! state of the database, which includes everything that was answered before it was asked.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::error::StoreError;
use super::threads::Message;

/// One read with the caller that waits for it.
pub(super) type Read = Box<dyn FnOnce(&mut Connection) + Send>;

/// The queue that the reading threads share: the idle one that has the lock waits, the others wait for the lock.
pub(super) type Queue = Arc<Mutex<mpsc::Receiver<Message<Read>>>>;

/// A read and the place where its answer arrives.
pub(super) fn asked<T, F>(work: F) -> (Read, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    let read = move |connection: &mut Connection| {
        if caller.is_closed() {
            return;
        }
        // The transaction makes several statements see the same state.
        let output = connection.transaction().and_then(|transaction| work(&transaction));
        let _ = caller.send(output.map_err(StoreError::from));
    };
    (Box::new(read), answer)
}

/// As [`asked`], for work that brings its own transactions or none.
pub(super) fn asked_raw<T, F>(work: F) -> (Read, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    let read = move |connection: &mut Connection| {
        if !caller.is_closed() {
            let _ = caller.send(work(connection));
        }
    };
    (Box::new(read), answer)
}

/// The body of a thread: returns when the queue is closed and empty.
pub(super) fn run(mut connection: Connection, queue: &Queue) {
    while let Some(read) = next(queue) {
        read(&mut connection);
    }
}

fn next(queue: &Queue) -> Option<Read> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match queue.blocking_recv()? {
            Message::Do(read) => return Some(read),
            Message::Close => queue.close(),
        }
    }
}
