//! Open the database: pragmas, identity check, WAL mode, migrations.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::StoreError;

/// `application_id` of Quell's databases: "Quel" in ASCII.
const APPLICATION_ID: i32 = 0x5175_656c;

/// The newest schema, for a new database. A change is made here and in a new migration.
const SCHEMA: &str = include_str!("schema.sql");

/// The oldest schema that can be migrated.
const OLDEST_SCHEMA: i32 = 12;

/// Entry N migrates from schema [`OLDEST_SCHEMA`] + N to the next one. A migration is never edited.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0013_owners_grants.sql"),
    include_str!("migrations/0014_verified_cookies.sql"),
    include_str!("migrations/0015_sharing.sql"),
    include_str!("migrations/0016_token_lifetimes.sql"),
    include_str!("migrations/0017_file_changes.sql"),
    include_str!("migrations/0018_schedules.sql"),
    include_str!("migrations/0019_file_change_nodes.sql"),
    include_str!("migrations/0020_api_keys.sql"),
    include_str!("migrations/0021_responses.sql"),
    include_str!("migrations/0022_push_targets.sql"),
    include_str!("migrations/0023_response_bytes.sql"),
    include_str!("migrations/0024_hold_revision.sql"),
];

/// How long a statement waits for a lock of another program, such as a backup, before it fails.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Prepared statements that a connection caches.
const STATEMENT_CACHE_CAPACITY: usize = 40;

/// Place of the index of the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalIndex {
    /// In a file (`-shm`), shared with other programs that open the database.
    Shared,
    /// In the memory of this process: locks out all other programs, and needs no room on the disk.
    Exclusive,
}

/// Opens the one connection that writes, and migrates the file to the newest schema. Where a full disk has no room
/// for the log's index, this process keeps the index in its memory.
pub(super) fn open_writer(path: &Path) -> Result<(Connection, WalIndex), StoreError> {
    create_file(path)?;
    let (connection, index) = match connect_writer(path, WalIndex::Shared) {
        Err(refused @ StoreError::Unwritable(_)) => match connect_writer(path, WalIndex::Exclusive) {
            Ok(connection) => {
                tracing::warn!(%refused, "the database is locked for other programs until the next start");
                (connection, WalIndex::Exclusive)
            }
            Err(_) => return Err(refused),
        },
        connected => (connected?, WalIndex::Shared),
    };
    Ok((prepare_writer(connection).map_err(|error| error.with_file_name(path))?, index))
}

fn connect_writer(path: &Path, index: WalIndex) -> Result<Connection, StoreError> {
    let connect = || -> Result<Connection, StoreError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, index)?;
        configure_connection(&connection, 1024)?;
        check_identity(&connection, path)?;
        Ok(connection)
    };
    connect().map_err(|error| error.with_file_name(path))
}

fn connect(path: &Path, flags: OpenFlags, index: WalIndex) -> rusqlite::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    match index {
        WalIndex::Shared => Connection::open_with_flags(path, flags),
        WalIndex::Exclusive => Connection::open_with_flags_and_vfs(path, flags, c"unix-excl"),
    }
}

fn prepare_writer(mut connection: Connection) -> Result<Connection, StoreError> {
    check_writable(&connection)?;
    // In an empty file only, and before anything is written. It allows to free pages later, a few at a time. In any
    // other file the pragma is a write, for which a full disk has no room.
    if schema_version(&connection)? == 0 {
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    }
    enable_wal(&connection)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA journal_size_limit = 4194304;
             PRAGMA secure_delete = FAST;",
    )?;
    migrate(&mut connection)?;
    Ok(connection)
}

pub(super) fn open_reader(path: &Path, index: WalIndex) -> Result<Connection, StoreError> {
    let prepare = || -> Result<Connection, StoreError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, index)?;
        configure_connection(&connection, 512)?;
        Ok(connection)
    };
    prepare().map_err(|error| error.with_file_name(path))
}

/// Mode 600: SQLite would use the umask, and messages are private.
fn create_file(path: &Path) -> Result<(), StoreError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::from_io(path, &error)),
    }
}

fn configure_connection(connection: &Connection, cache_kib: u16) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_CAPACITY);
    connection.execute_batch(&format!("PRAGMA cache_size = -{cache_kib}; PRAGMA mmap_size = 0;"))?;
    Ok(())
}

/// Runs before the first write, so that a file of another program or with an unsupported schema is not changed.
pub(super) fn check_identity(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let object_count: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION_ID && (application != 0 || object_count > 0) {
        return Err(StoreError::ForeignDatabase(path.into()));
    }
    let (found, known) = (schema_version(connection)?, newest_schema_version());
    match found {
        // An empty file.
        0 => Ok(()),
        _ if found > known => Err(StoreError::NewerSchema { file: path.into(), found, known }),
        _ if found < OLDEST_SCHEMA => {
            Err(StoreError::OlderSchema { file: path.into(), found, oldest: OLDEST_SCHEMA, known })
        }
        _ => Ok(()),
    }
}

/// For a reader, which cannot migrate.
pub(super) fn check_is_newest(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    check_identity(connection, path)?;
    let (found, known) = (schema_version(connection)?, newest_schema_version());
    if found == known {
        return Ok(());
    }
    Err(StoreError::Settings(format!(
        "{} has the schema {found}, and this version needs {known}; start the daemon once with this version, which brings \
         it up to date",
        path.display()
    )))
}

fn check_writable(connection: &Connection) -> Result<(), StoreError> {
    // SQLite opens a write-protected file read-only without an error.
    if connection.is_readonly("main")? {
        return Err(StoreError::Unwritable("it is write-protected".into()));
    }
    Ok(())
}

fn enable_wal(connection: &Connection) -> Result<(), StoreError> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode == "wal" {
        return Ok(());
    }
    let cause = "its file system cannot share memory between processes; put the data directory on a local disk";
    Err(StoreError::Unwritable(cause.into()))
}

fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let old = schema_version(connection)?;
    if old > 0 && old < newest_schema_version() {
        tracing::info!(from = old, to = newest_schema_version(), "migrating the database to a newer schema");
    }
    if old == 0 {
        return apply_schema(connection, SCHEMA, newest_schema_version());
    }
    for (number, statements) in (OLDEST_SCHEMA + 1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= old) {
        apply_schema(connection, statements, number)?;
    }
    Ok(())
}

fn apply_schema(connection: &mut Connection, statements: &str, number: i32) -> Result<(), StoreError> {
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    step.execute_batch(statements)?;
    step.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"))?;
    step.commit()?;
    tracing::debug!(schema = number, "database migrated");
    Ok(())
}

pub(super) fn schema_version(connection: &Connection) -> Result<i32, StoreError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

fn newest_schema_version() -> i32 {
    i32::try_from(MIGRATIONS.len()).map_or(i32::MAX, |migrations| OLDEST_SCHEMA + migrations)
}
