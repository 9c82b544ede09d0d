//! Snapshot, copy, check and restore the whole database.
//!
//! A copy is made with `VACUUM INTO`: one statement that reads one state and blocks no writer. SQLite's backup API
//! copies page by page and would start again at every write of another connection. The copy is one file without a log
//! and without free pages.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::schema::{self, WalIndex};
use crate::StoreError;
use crate::lock::{self, DirectoryLock, create_data_directory};

/// Suffix of a database file that is about to replace the current one.
const RESTORING_SUFFIX: &str = "restoring";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredDatabase {
    pub file: PathBuf,
    /// The previous database file, if there was one.
    pub previous: Option<PathBuf>,
}

/// Copies the database `file` of a data directory into the new file `to`. No daemon may use the directory.
///
/// # Errors
/// [`StoreError`] when there is no such database, or it cannot be copied.
pub fn copy_database(data_dir: &Path, file: &str, to: &Path) -> Result<(), StoreError> {
    let from = data_dir.join(file);
    let connection = schema::open_reader(&from, WalIndex::Shared)?;
    schema::check_identity(&connection, &from)?;
    create_private_file(to)?;
    vacuum_into(&connection, to).map_err(|error| error.with_file_name(to))
}

/// Checks every page of a copy, and every row against its indexes.
///
/// # Errors
/// [`StoreError`] when it is damaged, of an unsupported schema, or not a database of Quell.
pub fn check_database_copy(copy: &Path) -> Result<(), StoreError> {
    let connection = schema::open_reader(copy, WalIndex::Shared)?;
    let check = || -> Result<(), StoreError> {
        schema::check_identity(&connection, copy)?;
        if schema::schema_version(&connection)? == 0 {
            return Err(StoreError::ForeignDatabase(copy.into()));
        }
        let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found == "ok" { Ok(()) } else { Err(StoreError::Corrupt(found)) }
    };
    check().map_err(|error| error.with_file_name(copy))
}

/// Replaces the database `file` by a copy, under the lock of the data directory. The previous database stays beside
/// it with `stamp` in its name.
///
/// # Errors
/// [`StoreError::Locked`] while a daemon runs; others when the copy cannot be used or the disk refuses. On an error
/// the database is unchanged.
pub fn restore_database(data_dir: &Path, file: &str, copy: &Path, stamp: &str) -> Result<RestoredDatabase, StoreError> {
    check_database_copy(copy)?;
    create_data_directory(data_dir)?;
    let _lock = DirectoryLock::acquire(data_dir)?;
    let target = data_dir.join(file);
    let restoring = sibling_path(&target, RESTORING_SUFFIX);
    remove_if_exists(&restoring)?;
    create_private_file(&restoring)?;
    vacuum_into(&schema::open_reader(copy, WalIndex::Shared)?, &restoring)?;
    delete_pending_replies(&restoring)?;
    check_database_copy(&restoring)?;
    sync_file(&restoring)?;
    let previous = keep_previous_database(&target, stamp)?;
    fs::rename(&restoring, &target).map_err(|error| StoreError::from_io(&target, &error))?;
    // Root may restore for a daemon that runs as another user.
    for name in
        [Some(target.as_path()), previous.as_deref(), Some(&lock::lock_file_path(data_dir))].into_iter().flatten()
    {
        chown_to_directory_owner(data_dir, name)?;
    }
    sync_file(data_dir)?;
    Ok(RestoredDatabase { file: target, previous })
}

/// Deletes the pending replies of a copy: the chats have changed since it was made, so it must not correct them.
fn delete_pending_replies(restoring: &Path) -> Result<(), StoreError> {
    let deleted =
        Connection::open(restoring).and_then(|connection| connection.execute("DELETE FROM channel_traces", []));
    deleted.map(drop).map_err(|error| StoreError::from(error).with_file_name(restoring))
}

/// Gives the current database a second name. Until the rename, a daemon that starts finds it unchanged.
fn keep_previous_database(target: &Path, stamp: &str) -> Result<Option<PathBuf>, StoreError> {
    if !target.exists() {
        // SQLite would take a log without its database for one of the new file.
        return remove_log_files(target).map(|()| None);
    }
    checkpoint_log(target);
    let previous = sibling_path(target, &format!("before-{stamp}"));
    fs::hard_link(target, &previous).map_err(|error| StoreError::from_io(&previous, &error))?;
    let log = target.with_file_name(suffixed_file_name(target, "-wal"));
    if log.exists() {
        // The log could not be moved into the file: it belongs to the previous database.
        let kept_log = previous.with_file_name(suffixed_file_name(&previous, "-wal"));
        fs::rename(&log, &kept_log).map_err(|error| StoreError::from_io(&log, &error))?;
    }
    remove_log_files(target)?;
    Ok(Some(previous))
}

/// Moves into the file what a killed daemon left in the log. A damaged database keeps its log.
fn checkpoint_log(database: &Path) {
    let checkpoint = || -> rusqlite::Result<()> {
        let connection = Connection::open(database)?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = checkpoint() {
        tracing::warn!(%error, "the log of the old database could not be moved into it and stays beside it");
    }
}

pub(super) fn vacuum_into(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let to = to.to_str().ok_or_else(|| StoreError::Unwritable(format!("{} is not UTF-8", to.display())))?;
    let auto_vacuum: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if auto_vacuum == 0 {
        // A database of the first versions: its copies can return free pages.
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    }
    connection.execute("VACUUM INTO ?1", [to])?;
    Ok(())
}

fn create_private_file(path: &Path) -> Result<(), StoreError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.map(drop).map_err(|error| StoreError::from_io(path, &error))
}

fn sibling_path(path: &Path, word: &str) -> PathBuf {
    path.with_file_name(suffixed_file_name(path, &format!(".{word}")))
}

fn suffixed_file_name(path: &Path, end: &str) -> std::ffi::OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    name
}

fn remove_log_files(database: &Path) -> Result<(), StoreError> {
    ["-wal", "-shm"]
        .iter()
        .try_for_each(|end| remove_if_exists(&database.with_file_name(suffixed_file_name(database, end))))
}

fn remove_if_exists(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::from_io(path, &error)),
        _ => Ok(()),
    }
}

fn sync_file(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| StoreError::from_io(path, &error))
}

pub(super) fn chown_to_directory_owner(data_dir: &Path, path: &Path) -> Result<(), StoreError> {
    let change_owner = || -> io::Result<()> {
        let (wanted, is) = (fs::metadata(data_dir)?, fs::metadata(path)?);
        if (wanted.uid(), wanted.gid()) == (is.uid(), is.gid()) || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(wanted.uid()), Some(wanted.gid()))
    };
    change_owner().map_err(|error| StoreError::from_io(path, &error))
}
