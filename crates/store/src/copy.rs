//! Copy a whole database into an empty one, also of the other kind: SQLite or PostgreSQL.
//!
//! The source is read in one transaction, and the target is written in one. Before its commit the target is read again:
//! each table must have the rows of the source. So an interrupted or failed copy leaves the target as it was.

mod checksum;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::postgres::{PostgresCopy, PostgresSettings};
use crate::sqlite::SqliteCopy;
use checksum::TableChecksum;
pub(crate) use tables::{ColumnKind, CopiedTable, CopiedValue, TABLES};

/// Rows that are inserted at once, at most.
const BATCH_ROWS: usize = 1000;
/// Bytes of texts that are inserted at once, more or less.
const BATCH_BYTES: usize = 4 << 20;

/// A database that can be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyLocation {
    Sqlite {
        data_dir: PathBuf,
        /// Relative to the data directory.
        file: String,
    },
    Postgres(PostgresSettings),
}

/// How far a copy is, in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyProgress {
    pub step: CopyStep,
    pub table: &'static str,
    /// Of this table, so far.
    pub rows: u64,
    /// Of this table, in total.
    pub total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStep {
    Write,
    /// Read the target again, and compare.
    Check,
}

/// A table of a finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableCopy {
    pub name: &'static str,
    pub rows: u64,
}

/// Nothing was copied, unless [`CopyError::Commit`] says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    #[error("the source cannot be read: {0}")]
    Source(StoreError),
    #[error("the target cannot be written: {0}")]
    Target(StoreError),
    #[error(
        "the target already has rows (table {0}) and was left as it is; name an empty database or a new data directory"
    )]
    TargetNotEmpty(&'static str),
    #[error("table {table} of the source cannot be read, so nothing was copied: {}", reason(cause))]
    ReadTable { table: &'static str, cause: StoreError },
    #[error("table {table} cannot be written to the target, so nothing was copied: {}", reason(cause))]
    WriteTable { table: &'static str, cause: StoreError },
    #[error(
        "table {table} of the target differs from the source after it was written ({copied} rows of {rows}), so nothing \
         was copied; check the disks of both machines, and that nothing else uses the databases, and copy again"
    )]
    Different {
        table: &'static str,
        /// Of the source.
        rows: u64,
        /// Found in the target.
        copied: u64,
    },
    #[error(
        "the copy may not be complete: the end of the transaction failed: {0}; copy again, which is refused if the target \
         has the rows"
    )]
    Commit(StoreError),
}

/// What a store says about one table. A refused row is not a bug here: another program can have written it.
fn reason(cause: &StoreError) -> &dyn fmt::Display {
    match cause {
        StoreError::Bug(text) | StoreError::Corrupt(text) => text,
        other => other,
    }
}

/// A database within its transaction. Dropping it rolls back.
pub(crate) trait CopyDatabase {
    fn count_rows(&self, table: &CopiedTable) -> Result<u64, StoreError>;

