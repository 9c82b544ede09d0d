//! The boot number of the database, which fences off the writes of earlier daemons.
//!
//! Each start takes the next number. Without a cluster, writes of earlier starts are refused from then on. A transaction
//! holds a shared advisory lock while it writes, a start an exclusive one while it takes its number, so none passes the
//! other. In a cluster the number is the epoch of the node, and its writes are refused once its row is fenced. The same
//! holds for the fencing: it takes the lock of the epoch exclusively.

use quell_kernel::lease::Epoch;

use super::columns::get;
use super::connection::PgConnection;
use crate::StoreError;
use crate::batch_writer::SyncLevel;

/// The advisory lock of the boot number: the bytes of `quell`, and 1.
pub(super) const BOOT_LOCK: i64 = 0x0071_7565_6c6c_0001;

/// The first key of the advisory locks of epochs: the bytes of `quel`. The second one is the epoch.
pub(super) const EPOCH_LOCK: i32 = 0x7175_656c;

/// The number of this start.
#[derive(Debug, Clone, Copy)]
pub(super) struct BootNumber {
    number: i64,
    is_member: bool,
}

impl BootNumber {
    /// Takes the number of a daemon that has the database for itself.
    ///
    /// # Errors
    /// [`StoreError::Settings`] while a node of a cluster uses the database.
    pub(super) fn claim(db: &PgConnection) -> Result<Self, StoreError> {
        db.run(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({BOOT_LOCK})"))?;
        let claimed = claim_alone(db);
        db.run(if claimed.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        claimed
    }

    /// The number of a node that has joined with this epoch.
    pub(super) fn of_member(epoch: Epoch) -> Self {
        Self { number: i64::try_from(epoch).unwrap_or(i64::MAX), is_member: true }
    }

    /// Its number in rows.
    pub(super) fn number(self) -> i64 {
        self.number
    }

    pub(super) fn is_member(self) -> bool {
        self.is_member
    }

    /// The name of the connection on which a node writes, so that others can end it.
    pub(super) fn connection_name(self) -> Option<String> {
        self.is_member.then(|| connection_name(self.number))
    }

    pub(super) fn epoch(self) -> Epoch {
        self.number.unsigned_abs()
    }

    /// Begins the transaction of a batch in one exchange, and returns its id.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when a later start has taken a number, or this node was fenced. The transaction has then
    /// begun, too.
    pub(super) fn begin_transaction(
        self,
        db: &PgConnection,
        sync: SyncLevel,
        batch: i64,
    ) -> Result<String, StoreError> {
        let relaxed = match sync {
            SyncLevel::Normal => "SET LOCAL synchronous_commit = off;",
            SyncLevel::Full => "",
        };
        let (number, lock) = match self {
            Self { number, is_member: true } => (
                format!("(SELECT epoch FROM nodes WHERE epoch = {number} AND NOT fenced)"),
                format!("SELECT pg_advisory_xact_lock_shared({EPOCH_LOCK}, {number});"),
            ),
            Self { is_member: false, .. } => ("(SELECT number FROM boot)".to_owned(), String::new()),
        };
        let row = db.run_for_row(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; {relaxed} SELECT pg_advisory_xact_lock_shared({BOOT_LOCK}); {lock} \
             INSERT INTO writer_batches VALUES ({writer}, {batch}) \
             ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch; \
             SELECT {number}, pg_current_xact_id()",
            writer = self.number,
        ))?;
        if row.first().and_then(|number| number.as_deref()?.parse().ok()) != Some(self.number) {
            return Err(StoreError::Fenced);
        }
        row.into_iter().nth(1).flatten().ok_or_else(|| StoreError::Bug("a transaction without an id".to_owned()))
    }

    /// The newest batch that this start has committed.
    pub(super) fn committed_batch(self, db: &PgConnection) -> Result<Option<i64>, StoreError> {
        let row = db.query_row("SELECT (SELECT batch FROM writer_batches WHERE writer = $1)", &[&self.number])?;
        get(&row, 0)
    }

    /// Ends the connection of this start that has the transaction open. False if none has it: it is over then. The server
    /// may need a moment for the end.
    pub(super) fn terminate_transaction(self, db: &PgConnection, transaction: &str) -> Result<bool, StoreError> {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND backend_xid = ($1::text::xid8)::xid
                     AND pid <> pg_backend_pid() AND ($2::text IS NULL OR application_name = $2)";
        Ok(!db.query(sql, &[&transaction, &self.connection_name()])?.is_empty())
    }
}

pub(super) fn connection_name(epoch: i64) -> String {
    format!("quell node {epoch}")
}

/// Ends all memberships of a cluster whose leases have ended: their runs are those that the last daemon left.
fn claim_alone(db: &PgConnection) -> Result<BootNumber, StoreError> {
    let live = "SELECT string_agg(name, ', ' ORDER BY name) FROM nodes
                WHERE NOT fenced AND expires_at > clock_timestamp()";
    if let Some(live) = get::<Option<String>>(&db.query_row(live, &[])?, 0)? {
        return Err(StoreError::Settings(format!(
            "the database belongs to a cluster, whose nodes are at work: {live}; give this daemon a section [cluster] to join \
             it, or stop them"
        )));
    }
    db.run("DELETE FROM nodes; DELETE FROM writer_batches")?;
    let row = db.query_row("UPDATE boot SET number = number + 1, cluster = false RETURNING number", &[])?;
    Ok(BootNumber { number: get(&row, 0)?, is_member: false })
}

/// Begins a transaction that reads one state of the database. No daemon can start until it ends.
pub(super) fn begin_read(db: &PgConnection) -> Result<(), StoreError> {
    db.run(&format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_advisory_xact_lock_shared({BOOT_LOCK})"
    ))
}
