//! History of sessions: sealed turns in the order of their recording, and reset marks.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, params};

use super::cursor::{PagedList, limit_plus_one};
use super::runs::parse_id_column;
use super::{HistoryItem, NoteScope, Store, StoreError, journal, notes};

impl Store {
    /// Records the sealed turn of a run, and the run's view unless the run has ended, in one transaction. A turn that
    /// is already recorded is not changed.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`] when the session has no such run, because it was deleted.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn append_turn(
        &self,
        session: SessionKey,
        run: RunId,
        stored: String,
        view: String,
    ) -> Result<(), StoreError> {
        let id = run.clone();
        let known =
            self.write(move |db| insert_turn(db, &SealedTurn { session: &session, run: &run, turn: &stored }, &view));
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(id)) }
    }

    /// Lists the turns of a session after its last reset, oldest first; none when there is no such session.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn session_turns(&self, session: SessionKey) -> Result<Vec<String>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT turn FROM history WHERE session = ?1 AND turn IS NOT NULL AND seq > ifnull(
                           (SELECT max(seq) FROM history WHERE session = ?1 AND reset_at IS NOT NULL), 0)
                       ORDER BY seq";
            db.prepare_cached(sql)?.query_map([session.as_str()], |row| row.get(0))?.collect()
        })
        .await
    }

    /// Lists the newest `limit` items of a session's whole history before `cursor`, oldest first, and the cursor of
    /// the page before them.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn history_page(
        &self,
        session: SessionKey,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<HistoryItem>, Option<String>), StoreError> {
        let before = PagedList::History.parse_cursor(cursor.as_deref())?;
        let rows = self.read(move |db| query_history(db, &session, before, limit)).await?;
        let (mut page, next) = PagedList::History.split_page(rows, limit);
        page.reverse();
        Ok((page, next))
    }

    /// Lists the newest `limit` turns of a session after its last reset and before number `before`, newest first,
    /// each with its number. Numbers rise with time and can have gaps.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn newest_turns(
        &self,
        session: SessionKey,
        before: i64,
        limit: usize,
    ) -> Result<Vec<(i64, String)>, StoreError> {
        self.read(move |db| {
            let sql =
                "SELECT seq, turn FROM history WHERE session = ?1 AND turn IS NOT NULL AND seq < ?2 AND seq > ifnull(
                           (SELECT max(seq) FROM history WHERE session = ?1 AND reset_at IS NOT NULL), 0)
                       ORDER BY seq DESC LIMIT ?3";
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            db.prepare_cached(sql)?.query_map(params![session.as_str(), before, limit], rows)?.collect()
        })
        .await
    }

    /// Returns the first turn of a session after its last reset.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn first_turn(&self, session: SessionKey) -> Result<Option<String>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT turn FROM history WHERE session = ?1 AND turn IS NOT NULL AND seq > ifnull(
                           (SELECT max(seq) FROM history WHERE session = ?1 AND reset_at IS NOT NULL), 0)
                       ORDER BY seq LIMIT 1";
            db.prepare_cached(sql)?.query_row([session.as_str()], |row| row.get(0)).optional()
        })
        .await
    }

    /// Adds a reset mark to the history, so that the model sees nothing from before, and deletes the session's notes.
    /// `at` is the time of the reset, RFC 3339. Returns false when there is no such session.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn reset_session(&self, key: SessionKey, at: String) -> Result<bool, StoreError> {
        self.write(move |db| reset_history(db, &key, &at)).await
    }
}

/// A sealed turn with its session and run.
pub(super) struct SealedTurn<'a> {
    pub(super) session: &'a SessionKey,
    pub(super) run: &'a RunId,
    pub(super) turn: &'a str,
}

/// Appends a turn unless it is recorded already. True when the run exists.
pub(super) fn insert_turn(db: &Connection, sealed: &SealedTurn<'_>, view: &str) -> rusqlite::Result<bool> {
    let (session, run) = (sealed.session.as_str(), sealed.run.as_str());
    let inserted = db
        .prepare_cached(
            "INSERT INTO history (session, run, turn) SELECT session, id, ?3 FROM runs WHERE id = ?2 AND session = ?1
             ON CONFLICT (run) DO NOTHING",
        )?
        .execute(params![session, run, sealed.turn])?;
    if inserted == 0 {
        return db.prepare_cached("SELECT 1 FROM history WHERE run = ?1 AND session = ?2")?.exists([run, session]);
    }
    db.prepare_cached("UPDATE sessions SET turns = turns + 1 WHERE key = ?1")?.execute([session])?;
    // A turn that is recorded late must not hide the receipt of a run that is over.
    db.prepare_cached("UPDATE runs SET view = ?2 WHERE id = ?1 AND state IN ('accepted', 'started')")?
        .execute([run, view])?;
    journal::delete_journal(db, sealed.run)?;
    Ok(true)
}

/// Returns the recorded turn of a run.
pub(super) fn find_turn(db: &Connection, run: &RunId) -> rusqlite::Result<Option<String>> {
    db.prepare_cached("SELECT turn FROM history WHERE run = ?1")?.query_row([run.as_str()], |row| row.get(0)).optional()
}

fn query_history(
    db: &Connection,
    session: &SessionKey,
    before: i64,
    limit: usize,
) -> rusqlite::Result<Vec<(i64, HistoryItem)>> {
    let sql =
        "SELECT history.seq, turn, reset_at, agent, principal FROM history LEFT JOIN runs ON runs.id = history.run
               WHERE history.session = ?1 AND history.seq < ?2 ORDER BY history.seq DESC LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![session.as_str(), before, limit_plus_one(limit)], |row| {
        let turn: Option<String> = row.get(1)?;
        let item = match turn {
            Some(turn) => HistoryItem::Turn {
                turn,
                agent: parse_id_column(row, 3, AgentId::parse)?,
                principal: parse_id_column(row, 4, Principal::parse)?,
            },
            None => HistoryItem::Reset { at: row.get(2)? },
        };
        Ok((row.get(0)?, item))
    })?;
    rows.collect()
}

fn reset_history(db: &Connection, key: &SessionKey, at: &str) -> rusqlite::Result<bool> {
    // The notes of a session belong to its history.
    notes::delete_notes(db, &NoteScope::Session(key.clone()))?;
    // Set no second mark when there is no turn after the last one.
    let set =
        db.prepare_cached("UPDATE sessions SET turns = 0 WHERE key = ?1 AND turns > 0")?.execute([key.as_str()])?;
    if set > 0 {
        db.prepare_cached("INSERT INTO history (session, reset_at) VALUES (?1, ?2)")?.execute([key.as_str(), at])?;
        return Ok(true);
    }
    db.prepare_cached("SELECT 1 FROM sessions WHERE key = ?1")?.exists([key.as_str()])
}
