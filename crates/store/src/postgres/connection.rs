//! A connection with its prepared statements, and errors of PostgreSQL as errors of the store.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error as _;
use std::io::Cursor;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, TryStreamExt as _};
use tokio::runtime::Runtime;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, SimpleQueryMessage, Statement};

use super::boot::BootNumber;
use super::settings::Connector;
use crate::StoreError;

/// How long a statement may take, and each further row, unless a connection has a limit of its own. A server that hangs
/// must not hold its callers.
#[cfg(not(test))]
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
#[cfg(test)]
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// After an attempt to connect that took at least this long, others fail with the same error for the same time: what is
/// queued does not wait one by one.
const SLOW_FAILURE: Duration = Duration::from_secs(1);

/// Values of a statement, in the order of their numbers.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A connection of one thread, which must not be one of an async runtime. It is made when it is first used, and again
/// when it was lost.
pub(super) struct PgConnection {
    connector: Arc<Connector>,
    answer_timeout: Duration,
    session: RefCell<Option<Session>>,
    unreachable: RefCell<Option<SlowFailure>>,
    /// Its writes are those of this start.
    writer: Cell<Option<BootNumber>>,
}

struct SlowFailure {
    at: Instant,
    error: StoreError,
}

/// A connection, and the runtime that drives it while something waits for it.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) runtime: Runtime,
    pub(super) statements: HashMap<String, Statement>,
    pub(super) answer_timeout: Duration,
}

/// Why a statement failed.
enum Failure {
    Postgres(tokio_postgres::Error),
    TimedOut,
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl PgConnection {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self::with_answer_timeout(connector, ANSWER_TIMEOUT)
    }

    /// A connection whose statements, and whose connecting, may take at most this long.
    pub(super) fn with_answer_timeout(connector: Arc<Connector>, answer_timeout: Duration) -> Self {
        let (session, unreachable) = (RefCell::new(None), RefCell::new(None));
        Self { connector, answer_timeout, session, unreachable, writer: Cell::new(None) }
    }

    /// Says whose writes go over this connection.
    pub(super) fn set_writer(&self, boot: BootNumber) {
        self.writer.set(Some(boot));
    }

    /// The start whose writes go over this connection.
    pub(super) fn writer(&self) -> Result<BootNumber, StoreError> {
        self.writer.get().ok_or_else(|| StoreError::Bug("this connection writes for no start".to_owned()))
    }

    /// Connects if there is no connection.
    pub(super) fn ensure_connected(&self) -> Result<(), StoreError> {
        let mut session = self.session.borrow_mut();
        if session.is_some() {
            return Ok(());
        }
        let begin = Instant::now();
        let mut unreachable = self.unreachable.borrow_mut();
        if let Some(failure) = &*unreachable
            && begin.duration_since(failure.at) < SLOW_FAILURE
        {
            return Err(failure.error.clone());
        }
        let connected = self.connector.connect(self.answer_timeout);
        *unreachable = match &connected {
            Err(error) if begin.elapsed() >= SLOW_FAILURE => {
                Some(SlowFailure { at: Instant::now(), error: error.clone() })
            }
            _ => None,
        };
        let connected = connected?;
        if let Some(name) = self.writer.get().and_then(BootNumber::connection_name) {
            let named = connected.wait(connected.client.batch_execute(&format!("SET application_name = '{name}'")));
            named.map_err(|_| StoreError::Unwritable("the new connection to PostgreSQL is lost".to_owned()))?;
        }
        *session = Some(connected);
        Ok(())
    }

    /// Whether the last statement found the connection broken.
    pub(super) fn is_lost(&self) -> bool {
        self.session.borrow().is_none()
    }

    /// Closes the connection; the server rolls back what is not committed.
    pub(super) fn disconnect(&self) {
        self.session.borrow_mut().take();
    }

    /// Runs a read, once again if the connection was lost: a restart of the server is noticed by the next statement.
    pub(super) fn read<T>(&self, work: &mut dyn FnMut(&Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let was_connected = !self.is_lost();
        self.ensure_connected()?;
        match work(self) {
            Err(_) if was_connected && self.is_lost() => {
                self.ensure_connected()?;
                work(self)
            }
            result => result,
        }
    }

    /// Runs statements that all see one state of the database.
    pub(super) fn in_snapshot<T>(&self, work: &mut dyn FnMut(&Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        let result = work(self);
        // Nothing was written; only the connection could fail, which the next statement tells.
        let ended = self.run("COMMIT");
        result.and_then(|output| ended.map(|()| output))
    }

    /// Runs statements without values.
    pub(super) fn run(&self, statements: &str) -> Result<(), StoreError> {
        self.with_session(|session| session.wait(session.client.batch_execute(statements)))
    }

    /// Runs statements without values in one exchange; returns the texts in the last row that any of them returned.
    pub(super) fn run_for_row(&self, statements: &str) -> Result<Vec<Option<String>>, StoreError> {
        let messages = self.with_session(|session| session.wait(session.client.simple_query(statements)))?;
        let row = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
            _ => None,
        });
        row.ok_or_else(|| StoreError::Bug(format!("no row came back for {statements}")))
    }

