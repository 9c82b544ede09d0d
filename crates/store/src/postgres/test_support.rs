//! For tests: the connection of another program to the database.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use tokio_postgres::types::ToSql;

use super::PostgresSettings;
use super::boot::BOOT_LOCK;
use super::columns::get;
use super::connection::PgConnection;
use super::notes;
use super::settings::Connector;
use crate::{Note, NoteScope, SaveNoteOutcome, StoreError};

type Work = Box<dyn FnOnce(&PgConnection) + Send>;

/// A connection on a thread of its own, because callers may be on one of an async runtime. It ends with this.
pub(crate) struct ConnectionThread(Sender<Work>);

impl ConnectionThread {
    /// Connects.
    pub(crate) fn start(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(settings)?);
        let (sender, works) = mpsc::channel::<Work>();
        let thread = std::thread::Builder::new().name("other-program".into()).spawn(move || {
            let connection = PgConnection::new(connector);
            works.into_iter().for_each(|work| work(&connection));
        });
        thread.map_err(|error| StoreError::Unwritable(format!("cannot start a thread: {error}")))?;
        let started = Self(sender);
        started.call(PgConnection::ensure_connected)?;
        Ok(started)
    }

    /// Waits until no daemon writes, and keeps all from writing until `ROLLBACK`.
    pub(crate) fn lock_writes(&self) -> Result<(), StoreError> {
        self.run(format!("BEGIN; SELECT pg_advisory_xact_lock({BOOT_LOCK})"))
    }

    pub(crate) fn run(&self, statements: String) -> Result<(), StoreError> {
        self.call(move |db| db.run(&statements))
    }

    /// Executes a statement; returns the texts in the first column of its rows.
    pub(crate) fn query_texts(&self, sql: String, values: Vec<String>) -> Result<Vec<String>, StoreError> {
        self.call(move |db| {
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
            db.query(&sql, &values)?.iter().map(|row| get(row, 0)).collect()
        })
    }

    pub(crate) fn save_note(&self, scope: NoteScope, note: Note) -> Result<SaveNoteOutcome, StoreError> {
        self.call(move |db| notes::insert_note(db, &scope, &note))
    }

    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&PgConnection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = mpsc::channel();
        // Where the thread has ended, nothing is answered.
        let _ = self.0.send(Box::new(move |db| drop(answer.send(work(db)))));
        answered.recv().unwrap_or_else(|_| Err(StoreError::Bug("the thread of the connection has ended".to_owned())))
    }
}
