//! Journals of live runs.

use quell_protocol::RunId;
use rusqlite::{Connection, OptionalExtension, params};

use super::SqliteStore;
use crate::{JournalRow, JournalStore, StoreFuture};

impl JournalStore for SqliteStore {
    fn write(&self, rows: Vec<JournalRow>) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let mut insert = db.prepare_cached(
                "INSERT INTO journal (run, number, line)
                 SELECT id, ?2, ?3 FROM runs WHERE id = ?1 AND state IN ('accepted', 'started')
                 ON CONFLICT (run, number) DO UPDATE SET line = excluded.line",
            )?;
            for JournalRow { run, number, line } in &rows {
                insert.execute(params![run.as_str(), number, line])?;
            }
            Ok(())
        })
    }

    fn read(&self, run: RunId) -> StoreFuture<'_, (Vec<String>, Option<String>)> {
        SqliteStore::read(self, move |db| {
            let lines = db
                .prepare_cached("SELECT line FROM journal WHERE run = ?1 ORDER BY number")?
                .query_map([run.as_str()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            let sql = "SELECT turn FROM history WHERE run = ?1";
            let turn = db.prepare_cached(sql)?.query_row([run.as_str()], |row| row.get(0)).optional()?;
            Ok((lines, turn))
        })
    }
}

pub(super) fn delete_journal(db: &Connection, run: &RunId) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM journal WHERE run = ?1")?.execute([run.as_str()])?;
    Ok(())
}
