//! The boot number of the database, which fences off the writes of earlier daemons.
//!
//! Each start takes the next number, and writes of earlier starts are refused from then on. A transaction holds a
//! shared advisory lock while it writes, a start an exclusive one while it takes its number, so none passes the other.

use super::connection::PgConnection;
use crate::StoreError;
use crate::batch_writer::SyncLevel;

/// The advisory lock of the boot number: the bytes of `quell`, and 1.
const BOOT_LOCK: i64 = 0x0071_7565_6c6c_0001;

/// The number of this start.
#[derive(Debug, Clone, Copy)]
pub(super) struct BootNumber(i64);

impl BootNumber {
    pub(super) fn claim(db: &PgConnection) -> Result<Self, StoreError> {
        let row = db.run_for_row(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({BOOT_LOCK}); UPDATE boot SET number = number + 1 RETURNING number; COMMIT"
        ))?;
        parse_number(row.first()).map(Self)
    }

    /// Begins a transaction in one exchange, and returns its id.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when a later start has taken a number. The transaction has then begun, too.
    pub(super) fn begin_transaction(self, db: &PgConnection, sync: SyncLevel) -> Result<String, StoreError> {
        let relaxed = match sync {
            SyncLevel::Normal => "SET LOCAL synchronous_commit = off;",
            SyncLevel::Full => "",
        };
        let row = db.run_for_row(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; {relaxed} SELECT pg_advisory_xact_lock_shared({BOOT_LOCK}); \
             SELECT number, pg_current_xact_id() FROM boot"
        ))?;
        if parse_number(row.first())? != self.0 {
            return Err(StoreError::Fenced);
        }
        row.into_iter().nth(1).flatten().ok_or_else(|| StoreError::Bug("a transaction without an id".to_owned()))
    }
}

/// Begins a transaction that reads one state of the database. No daemon can start until it ends.
pub(super) fn begin_read(db: &PgConnection) -> Result<(), StoreError> {
    db.run(&format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_advisory_xact_lock_shared({BOOT_LOCK})"
    ))
}

/// `committed`, `aborted` or `in progress`.
pub(super) fn transaction_status(db: &PgConnection, transaction: &str) -> Result<String, StoreError> {
    let row = db.query_row("SELECT pg_xact_status($1::text::xid8)", &[&transaction])?;
    let status: Option<String> = row.get(0);
    status.ok_or_else(|| StoreError::Bug("the server has forgotten a transaction".to_owned()))
}

/// Ends the connection of a transaction that is still in progress. The server may need a moment for it.
pub(super) fn terminate_transaction(db: &PgConnection, transaction: &str) -> Result<(), StoreError> {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND backend_xid = ($1::text::xid8)::xid AND pid <> pg_backend_pid()";
    db.query(sql, &[&transaction]).map(drop)
}

fn parse_number(column: Option<&Option<String>>) -> Result<i64, StoreError> {
    let number = column.and_then(|text| text.as_deref()).and_then(|text| text.parse().ok());
    number.ok_or_else(|| StoreError::Corrupt("the table `boot` has no number".to_owned()))
}
