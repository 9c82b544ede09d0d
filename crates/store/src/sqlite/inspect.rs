//! Inspect the database of a data directory without changing it, for diagnostics: creates no file, migrates nothing,
//! keeps no lock.

use std::path::Path;

use quell_protocol::api::Hold;
use rusqlite::Connection;

use super::hold::read_hold;
use super::schema::{self, WalIndex};
use crate::location::{DatabaseInspection, DatabaseState};
use crate::{StoreError, find_running_daemon};

/// Inspects the lock of a data directory, and the database `file` in it.
///
/// # Errors
/// [`StoreError`] when a daemon could not open the file: damaged, of an unsupported schema or another program, unreadable.
pub fn inspect_database(data_dir: &Path, file: &str) -> Result<DatabaseInspection, StoreError> {
    let holder = find_running_daemon(data_dir)?;
    let path = data_dir.join(file);
    let database = match path.exists().then(|| read_hold_from(&path)) {
        None => DatabaseState::Absent,
        Some(Err(StoreError::Locked(_))) if holder.is_some() => DatabaseState::LockedByDaemon,
        Some(hold) => DatabaseState::Readable(hold?),
    };
    Ok(DatabaseInspection { holder, database, server: None })
}

fn read_hold_from(path: &Path) -> Result<Hold, StoreError> {
    let connection = schema::open_reader(path, WalIndex::Shared)?;
    let read = || -> Result<Hold, StoreError> {
        schema::check_identity(&connection, path)?;
        quick_check(&connection)?;
        // The first start turns an empty file into a database.
        if schema::schema_version(&connection)? == 0 { Ok(Hold::default()) } else { Ok(read_hold(&connection)?) }
    };
    read().map_err(|error| error.with_file_name(path))
}

fn quick_check(connection: &Connection) -> Result<(), StoreError> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(StoreError::Corrupt(found)) }
}
