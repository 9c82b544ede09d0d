//! The journal of runs at work, and the sealing of those whose daemon died.

use quell_protocol::RunId;
use rusqlite::{Connection, params};

use super::history::{self, Sealed};
use super::{SealedRun, Store, StoreError, spend};
use crate::journal::Row;

impl Store {
    /// Writes lines of journals, without a sync of its own: they survive the death of the daemon, and of the machine once
    /// anything else is written. A row that is there already is replaced; those of runs that are over are
    /// left out.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none was.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn write_journal(&self, rows: Vec<Row>) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            let mut insert = db.prepare_cached(
                "INSERT INTO journal (run, number, line)
                 SELECT id, ?2, ?3 FROM runs WHERE id = ?1 AND state IN ('accepted', 'started')
                 ON CONFLICT (run, number) DO UPDATE SET line = excluded.line",
            )?;
            for Row { run, number, line } in &rows {
                insert.execute(params![run.as_str(), number, line])?;
            }
            Ok(())
        })
        .await
    }

    /// The lines of a run's journal, in order, and its turn if that is recorded.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn journal(&self, run: RunId) -> Result<(Vec<String>, Option<String>), StoreError> {
        self.read(move |db| {
            let lines = db
                .prepare_cached("SELECT line FROM journal WHERE run = ?1 ORDER BY number")?
                .query_map([run.as_str()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            Ok((lines, history::turn_of(db, &run)?))
        })
        .await
    }

    /// Ends runs whose daemon died, in this order and in one transaction: the turn of each that had begun, and its last view.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none was.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn seal_runs(&self, runs: Vec<SealedRun>) -> Result<(), StoreError> {
        self.write(move |db| runs.iter().try_for_each(|sealed| seal(db, sealed))).await
    }
}

fn seal(db: &Connection, sealed: &SealedRun) -> rusqlite::Result<()> {
    let SealedRun { session, run, turn, view, spent } = sealed;
    if let Some(turn) = turn {
        history::append(db, &Sealed { session, run, turn }, view)?;
    }
    let sql = "UPDATE runs SET state = 'ended', view = ?2 WHERE id = ?1 AND state IN ('accepted', 'started')";
    db.prepare_cached(sql)?.execute([run.as_str(), view])?;
    spend::count(db, run, spent)?;
    forget(db, run)
}

/// The run is over: its journal goes.
pub(super) fn forget(db: &Connection, run: &RunId) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM journal WHERE run = ?1")?.execute([run.as_str()])?;
    Ok(())
}
