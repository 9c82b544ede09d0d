//! Journals of live runs, and the sealing of runs whose daemon died.

use quell_protocol::RunId;
use rusqlite::{Connection, params};

use super::history::{self, SealedTurn};
use super::{SealedRun, Store, StoreError, spend};

/// A line as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    pub run: RunId,
    /// Number of the row within the run. A later row with the same number replaces it.
    pub number: u32,
    /// JSON of a [`JournalLine`](quell_kernel::journal::JournalLine).
    pub line: String,
}

impl Store {
    /// Writes lines of journals without waiting for a sync of the disk. They survive the death of the daemon; they
    /// survive a crash of the machine once a later write was synced. Replaces rows that exist; leaves out rows of
    /// ended runs.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none is.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn write_journal(&self, rows: Vec<JournalRow>) -> Result<(), StoreError> {
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
        .await
    }

    /// Returns the lines of a run's journal, in order, and its turn if that is recorded.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn read_journal(&self, run: RunId) -> Result<(Vec<String>, Option<String>), StoreError> {
        self.read(move |db| {
            let lines = db
                .prepare_cached("SELECT line FROM journal WHERE run = ?1 ORDER BY number")?
                .query_map([run.as_str()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            Ok((lines, history::find_turn(db, &run)?))
        })
        .await
    }

    /// Ends runs whose daemon died, in this order and in one transaction. Writes the turn of each run that had begun,
    /// and its last view.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none is.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn seal_runs(&self, runs: Vec<SealedRun>) -> Result<(), StoreError> {
        self.write(move |db| runs.iter().try_for_each(|sealed| seal_run(db, sealed))).await
    }
}

fn seal_run(db: &Connection, sealed: &SealedRun) -> rusqlite::Result<()> {
    let SealedRun { session, run, turn, view, spent } = sealed;
    if let Some(turn) = turn {
        history::insert_turn(db, &SealedTurn { session, run, turn }, view)?;
    }
    let sql = "UPDATE runs SET state = 'ended', view = ?2 WHERE id = ?1 AND state IN ('accepted', 'started')";
    db.prepare_cached(sql)?.execute([run.as_str(), view])?;
    spend::count_run_spend(db, run, spent)?;
    delete_journal(db, run)
}

/// Deletes the journal of an ended run.
pub(super) fn delete_journal(db: &Connection, run: &RunId) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM journal WHERE run = ?1")?.execute([run.as_str()])?;
    Ok(())
}
