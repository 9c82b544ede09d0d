//! What can go wrong with the database, in the kinds that callers tell apart.

use std::io;
use std::path::{Path, PathBuf};

use quell_protocol::RunId;
use rusqlite::ErrorCode;

/// Why the store did not do what was asked. Nothing of a failed operation is in the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk refuses: read-only, full, no permission, broken.
    #[error("the database cannot be read or written: {0}")]
    Unwritable(String),
    /// The disk is full, or nearly.
    #[error(
        "only {} KiB are free on the disk of {}; remove something there, and nothing needs a restart", .free >> 10, .file.display()
    )]
    NoRoom {
        /// The database.
        file: PathBuf,
        /// What is free, in bytes.
        free: u64,
    },
    /// Somebody else uses the data directory or holds a lock on the database.
    #[error("{0}")]
    Locked(String),
    /// The file is damaged.
    #[error("the database is damaged: {0}; restore it from a backup, or move it away to start with an empty one")]
    Corrupt(String),
    /// A newer Quell wrote the file.
    #[error(
        "{} was written by a newer version of quell (its schema is {found}, this version knows up to {known}); \
         upgrade quell or restore an older backup", .file.display()
    )]
    Newer {
        /// The database.
        file: PathBuf,
        /// Its schema.
        found: i32,
        /// The newest schema that this version knows.
        known: i32,
    },
    /// The file is a database of another program.
    #[error("{} is a database of another program; give quell a file of its own", .0.display())]
    Foreign(PathBuf),
    /// Another daemon has opened the database since, although this one had the lock.
    #[error(
        "another quell has taken over the data directory; stop one of the two, and do not remove quell.lock by hand"
    )]
    Fenced,
    /// The store is closed.
    #[error("the database is closed")]
    Closed,
    /// There is no such run: never accepted, or deleted with its session.
    #[error("run {0} is not in the database")]
    NoSuchRun(RunId),
    /// A token of that name exists.
    #[error("there is a token named {0} already")]
    NameTaken(String),
    /// The cursor was not given out by this list.
    #[error("the cursor is not one that this list gave out")]
    BadCursor,
    /// A mistake in Quell.
    #[error("the database refused an operation, which is a bug in quell: {0}")]
    Bug(String),
}

impl StoreError {
    pub(super) fn file(path: &Path, error: &io::Error) -> Self {
        Self::Unwritable(format!("{}: {error}", path.display()))
    }

    /// True when the same may work later, without a person at the database: there was no room, or another program was at it.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unwritable(_) | Self::NoRoom { .. } | Self::Locked(_))
    }

    /// The same error with the file's name in front of its cause, for those that people have to repair.
    pub(super) fn of_file(self, path: &Path) -> Self {
        let named = |cause: String| format!("{}: {cause}", path.display());
        match self {
            Self::Unwritable(cause) => Self::Unwritable(named(cause)),
            Self::Locked(cause) => Self::Locked(named(cause)),
            Self::Corrupt(cause) => Self::Corrupt(named(cause)),
            other => other,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let cause = error.to_string();
        match error {
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::ReadOnly
                | ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::PermissionDenied
                | ErrorCode::AuthorizationForStatementDenied
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::NoLargeFileSupport
                | ErrorCode::OutOfMemory => Self::Unwritable(cause),
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                    Self::Locked("another program holds a lock on the database".into())
                }
                ErrorCode::OperationInterrupted => Self::Closed,
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt(cause),
                _ => Self::Bug(cause),
            },
            // STRICT tables hold what the statements expect, so an unreadable value was not written by them.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => Self::Corrupt(cause),
            _ => Self::Bug(cause),
        }
    }
}
