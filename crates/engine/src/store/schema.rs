//! Opening the database file: how connections are set up, and the numbered migrations.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::error::StoreError;

/// Marks the file as Quell's: "Quel" in ASCII.
const APPLICATION_ID: i32 = 0x5175_656c;

/// The statements that make schema 1 of nothing, schema 2 of schema 1, and so on.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_runs_turns_tokens.sql"),
    include_str!("migrations/0002_journal_boot.sql"),
    include_str!("migrations/0003_sessions.sql"),
    include_str!("migrations/0004_hook_outbox.sql"),
    include_str!("migrations/0005_notes.sql"),
    include_str!("migrations/0006_society.sql"),
    include_str!("migrations/0007_operations.sql"),
    include_str!("migrations/0008_spend.sql"),
    include_str!("migrations/0009_page_cookies.sql"),
    include_str!("migrations/0010_channel_cursors.sql"),
    include_str!("migrations/0011_channel_traces.sql"),
    include_str!("migrations/0012_obeyed_commands.sql"),
    include_str!("migrations/0013_owners_grants.sql"),
];

/// How long a statement waits for a lock of another program, such as a backup, before it fails.
const BUSY: Duration = Duration::from_secs(1);

/// Statements that a connection keeps compiled.
const STATEMENTS: usize = 40;

/// Creates a directory that only its owner may enter, with its parents, unless it exists.
pub(super) fn create_directory(path: &Path) -> Result<(), StoreError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|error| StoreError::file(path, &error))
}

/// Where the index of the database's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogIndex {
    /// In a file beside it, for every program that opens the database.
    Shared,
    /// In the memory of this process, which keeps all others out. It takes no room on the disk.
    Own,
}

/// Opens the one connection that writes, and brings the file to the newest schema. Where a full disk has no room for the index
/// of the log, this process keeps it.
pub(super) fn open_writer(path: &Path) -> Result<(Connection, LogIndex), StoreError> {
    create_file(path)?;
    let (connection, index) = match connect_writer(path, LogIndex::Shared) {
        Err(refused @ StoreError::Unwritable(_)) => match connect_writer(path, LogIndex::Own) {
            Ok(connection) => {
                tracing::warn!(%refused, "the database is kept from other programs until the next start");
                (connection, LogIndex::Own)
            }
            Err(_) => return Err(refused),
        },
        connected => (connected?, LogIndex::Shared),
    };
    Ok((prepare_writer(connection).map_err(|error| error.of_file(path))?, index))
}

fn connect_writer(path: &Path, index: LogIndex) -> Result<Connection, StoreError> {
    let connect = || -> Result<Connection, StoreError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, index)?;
        set_up(&connection, 1024)?;
        check_identity(&connection, path)?;
        Ok(connection)
    };
    connect().map_err(|error| error.of_file(path))
}

fn connect(path: &Path, flags: OpenFlags, index: LogIndex) -> rusqlite::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    match index {
        LogIndex::Shared => Connection::open_with_flags(path, flags),
        LogIndex::Own => Connection::open_with_flags_and_vfs(path, flags, c"unix-excl"),
    }
}

fn prepare_writer(mut connection: Connection) -> Result<Connection, StoreError> {
    check_writable(&connection)?;
    // Of an empty file only, and before anything is written: free pages can be given back later, a few at a time. Of another
    // it is a write, for which a full disk has no room.
    if version(&connection)? == 0 {
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    }
    enter_wal(&connection)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA journal_size_limit = 4194304;
             PRAGMA secure_delete = FAST;",
    )?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Opens a connection that can only read.
pub(super) fn open_reader(path: &Path, index: LogIndex) -> Result<Connection, StoreError> {
    let prepare = || -> Result<Connection, StoreError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, index)?;
        set_up(&connection, 512)?;
        Ok(connection)
    };
    prepare().map_err(|error| error.of_file(path))
}

/// SQLite would give the file the rights of the umask; messages are nobody else's business.
fn create_file(path: &Path) -> Result<(), StoreError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::file(path, &error)),
    }
}

fn set_up(connection: &Connection, cache_kib: u16) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.execute_batch(&format!("PRAGMA cache_size = -{cache_kib}; PRAGMA mmap_size = 0;"))?;
    Ok(())
}

/// Looks before anything is written: a foreign or newer file is left as it is.
pub(super) fn check_identity(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let things: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION_ID && (application != 0 || things > 0) {
        return Err(StoreError::Foreign(path.into()));
    }
    let (found, known) = (version(connection)?, newest());
    if found > known {
        return Err(StoreError::Newer { file: path.into(), found, known });
    }
    Ok(())
}

fn check_writable(connection: &Connection) -> Result<(), StoreError> {
    // A write-protected file is opened for reading without a word.
    if connection.is_readonly("main")? {
        return Err(StoreError::Unwritable("it is write-protected".into()));
    }
    Ok(())
}

fn enter_wal(connection: &Connection) -> Result<(), StoreError> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode == "wal" {
        return Ok(());
    }
    let cause = "its file system cannot share memory between processes; put the data directory on a local disk";
    Err(StoreError::Unwritable(cause.into()))
}

fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let old = version(connection)?;
    if old > 0 && old < newest() {
        tracing::info!(from = old, to = newest(), "the database is brought to a new form");
    }
    for (number, statements) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= old) {
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        step.execute_batch(statements)?;
        step.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"))?;
        step.commit()?;
        tracing::debug!(schema = number, "database migrated");
    }
    Ok(())
}

pub(super) fn version(connection: &Connection) -> Result<i32, StoreError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

fn newest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}
