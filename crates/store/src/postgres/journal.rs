//! Journals of live runs.

use quell_protocol::RunId;

use super::PostgresStore;
use super::columns::{Text, text};
use super::connection::PgConnection;
use crate::{JournalRow, JournalStore, StoreError, StoreFuture};

impl JournalStore for PostgresStore {
    fn write(&self, rows: Vec<JournalRow>) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let sql = "INSERT INTO journal (run, number, line)
                       SELECT id, $2, $3 FROM runs WHERE id = $1 AND state IN ('accepted', 'started')
                       ON CONFLICT (run, number) DO UPDATE SET line = excluded.line";
            for JournalRow { run, number, line } in &rows {
                db.execute(sql, &[&run.as_str(), &i64::from(*number), &Text(line)])?;
            }
            Ok(())
        })
    }

    fn read(&self, run: RunId) -> StoreFuture<'_, (Vec<String>, Option<String>)> {
        self.read_snapshot(move |db| {
            let lines = db.query("SELECT line FROM journal WHERE run = $1 ORDER BY number", &[&run.as_str()])?;
            let lines = lines.iter().map(|row| text(row, 0)).collect::<Result<_, _>>()?;
            let turn = db.query_optional("SELECT turn FROM history WHERE run = $1", &[&run.as_str()])?;
            Ok((lines, turn.map(|row| text(&row, 0)).transpose()?))
        })
    }
}

pub(super) fn delete_journal(db: &PgConnection, run: &RunId) -> Result<(), StoreError> {
    db.execute("DELETE FROM journal WHERE run = $1", &[&run.as_str()]).map(drop)
}
