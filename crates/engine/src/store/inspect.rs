//! A look at the database of a data directory that changes nothing: no file is made, no schema brought up, no lock kept. For
//! a person who wants to know why a daemon does not start.

use std::path::Path;

use quell_protocol::api::Hold;
use rusqlite::Connection;

use super::StoreError;
use super::hold::read_hold;
use super::lock::{self, Holder};
use super::schema::{self, LogIndex};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The daemon that uses the directory now.
    pub holder: Option<Holder>,
    /// What the database says, if anything can be read there.
    pub database: Database,
}

/// A database, looked at from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// It will be made at the first start.
    Absent,
    /// It is whole, and says this of the hold.
    Whole(Hold),
    /// The daemon keeps it to itself, as on a disk that was full at its start.
    Kept,
}

/// Looks at the lock of a data directory and at the database `file` in it.
///
/// # Errors
/// [`StoreError`] when a daemon could not open the file: damaged, newer, foreign, unreadable.
pub fn inspect(data_dir: &Path, file: &str) -> Result<Inspection, StoreError> {
    let holder = lock::holder(data_dir)?;
    let path = data_dir.join(file);
    let database = match path.exists().then(|| hold_in(&path)) {
        None => Database::Absent,
        Some(Err(StoreError::Locked(_))) if holder.is_some() => Database::Kept,
        Some(hold) => Database::Whole(hold?),
    };
    Ok(Inspection { holder, database })
}

fn hold_in(path: &Path) -> Result<Hold, StoreError> {
    let connection = schema::open_reader(path, LogIndex::Shared)?;
    let look = || -> Result<Hold, StoreError> {
        schema::check_identity(&connection, path)?;
        check_pages(&connection)?;
        // An empty file becomes a database at the first start.
        if schema::version(&connection)? == 0 { Ok(Hold::default()) } else { Ok(read_hold(&connection)?) }
    };
    look().map_err(|error| error.of_file(path))
}

fn check_pages(connection: &Connection) -> Result<(), StoreError> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(StoreError::Corrupt(found)) }
}
