//! The database that the configuration chooses: a file of SQLite, or one on a PostgreSQL server.

use std::path::Path;
use std::time::Duration;

use quell_protocol::api::Hold;

use crate::postgres::{self, PostgresSettings, PostgresStore};
use crate::sqlite::{self, SqliteStore};
use crate::{LockHolder, NodeRow, Store, StoreError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    Sqlite {
        /// Relative to the data directory.
        file: String,
    },
    Postgres(PostgresSettings),
}

impl StoreLocation {
    /// Opens the database as a daemon does, see [`SqliteStore::open`] and [`PostgresStore::open`]. The data directory is
    /// locked in both cases.
    ///
    /// # Errors
    /// [`StoreError`] names the process that holds the directory, or the defect of the database.
    pub fn open(&self, data_dir: &Path) -> Result<Store, StoreError> {
        Ok(match self {
            Self::Sqlite { file } => Store::new(SqliteStore::open(data_dir, file)?),
            Self::Postgres(settings) => Store::new(PostgresStore::open(settings, data_dir)?),
        })
    }

    /// Inspects the database and the lock of the data directory without changing them.
    ///
    /// # Errors
    /// [`StoreError`] when a daemon could not open the database.
    pub fn inspect(&self, data_dir: &Path) -> Result<DatabaseInspection, StoreError> {
        match self {
            Self::Sqlite { file } => sqlite::inspect_database(data_dir, file),
            Self::Postgres(settings) => postgres::inspect_database(settings, data_dir),
        }
    }
}

/// What is found of a database from outside of its daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseInspection {
    /// The daemon that uses the directory now.
    pub holder: Option<LockHolder>,
    pub database: DatabaseState,
    /// `None` for a file.
    pub server: Option<DatabaseServer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseState {
    /// There is no file yet, or no table: the first start makes them.
    Absent,
    /// The database is intact. The value is the stored hold.
    Readable(Hold),
    /// The daemon keeps the database exclusively, as after a start on a full disk.
    LockedByDaemon,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseServer {
    /// Such as `15.4 (Debian 15.4-1)`.
    pub version: String,
    /// Of one statement, to the server and back.
    pub round_trip: Duration,
    /// The server's clock minus this machine's, see [`quell_kernel::clock_skew`].
    pub clock_skew_ms: i64,
    /// The memberships of a cluster that are not settled.
    pub nodes: Vec<NodeRow>,
}
