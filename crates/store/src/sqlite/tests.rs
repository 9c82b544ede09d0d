//! Tests of the SQLite store against real files.

mod backup;
mod disk_errors;
mod export;
mod notes;
mod opening;
mod retention;
mod writing;

use std::fs;

use quell_protocol::AgentId;
use rusqlite::{Connection, ToSql};
use tempfile::TempDir;

use super::SqliteStore;
use crate::Store;
use crate::conformance::{
    TestDatabase, accept_run, accepted_row, all_runs, append_turn, conformance_tests, delete_session, find_run,
    find_session, no_spend, run_id, run_ids, run_to_end, session_key, turns,
};

const FILE: &str = "quell.db";

pub(crate) struct SqliteDatabase(TempDir);

impl SqliteDatabase {
    fn count(&self, sql: &str, values: &[&dyn ToSql]) -> i64 {
        Connection::open(self.0.path().join(FILE)).unwrap().query_row(sql, values, |row| row.get(0)).unwrap()
    }
}

impl TestDatabase for SqliteDatabase {
    fn create() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Store {
        open_store(&self.0)
    }

    fn take_over(&self) -> Store {
        fs::remove_file(self.0.path().join("quell.lock")).unwrap();
        self.open()
    }

    fn count_indexed_notes(&self) -> i64 {
        self.count("SELECT count(*) FROM note_words", &[])
    }

    fn stores_scope_name(&self, name: &str) -> bool {
        self.count("SELECT count(*) FROM note_scopes WHERE name = ?1", &[&name]) > 0
    }
}

mod conformance {
    super::conformance_tests!(crate::sqlite::tests::SqliteDatabase);
}

/// A new store, and its data directory.
fn new_store() -> (Store, TempDir) {
    let (_, store, home) = new_sqlite_store();
    (store, home)
}

/// A new store, also as the type that takes statements.
fn new_sqlite_store() -> (SqliteStore, Store, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(home.path(), FILE).unwrap();
    (sqlite.clone(), Store::new(sqlite), home)
}

fn open_store(home: &TempDir) -> Store {
    Store::open(home.path(), FILE).unwrap()
}
