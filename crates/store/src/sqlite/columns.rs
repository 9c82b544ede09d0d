//! Errors of SQLite as errors of the store, and columns that are parsed.

use rusqlite::types::Type;
use rusqlite::{ErrorCode, Row};

use crate::StoreError;

pub(super) fn parse_id_column<T, E: std::error::Error + Send + Sync + 'static>(
    row: &Row<'_>,
    at: usize,
    parse: impl Fn(String) -> Result<T, E>,
) -> rusqlite::Result<T> {
    parse(row.get(at)?).map_err(|error| invalid_column(at, error))
}

/// The error for a value that this store would not have written.
pub(super) fn invalid_column(
    at: usize,
    problem: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, problem.into())
}

pub(super) fn to_unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A limit of rows for SQLite.
pub(super) fn to_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
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
            // The tables are STRICT, so the statements of this program cannot have written an unreadable value.
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => Self::Corrupt(cause),
            _ => Self::Bug(cause),
        }
    }
}
