//! Errors of the store, in the kinds that callers tell apart.

use std::io;
use std::path::{Path, PathBuf};

use quell_protocol::{RunId, SessionKey};

/// Error of a store operation. A failed operation leaves nothing in the database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk refuses: read-only, full, no permission, defective.
    #[error("the database cannot be read or written: {0}")]
    Unwritable(String),
    /// The disk is full, or nearly.
    #[error(
        "only {} KiB are free on the disk of {}; free some space there; no restart is needed", .free >> 10, .file.display()
    )]
    LowDiskSpace {
        file: PathBuf,
        /// Free bytes.
        free: u64,
    },
    /// Another process uses the data directory, or holds a lock on the database.
    #[error("{0}")]
    Locked(String),
    /// Others write to the same rows all the time, so that the database has refused each attempt.
    #[error("several writers have met on the same rows: {0}; send again")]
    Conflict(String),
    #[error("the database is damaged: {0}; restore it from a backup, or move it away to start with an empty one")]
    Corrupt(String),
    #[error(
        "{} was written by a newer version of quell (its schema is {found}, this version knows up to {known}); \
         upgrade quell or restore an older backup", .file.display()
    )]
    NewerSchema {
        file: PathBuf,
        /// Schema version of the file.
        found: i32,
        /// The newest schema that this version knows.
        known: i32,
    },
    #[error(
        "{} has the schema {found} of an early version of quell (this version knows {oldest} to {known}) and was left \
         unchanged; restore a newer backup, or move the file away to start with an empty one", .file.display()
    )]
    OlderSchema {
        file: PathBuf,
        /// Schema version of the file.
        found: i32,
        /// The oldest schema that can be migrated.
        oldest: i32,
        /// The newest schema that this version knows.
        known: i32,
    },
    #[error(
        "the database was written by a newer version of quell (its schema is {found}, this version knows up to {known}); \
         upgrade quell"
    )]
    NewerServerSchema {
        /// Schema version of the database.
        found: i32,
        /// The newest schema that this version knows.
        known: i32,
    },
    /// The settings of the store do not lead to a database that can be used, or not to this operation.
    #[error("{0}")]
    Settings(String),
    #[error("{} is a database of another program; give quell a file of its own", .0.display())]
    ForeignDatabase(PathBuf),
    /// Another daemon has opened the database since, although this one held the lock.
    #[error(
        "another quell has taken over the database, or the cluster has given up this node; stop one of the two, and do not remove \
         quell.lock by hand"
    )]
    Fenced,
    #[error("the database is closed")]
    Closed,
    /// The session of a run belongs to another node of the cluster, or to none.
    #[error("the session {0:?} belongs to another node of the cluster; send again")]
    OtherNode(SessionKey),
    /// The run was never accepted, or was deleted with its session.
    #[error("run {0} is not in the database")]
    NoSuchRun(RunId),
    #[error("there is a token named {0} already")]
    NameTaken(String),
    /// The cursor was not issued by this list.
    #[error("the cursor is not one that this list gave out")]
    BadCursor,
    #[error("the database refused an operation, which is a bug in quell: {0}")]
    Bug(String),
}

impl StoreError {
    pub(crate) fn from_io(path: &Path, error: &io::Error) -> Self {
        Self::Unwritable(format!("{}: {error}", path.display()))
    }

    /// True when the same operation may work later without repair of the database: no room, or a lock of another
    /// program or of other nodes.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unwritable(_) | Self::LowDiskSpace { .. } | Self::Locked(_) | Self::Conflict(_))
    }

    /// Puts the file's name in front of the cause, for errors that people have to repair.
    pub(crate) fn with_file_name(self, path: &Path) -> Self {
        let named = |cause: String| format!("{}: {cause}", path.display());
        match self {
            Self::Unwritable(cause) => Self::Unwritable(named(cause)),
            Self::Locked(cause) => Self::Locked(named(cause)),
            Self::Corrupt(cause) => Self::Corrupt(named(cause)),
            other => other,
        }
    }
}
