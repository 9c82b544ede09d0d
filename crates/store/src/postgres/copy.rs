//! The PostgreSQL side of a copy of the whole database.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::boot::{self, BootNumber};
use super::columns::{Text, get, optional_text, to_unsigned};
use super::connection::PgConnection;
use super::notes::indexed_words;
use super::schema;
use super::settings::{Connector, PostgresSettings};
use crate::StoreError;
use crate::batch_writer::SyncLevel;
use crate::copy::{ColumnKind, CopiedTable, CopiedValue, CopyDatabase, CopyTarget};

/// A transaction waits while the other database is read, written or checked, and a large table is one statement.
const COPY_SETTINGS: &str = "SET idle_in_transaction_session_timeout = '1h'; SET statement_timeout = 0";

/// The server needs a moment to notice that a daemon has ended.
const DAEMON_END_TIMEOUT: Duration = Duration::from_secs(2);
const DAEMON_END_INTERVAL: Duration = Duration::from_millis(20);

/// The view of all spending, and the first schema that has it.
const TOTALS: &str = "total_spend";
const FIRST_WITH_TOTALS: i32 = 3;

/// A transaction. No daemon can start in this database until it ends.
pub(crate) struct PostgresCopy {
    db: PgConnection,
    /// The rows of `spend`, with what each node has spent.
    spend: &'static str,
}

impl PostgresCopy {
    /// Begins to read one state of the database. The database is not changed.
    ///
    /// # Errors
    /// [`StoreError`] when a daemon is connected, or the database cannot be used.
    pub(crate) fn open_source(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let db = connect(settings)?;
        schema::check_server(&db)?;
        let schema = schema::check_schema(&db)?;
        if schema == 0 {
            let text = "the database has no tables of quell; check the name of the database in the URL";
            return Err(StoreError::Settings(text.to_owned()));
        }
        boot::begin_read(&db)?;
        refuse_daemon(&db)?;
        // The state is that of the first statement of the transaction, so it begins again after the check.
        db.run("COMMIT")?;
        boot::begin_read(&db)?;
        Ok(Self { db, spend: if schema >= FIRST_WITH_TOTALS { TOTALS } else { "spend" } })
    }

    /// Makes the tables if they do not exist, fences off daemons, and begins to write.
    ///
    /// # Errors
    /// [`StoreError`] when a daemon is connected, or the database cannot be used.
    pub(crate) fn open_target(settings: &PostgresSettings) -> Result<Self, StoreError> {
        let db = connect(settings)?;
        refuse_daemon(&db)?;
        schema::migrate(&db)?;
        BootNumber::claim(&db)?.begin_transaction(&db, SyncLevel::Full, 1)?;
        // A row that refers to none is refused with the name of its table, and not by the commit.
        db.run("SET CONSTRAINTS ALL IMMEDIATE")?;
        Ok(Self { db, spend: TOTALS })
    }

    /// What the rows of a table are read from.
    fn source_name(&self, table: &CopiedTable) -> &'static str {
        if table.name == "spend" { self.spend } else { table.name }
    }
}

fn connect(settings: &PostgresSettings) -> Result<PgConnection, StoreError> {
    let db = PgConnection::new(Arc::new(Connector::new(settings)?));
    db.ensure_connected()?;
    db.run(COPY_SETTINGS)?;
    Ok(db)
}

fn refuse_daemon(db: &PgConnection) -> Result<(), StoreError> {
    let begin = Instant::now();
    loop {
        let sql = "SELECT string_agg(coalesce(host(client_addr) || ' ', '') || 'pid ' || pid, ', ' ORDER BY pid)
                   FROM pg_stat_activity, pg_stat_clear_snapshot()
                   WHERE datname = current_database() AND application_name LIKE 'quell%' AND pid <> pg_backend_pid()";
        let Some(others) = get::<Option<String>>(&db.query_row(sql, &[])?, 0)? else { return Ok(()) };
        if begin.elapsed() > DAEMON_END_TIMEOUT {
            return Err(StoreError::Locked(format!(
                "a quell is connected to the database (processes of the server: {others}); stop it and copy again"
            )));
        }
        thread::sleep(DAEMON_END_INTERVAL);
    }
}

