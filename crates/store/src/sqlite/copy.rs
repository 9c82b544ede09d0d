//! The SQLite side of a copy of the whole database.

use std::path::{Path, PathBuf};

use quell_kernel::memory::space_cjk_signs;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql, params, params_from_iter};

use super::backup::chown_to_directory_owner;
use super::columns::to_unsigned;
use super::schema::{self, WalIndex};
use crate::StoreError;
use crate::copy::{ColumnKind, CopiedTable, CopiedValue, CopyDatabase, CopyTarget};
use crate::lock::{DirectoryLock, create_data_directory, lock_file_path};

/// A transaction in a database, under the lock of the data directory.
pub(crate) struct SqliteCopy {
    // Closed before the lock is released.
    db: Connection,
    path: PathBuf,
    data_dir: PathBuf,
    _lock: DirectoryLock,
}

impl SqliteCopy {
    /// Begins to read the newest state. The database is not changed.
    ///
    /// # Errors
    /// [`StoreError`] when a daemon uses the data directory, or the database is absent, of another schema or not readable.
    pub(crate) fn open_source(data_dir: &Path, file: &str) -> Result<Self, StoreError> {
        let path = data_dir.join(file);
        if !path.exists() {
            let text = format!("there is no database {}; name the data directory of a daemon", path.display());
            return Err(StoreError::Settings(text));
        }
        let lock = DirectoryLock::acquire(data_dir)?;
        let db = schema::open_reader(&path, WalIndex::Shared)?;
        schema::check_is_newest(&db, &path)?;
        db.execute_batch("BEGIN")?;
        Ok(Self { db, path, data_dir: data_dir.to_owned(), _lock: lock })
    }

    /// Makes the data directory and the database if they do not exist, and begins to write.
    ///
    /// # Errors
    /// [`StoreError`] when a daemon uses the data directory, or the database cannot be opened.
    pub(crate) fn open_target(data_dir: &Path, file: &str) -> Result<Self, StoreError> {
        create_data_directory(data_dir)?;
        let lock = DirectoryLock::acquire(data_dir)?;
        let path = data_dir.join(file);
        let (db, _) = schema::open_writer(&path)?;
        db.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Self { db, path, data_dir: data_dir.to_owned(), _lock: lock })
    }
}

impl CopyDatabase for SqliteCopy {
    fn count_rows(&self, table: &CopiedTable) -> Result<u64, StoreError> {
        let sql = format!("SELECT count(*) FROM {}", table.name);
        Ok(to_unsigned(self.db.query_row(&sql, [], |row| row.get(0))?))
    }

    fn read_rows(
        &self,
        table: &CopiedTable,
        each: &mut dyn FnMut(Vec<CopiedValue>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut statement = self.db.prepare(&format!("SELECT {} FROM {}", table.column_list(), table.name))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let columns = table.columns.iter().enumerate();
            let values = columns.map(|(at, column)| {
                let problem = |problem: &str| StoreError::Corrupt(format!("column {}: {problem}", column.name));
                parse_value(column.kind, row.get_ref(at)?).map_err(problem)
            });
            each(values.collect::<Result<_, StoreError>>()?)?;
        }
        Ok(())
    }

    fn last_number(&self, table: &CopiedTable, number: &str) -> Result<i64, StoreError> {
        let sql = format!(
            "SELECT max(ifnull((SELECT max(seq) FROM sqlite_sequence WHERE name = ?1), 0),
                        ifnull((SELECT max({number}) FROM {}), 0))",
            table.name
        );
        Ok(self.db.query_row(&sql, [table.name], |row| row.get(0))?)
    }

    fn boot_number(&self) -> Result<i64, StoreError> {
        Ok(self.db.query_row("SELECT number FROM boot", [], |row| row.get(0))?)
    }
}

impl CopyTarget for SqliteCopy {
    fn insert_rows(&self, table: &CopiedTable, rows: &[Vec<CopiedValue>]) -> Result<(), StoreError> {
        let places = vec!["?"; table.columns.len()].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES ({places})", table.name, table.column_list());
        let mut insert = self.db.prepare_cached(&sql)?;
        let mut insert_words =
            self.db.prepare_cached("INSERT INTO note_words (rowid, scope, words) VALUES (?1, ?2, ?3)")?;
        for row in rows {
            insert.execute(params_from_iter(row))?;
            if let (Some(text), [id, CopiedValue::Number(scope), ..]) = (table.searchable_text(row)?, row.as_slice()) {
                insert_words.execute(params![id, scope.to_string(), space_cjk_signs(&text)])?;
            }
        }
        Ok(())
    }

    fn set_last_number(&self, table: &CopiedTable, _number: &str, last: i64) -> Result<(), StoreError> {
        let sql = "UPDATE sqlite_sequence SET seq = max(seq, ?2) WHERE name = ?1";
        if self.db.execute(sql, params![table.name, last])? == 0 && last > 0 {
            // Only some tables count beyond the rows that they have.
            let sql = "INSERT INTO sqlite_sequence (name, seq) SELECT name, ?2 FROM sqlite_schema
                       WHERE type = 'table' AND name = ?1 AND sql LIKE '%AUTOINCREMENT%'";
            self.db.execute(sql, params![table.name, last])?;
        }
        Ok(())
    }

    fn raise_boot_number(&self, boot: i64) -> Result<(), StoreError> {
        Ok(self.db.execute("UPDATE boot SET number = max(number, ?1)", [boot]).map(drop)?)
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.db.execute_batch("COMMIT").map_err(|error| StoreError::from(error).with_file_name(&self.path))?;
        let Self { db, path, data_dir, _lock } = *self;
        // Moves the log into the file.
        db.close().map_err(|(_, error)| StoreError::from(error).with_file_name(&path))?;
        // Root may copy for a daemon that runs as another user.
        [path, lock_file_path(&data_dir)].iter().try_for_each(|file| chown_to_directory_owner(&data_dir, file))
    }
}

fn parse_value(kind: ColumnKind, value: ValueRef<'_>) -> Result<CopiedValue, &'static str> {
    match (kind, value) {
        (_, ValueRef::Null) => Ok(CopiedValue::Null),
        (ColumnKind::Id | ColumnKind::Text, ValueRef::Text(text)) => {
            let text = str::from_utf8(text).map_err(|_| "a text that is not UTF-8")?;
            Ok(CopiedValue::Text(text.to_owned()))
        }
        (ColumnKind::Number, ValueRef::Integer(number)) => Ok(CopiedValue::Number(number)),
        (ColumnKind::Flag, ValueRef::Integer(number @ (0 | 1))) => Ok(CopiedValue::Flag(number == 1)),
        (ColumnKind::Bytes, ValueRef::Blob(bytes)) => Ok(CopiedValue::Bytes(bytes.to_owned())),
        _ => Err("a value of another type"),
    }
}

impl ToSql for CopiedValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Owned(Value::Null),
            Self::Number(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Self::Flag(flag) => ToSqlOutput::Owned(Value::Integer((*flag).into())),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
