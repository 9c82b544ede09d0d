//! Copies of the whole database: made while it is written to, checked, and put in its place.
//!
//! A copy is made by `VACUUM INTO`: one statement that reads one state and holds up no writer. SQLite's copying page by page
//! would begin anew with every write of another connection. The copy is one file without a log, and has no free pages.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::lock::DirectoryLock;
use super::schema::LogIndex;
use super::spool::{Draft, Spool};
use super::{Holder, Store, StoreError, lock, schema};

/// Behind the name of a database that is about to be put into its place.
const COMING: &str = "restoring";

/// What a restoration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Where the database is now.
    pub file: PathBuf,
    /// Where the one before it is; none if there was none.
    pub kept: Option<PathBuf>,
}

impl Store {
    /// Copies the whole database as it is at one moment.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read, or there is no room for the copy.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn snapshot(&self) -> Result<Spool, StoreError> {
        let ground = self.0.ground.clone();
        self.copy(move |connection| {
            let refused = |error: io::Error| StoreError::file(&ground, &error);
            let draft = Draft::new(&ground).map_err(refused)?;
            vacuum_into(connection, draft.path())?;
            draft.finish().map_err(refused)
        })
        .await
    }
}

/// The daemon that uses a data directory now, if there is one.
///
/// # Errors
/// [`StoreError`] when the directory cannot be looked into.
pub fn holder(data_dir: &Path) -> Result<Option<Holder>, StoreError> {
    lock::holder(data_dir)
}

/// Copies the database `file` of a data directory that no daemon uses into the new file `to`.
///
/// # Errors
/// [`StoreError`] when there is no such database, or it cannot be copied.
pub fn copy(data_dir: &Path, file: &str, to: &Path) -> Result<(), StoreError> {
    let from = data_dir.join(file);
    let connection = schema::open_reader(&from, LogIndex::Shared)?;
    schema::check_identity(&connection, &from)?;
    create_private(to)?;
    vacuum_into(&connection, to).map_err(|error| error.of_file(to))
}

/// Reads every page of a copy and every row against its indexes.
///
/// # Errors
/// [`StoreError`] when it is damaged, of another program, newer than this one, or no database of Quell at all.
pub fn check_copy(copy: &Path) -> Result<(), StoreError> {
    let connection = schema::open_reader(copy, LogIndex::Shared)?;
    let check = || -> Result<(), StoreError> {
        schema::check_identity(&connection, copy)?;
        if schema::version(&connection)? == 0 {
            return Err(StoreError::Foreign(copy.into()));
        }
        let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found == "ok" { Ok(()) } else { Err(StoreError::Corrupt(found)) }
    };
    check().map_err(|error| error.of_file(copy))
}

/// Puts a copy in the place of the database `file`, under the lock of the data directory. The one before it stays beside it
/// with `stamp` in its name.
///
/// # Errors
/// [`StoreError::Locked`] while a daemon runs; others when the copy is of no use or the disk refuses. The database is as it was
/// then.
pub fn restore(data_dir: &Path, file: &str, (copy, stamp): (&Path, &str)) -> Result<Restored, StoreError> {
    check_copy(copy)?;
    schema::create_directory(data_dir)?;
    let _lock = DirectoryLock::take(data_dir)?;
    let place = data_dir.join(file);
    let coming = beside(&place, COMING);
    remove(&coming)?;
    create_private(&coming)?;
    vacuum_into(&schema::open_reader(copy, LogIndex::Shared)?, &coming)?;
    forget_traces(&coming)?;
    check_copy(&coming)?;
    sync(&coming)?;
    let kept = set_aside(&place, stamp)?;
    fs::rename(&coming, &place).map_err(|error| StoreError::file(&place, &error))?;
    // Root restores for a daemon that is somebody else.
    for name in [Some(place.as_path()), kept.as_deref(), Some(&lock::path(data_dir))].into_iter().flatten() {
        give_to_owner(data_dir, name)?;
    }
    sync(data_dir)?;
    Ok(Restored { file: place, kept })
}

/// What chats showed when the copy was made has gone on since then: it is not put right by what the copy knows.
fn forget_traces(coming: &Path) -> Result<(), StoreError> {
    let forget = || -> rusqlite::Result<()> {
        let connection = Connection::open(coming)?;
        // Copies of earlier versions have no such table.
        if connection.table_exists(None::<&str>, "channel_traces")? {
            connection.execute("DELETE FROM channel_traces", [])?;
        }
        Ok(())
    };
    forget().map_err(|error| StoreError::from(error).of_file(coming))
}

/// Gives the database that is there a second name. Until the new one takes its first name, a daemon would find it as it was.
fn set_aside(place: &Path, stamp: &str) -> Result<Option<PathBuf>, StoreError> {
    if !place.exists() {
        // A log without its database would be taken for one of the new.
        return remove_log(place).map(|()| None);
    }
    fold_log(place);
    let kept = beside(place, &format!("before-{stamp}"));
    fs::hard_link(place, &kept).map_err(|error| StoreError::file(&kept, &error))?;
    let log = place.with_file_name(name_with(place, "-wal"));
    if log.exists() {
        // It could not be folded: what is in it belongs to the old one.
        let kept_log = kept.with_file_name(name_with(&kept, "-wal"));
        fs::rename(&log, &kept_log).map_err(|error| StoreError::file(&log, &error))?;
    }
    remove_log(place)?;
    Ok(Some(kept))
}

/// Writes what a daemon that died left in the log into the file. A damaged one keeps its log instead.
fn fold_log(place: &Path) {
    let fold = || -> rusqlite::Result<()> {
        let connection = Connection::open(place)?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(error) = fold() {
        tracing::warn!(%error, "the log of the old database stays beside it");
    }
}

fn vacuum_into(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    let to = to.to_str().ok_or_else(|| StoreError::Unwritable(format!("{} is not UTF-8", to.display())))?;
    let gives_back: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if gives_back == 0 {
        // A database of the first versions; its copies can give pages back.
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    }
    connection.execute("VACUUM INTO ?1", [to])?;
    Ok(())
}

fn create_private(path: &Path) -> Result<(), StoreError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.map(drop).map_err(|error| StoreError::file(path, &error))
}

fn beside(path: &Path, word: &str) -> PathBuf {
    path.with_file_name(name_with(path, &format!(".{word}")))
}

fn name_with(path: &Path, end: &str) -> std::ffi::OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    name
}

fn remove_log(place: &Path) -> Result<(), StoreError> {
    ["-wal", "-shm"].iter().try_for_each(|end| remove(&place.with_file_name(name_with(place, end))))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::file(path, &error)),
        _ => Ok(()),
    }
}

fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| StoreError::file(path, &error))
}

fn give_to_owner(data_dir: &Path, path: &Path) -> Result<(), StoreError> {
    let give = || -> io::Result<()> {
        let (wanted, is) = (fs::metadata(data_dir)?, fs::metadata(path)?);
        if (wanted.uid(), wanted.gid()) == (is.uid(), is.gid()) || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(wanted.uid()), Some(wanted.gid()))
    };
    give().map_err(|error| StoreError::file(path, &error))
}