    /// Calls `each` with every row, without having all of them in memory.
    fn read_rows(
        &self,
        table: &CopiedTable,
        each: &mut dyn FnMut(Vec<CopiedValue>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError>;

    /// The highest number that this database has ever given to a row in column `number`; 0 before the first one.
    fn last_number(&self, table: &CopiedTable, number: &str) -> Result<i64, StoreError>;

    /// Of the latest start of a daemon.
    fn boot_number(&self) -> Result<i64, StoreError>;
}

pub(crate) trait CopyTarget: CopyDatabase {
    fn insert_rows(&self, table: &CopiedTable, rows: &[Vec<CopiedValue>]) -> Result<(), StoreError>;

    /// The next row gets a higher number than `last`. Called before the rows are inserted.
    fn set_last_number(&self, table: &CopiedTable, number: &str, last: i64) -> Result<(), StoreError>;

    /// The next start of a daemon gets a higher number than `boot`: replies in channels name the start that shows them.
    fn raise_boot_number(&self, boot: i64) -> Result<(), StoreError>;

    fn commit(self: Box<Self>) -> Result<(), StoreError>;
}

impl CopyLocation {
    fn open_source(&self) -> Result<Box<dyn CopyDatabase>, StoreError> {
        Ok(match self {
            Self::Sqlite { data_dir, file } => Box::new(SqliteCopy::open_source(data_dir, file)?),
            Self::Postgres(settings) => Box::new(PostgresCopy::open_source(settings)?),
        })
    }

    fn open_target(&self) -> Result<Box<dyn CopyTarget>, StoreError> {
        Ok(match self {
            Self::Sqlite { data_dir, file } => Box::new(SqliteCopy::open_target(data_dir, file)?),
            Self::Postgres(settings) => Box::new(PostgresCopy::open_target(settings)?),
        })
    }

    /// The data directory of a SQLite database.
    #[must_use]
    pub fn data_dir(&self) -> Option<&Path> {
        match self {
            Self::Sqlite { data_dir, .. } => Some(data_dir),
            Self::Postgres(_) => None,
        }
    }
}

/// Copies all rows with their numbers, so that cursors and the order of lists stay; the search index of notes is made
/// anew. Blocks, and must not be called on a thread of an async runtime. `progress` is called after each batch.
///
/// # Errors
/// [`CopyError`] when a daemon uses one of the databases, the target is not empty, a row cannot be copied, or the check
/// finds a difference.
pub fn copy_store(
    from: &CopyLocation,
    to: &CopyLocation,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<Vec<TableCopy>, CopyError> {
    let source = from.open_source().map_err(CopyError::Source)?;
    let target = to.open_target().map_err(CopyError::Target)?;
    check_is_empty(&*target)?;
    let mut written = Vec::with_capacity(TABLES.len());
    for table in TABLES {
        written.push(copy_table(&*source, &*target, table, progress)?);
    }
    let boot = source.boot_number().map_err(CopyError::Source)?;
    target.raise_boot_number(boot).map_err(CopyError::Target)?;
    for (table, checksum) in TABLES.iter().zip(&written) {
        check_table(&*target, table, checksum, progress)?;
    }
    target.commit().map_err(CopyError::Commit)?;
    Ok(TABLES.iter().zip(written).map(|(table, sum)| TableCopy { name: table.name, rows: sum.rows() }).collect())
}

fn check_is_empty(target: &dyn CopyTarget) -> Result<(), CopyError> {
    for table in TABLES {
        if target.count_rows(table).map_err(CopyError::Target)? > 0 {
            return Err(CopyError::TargetNotEmpty(table.name));
        }
    }
    Ok(())
}

/// Returns the checksum of the rows as they were read.
fn copy_table(
    source: &dyn CopyDatabase,
    target: &dyn CopyTarget,
    table: &'static CopiedTable,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<TableChecksum, CopyError> {
    let unreadable = |cause| CopyError::ReadTable { table: table.name, cause };
    let unwritable = |cause| CopyError::WriteTable { table: table.name, cause };
    let total = source.count_rows(table).map_err(unreadable)?;
    if let Some(number) = table.number_column() {
        let last = source.last_number(table, number).map_err(unreadable)?;
        target.set_last_number(table, number, last).map_err(unwritable)?;
    }
    let mut sum = TableChecksum::default();
    let (mut batch, mut bytes, mut refusal) = (Vec::new(), 0, None);
    let read = source.read_rows(table, &mut |row| {
        sum.add(&row);
        bytes += row.iter().map(CopiedValue::size).sum::<usize>();
        batch.push(row);
        if batch.len() < BATCH_ROWS && bytes < BATCH_BYTES {
            return Ok(());
        }
        target.insert_rows(table, &batch).inspect_err(|error| refusal = Some(error.clone()))?;
        (batch, bytes) = (Vec::new(), 0);
        progress(CopyProgress { step: CopyStep::Write, table: table.name, rows: sum.rows(), total });
        Ok(())
    });
    if let Some(refusal) = refusal {
        return Err(unwritable(refusal));
    }
    read.map_err(unreadable)?;
    target.insert_rows(table, &batch).map_err(unwritable)?;
    progress(CopyProgress { step: CopyStep::Write, table: table.name, rows: sum.rows(), total });
    Ok(sum)
}

fn check_table(
    target: &dyn CopyTarget,
    table: &'static CopiedTable,
    expected: &TableChecksum,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<(), CopyError> {
    let mut found = TableChecksum::default();
    let mut report =
        |rows| progress(CopyProgress { step: CopyStep::Check, table: table.name, rows, total: expected.rows() });
    let read = target.read_rows(table, &mut |row| {
        found.add(&row);
        if found.rows().is_multiple_of(BATCH_ROWS as u64) {
            report(found.rows());
        }
        Ok(())
    });
    read.map_err(|cause| CopyError::WriteTable { table: table.name, cause })?;
    report(found.rows());
    if found == *expected {
        return Ok(());
    }
    Err(CopyError::Different { table: table.name, rows: expected.rows(), copied: found.rows() })
}