    /// The number of changed rows.
    pub(super) fn execute(&self, sql: &str, values: Values<'_>) -> Result<u64, StoreError> {
        self.with_session(|session| {
            let statement = session.prepare(sql)?;
            session.wait(session.client.execute(&statement, values))
        })
    }

    pub(super) fn query(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, StoreError> {
        self.with_session(|session| {
            let statement = session.prepare(sql)?;
            session.wait(session.client.query(&statement, values))
        })
    }

    /// The only row, if there is one.
    pub(super) fn query_optional(&self, sql: &str, values: Values<'_>) -> Result<Option<Row>, StoreError> {
        self.with_session(|session| {
            let statement = session.prepare(sql)?;
            session.wait(session.client.query_opt(&statement, values))
        })
    }

    /// The first row of a statement that always returns one.
    pub(super) fn query_row(&self, sql: &str, values: Values<'_>) -> Result<Row, StoreError> {
        self.query_optional(sql, values)?.ok_or_else(|| StoreError::Bug(format!("no row came back for {sql}")))
    }

    pub(super) fn exists(&self, sql: &str, values: Values<'_>) -> Result<bool, StoreError> {
        Ok(!self.query(sql, values)?.is_empty())
    }

    /// Calls `each` with the rows of a statement as they arrive, without having all of them in memory.
    pub(super) fn query_each(
        &self,
        sql: &str,
        values: Values<'_>,
        each: &mut dyn FnMut(Row) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut failed = None;
        self.with_session(|session| {
            let statement = session.prepare(sql)?;
            let rows = session.wait(session.client.query_raw(&statement, values.iter().copied()))?;
            let mut rows = std::pin::pin!(rows);
            while let Some(row) = session.wait(rows.try_next())? {
                if let Err(error) = each(row) {
                    failed = Some(error);
                    break;
                }
            }
            Ok(())
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Executes `COPY ... FROM STDIN` with these lines.
    pub(super) fn copy_in(&self, sql: &str, lines: String) -> Result<(), StoreError> {
        self.with_session(|session| {
            session.wait(async {
                let mut copy = std::pin::pin!(session.client.copy_in(sql).await?);
                let sent = copy.send(Cursor::new(lines.into_bytes())).await;
                // Where the lines could not be sent, this says why.
                copy.as_mut().finish().await?;
                sent
            })
        })
    }

    /// A connection that is broken or does not answer is dropped.
    fn with_session<T>(&self, work: impl FnOnce(&mut Session) -> Result<T, Failure>) -> Result<T, StoreError> {
        let mut slot = self.session.borrow_mut();
        let session =
            slot.as_mut().ok_or_else(|| StoreError::Unwritable("the connection to PostgreSQL is lost".to_owned()))?;
        match work(session) {
            Ok(output) => Ok(output),
            Err(Failure::TimedOut) => {
                slot.take();
                Err(StoreError::Unwritable(format!(
                    "PostgreSQL has not answered for {} s",
                    self.answer_timeout.as_secs_f64()
                )))
            }
            Err(Failure::Postgres(error)) => {
                if session.client.is_closed() || ends_connection(&error) {
                    slot.take();
                }
                Err(store_error(&error))
            }
        }
    }
}

impl Session {
    fn prepare(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(sql))?;
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    fn wait<T>(&self, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        let answered = self.runtime.block_on(async { tokio::time::timeout(self.answer_timeout, answer).await });
        Ok(answered.map_err(|_| Failure::TimedOut)??)
    }
}

/// The server says so before it closes the connection, which can be noticed later.
fn ends_connection(error: &tokio_postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// The classes of errors are those of <https://www.postgresql.org/docs/15/errcodes-appendix.html>.
pub(super) fn store_error(error: &tokio_postgres::Error) -> StoreError {
    let Some(refusal) = error.as_db_error() else {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        return StoreError::Unwritable(format!("PostgreSQL cannot be reached: {error}{cause}"));
    };
    let cause = format!("PostgreSQL: {}", refusal.message());
    let state = refusal.code();
    if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(state) {
        return StoreError::Conflict(cause);
    }
    if state == &SqlState::LOCK_NOT_AVAILABLE {
        return StoreError::Locked(cause);
    }
    match state.code().get(..2) {
        // Connection, authorization, database name, read-only or failed transaction, resources, the operator, files.
        Some("08" | "28" | "3D" | "25" | "42" | "53" | "57" | "58") if state != &SqlState::SYNTAX_ERROR => {
            StoreError::Unwritable(cause)
        }
        Some("XX") => StoreError::Corrupt(cause),
        _ => StoreError::Bug(format!("{cause} ({})", state.code())),
    }
}