impl CopyDatabase for PostgresCopy {
    fn count_rows(&self, table: &CopiedTable) -> Result<u64, StoreError> {
        let row = self.db.query_row(&format!("SELECT count(*) FROM {}", self.source_name(table)), &[])?;
        get(&row, 0).map(to_unsigned)
    }

    fn read_rows(
        &self,
        table: &CopiedTable,
        each: &mut dyn FnMut(Vec<CopiedValue>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let sql = format!("SELECT {} FROM {}", table.column_list(), self.source_name(table));
        self.db.query_each(&sql, &[], &mut |row| {
            let columns = table.columns.iter().enumerate();
            each(columns.map(|(at, column)| read_value(&row, at, column.kind)).collect::<Result<_, _>>()?)
        })
    }

    fn last_number(&self, table: &CopiedTable, number: &str) -> Result<i64, StoreError> {
        let row = self.db.query_row("SELECT pg_get_serial_sequence($1, $2)", &[&table.name, &number])?;
        let sequence: String = get(&row, 0)?;
        let sql = format!("SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}");
        get(&self.db.query_row(&sql, &[])?, 0)
    }

    fn boot_number(&self) -> Result<i64, StoreError> {
        get(&self.db.query_row("SELECT number FROM boot", &[])?, 0)
    }
}

impl CopyTarget for PostgresCopy {
    fn insert_rows(&self, table: &CopiedTable, rows: &[Vec<CopiedValue>]) -> Result<(), StoreError> {
        let mut lines = String::new();
        for row in rows {
            for (at, (value, column)) in row.iter().zip(table.columns).enumerate() {
                if at > 0 {
                    lines.push('\t');
                }
                write_field(&mut lines, value, column.kind);
            }
            if let Some(text) = table.searchable_text(row)? {
                lines.push('\t');
                escape_field(&mut lines, &indexed_words(&text));
            }
            lines.push('\n');
        }
        let words = if table.has_words() { ", words" } else { "" };
        // Numbers are taken from the rows also where the database would give them.
        self.db.copy_in(&format!("COPY {} ({}{words}) FROM STDIN", table.name, table.column_list()), lines)
    }

    fn set_last_number(&self, table: &CopiedTable, number: &str, last: i64) -> Result<(), StoreError> {
        let next = last.saturating_add(1).max(1);
        // Unlike `setval` it is part of the transaction.
        self.db.run(&format!("ALTER TABLE {} ALTER COLUMN {number} RESTART WITH {next}", table.name))
    }

    fn raise_boot_number(&self, boot: i64) -> Result<(), StoreError> {
        self.db.execute("UPDATE boot SET number = greatest(number, $1)", &[&boot]).map(drop)
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.db.run("COMMIT")
    }
}

fn read_value(row: &Row, at: usize, kind: ColumnKind) -> Result<CopiedValue, StoreError> {
    let value = match kind {
        ColumnKind::Id => get::<Option<String>>(row, at)?.map(CopiedValue::Text),
        ColumnKind::Text => optional_text(row, at)?.map(CopiedValue::Text),
        ColumnKind::Number => get::<Option<i64>>(row, at)?.map(CopiedValue::Number),
        ColumnKind::Flag => get::<Option<bool>>(row, at)?.map(CopiedValue::Flag),
        ColumnKind::Bytes => get::<Option<Vec<u8>>>(row, at)?.map(CopiedValue::Bytes),
    };
    Ok(value.unwrap_or(CopiedValue::Null))
}

/// The text format of `COPY`.
fn write_field(line: &mut String, value: &CopiedValue, kind: ColumnKind) {
    use std::fmt::Write as _;
    match value {
        CopiedValue::Null => line.push_str("\\N"),
        CopiedValue::Number(number) => {
            // A `String` takes everything.
            let _ = write!(line, "{number}");
        }
        CopiedValue::Flag(flag) => line.push(if *flag { 't' } else { 'f' }),
        CopiedValue::Text(text) if kind == ColumnKind::Text => escape_field(line, &Text(text).encoded()),
        CopiedValue::Text(text) => escape_field(line, text),
        CopiedValue::Bytes(bytes) => {
            line.push_str("\\\\x");
            for byte in bytes {
                let _ = write!(line, "{byte:02x}");
            }
        }
    }
}

fn escape_field(line: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\\' => line.push_str("\\\\"),
            '\t' => line.push_str("\\t"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            other => line.push(other),
        }
    }
}
