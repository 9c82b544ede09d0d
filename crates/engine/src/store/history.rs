//! What was said in a session: sealed turns in the order of their recording, and the boundaries that resets left.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, params};

use super::cursor::{Listing, ask_for};
use super::runs::id;
use super::{NoteScope, Past, Store, StoreError, journal, notes};

impl Store {
    /// Records the sealed turn of a run, and the run's view unless the run is over, in one transaction. A turn that is
    /// recorded already stays as it is.
    ///
    /// # Errors
    /// [`StoreError`] when the session has no such run, because it was deleted, or it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says: handed over, the turn is written whether or not the caller waits.
    pub async fn append_turn(
        &self,
        session: SessionKey,
        run: RunId,
        stored: String,
        view: String,
    ) -> Result<(), StoreError> {
        let id = run.clone();
        let known = self.write(move |db| append(db, &Sealed { session: &session, run: &run, turn: &stored }, &view));
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(id)) }
    }

    /// The turns of a session after its last reset, oldest first; none when there is no such session.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn turns(&self, session: SessionKey) -> Result<Vec<String>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT turn FROM history WHERE session = ?1 AND turn IS NOT NULL AND seq > ifnull(
                           (SELECT max(seq) FROM history WHERE session = ?1 AND reset_at IS NOT NULL), 0)
                       ORDER BY seq";
            db.prepare_cached(sql)?.query_map([session.as_str()], |row| row.get(0))?.collect()
        })
        .await
    }

    /// The newest `limit` pieces of a session's whole past before `cursor`, the oldest of them first, and the cursor of
    /// the pieces before them.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read, or the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn turn_page(
        &self,
        session: SessionKey,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<Past>, Option<String>), StoreError> {
        let before = Listing::History.before(cursor.as_deref())?;
        let rows = self.read(move |db| newest(db, &session, before, limit)).await?;
        let (mut page, next) = Listing::History.page(rows, limit);
        page.reverse();
        Ok((page, next))
    }

    /// The newest `limit` turns of a session after its last reset and before number `before`, the newest first, each with its
    /// number. Numbers rise with time and are not without holes.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
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

    /// The first turn of a session after its last reset.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn first_turn(&self, session: SessionKey) -> Result<Option<String>, StoreError> {
        self.read(move |db| {
            let sql = "SELECT turn FROM history WHERE session = ?1 AND turn IS NOT NULL AND seq > ifnull(
                           (SELECT max(seq) FROM history WHERE session = ?1 AND reset_at IS NOT NULL), 0)
                       ORDER BY seq LIMIT 1";
            db.prepare_cached(sql)?.query_row([session.as_str()], |row| row.get(0)).optional()
        })
        .await
    }

    /// Puts a boundary behind everything said so far, so that the model sees none of it any more, and forgets the session's
    /// notes. `at` is the time for people, RFC 3339. False when there is no such session.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn reset_session(&self, key: SessionKey, at: String) -> Result<bool, StoreError> {
        self.write(move |db| reset(db, &key, &at)).await
    }
}

/// A sealed turn and whose it is.
pub(super) struct Sealed<'a> {
    pub(super) session: &'a SessionKey,
    pub(super) run: &'a RunId,
    pub(super) turn: &'a str,
}

/// Appends a turn unless it is there. True when the run is known.
pub(super) fn append(db: &Connection, sealed: &Sealed<'_>, view: &str) -> rusqlite::Result<bool> {
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
    journal::forget(db, sealed.run)?;
    Ok(true)
}

/// The recorded turn of a run.
pub(super) fn turn_of(db: &Connection, run: &RunId) -> rusqlite::Result<Option<String>> {
    db.prepare_cached("SELECT turn FROM history WHERE run = ?1")?.query_row([run.as_str()], |row| row.get(0)).optional()
}

fn newest(db: &Connection, session: &SessionKey, before: i64, limit: usize) -> rusqlite::Result<Vec<(i64, Past)>> {
    let sql =
        "SELECT history.seq, turn, reset_at, agent, principal FROM history LEFT JOIN runs ON runs.id = history.run
               WHERE history.session = ?1 AND history.seq < ?2 ORDER BY history.seq DESC LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![session.as_str(), before, ask_for(limit)], |row| {
        let turn: Option<String> = row.get(1)?;
        let past = match turn {
            Some(turn) => {
                Past::Turn { turn, agent: id(row, 3, AgentId::parse)?, principal: id(row, 4, Principal::parse)? }
            }
            None => Past::Reset { at: row.get(2)? },
        };
        Ok((row.get(0)?, past))
    })?;
    rows.collect()
}

fn reset(db: &Connection, key: &SessionKey, at: &str) -> rusqlite::Result<bool> {
    // What was remembered of the conversation is part of it.
    notes::clear(db, &NoteScope::Session(key.clone()))?;
    // Two boundaries with nothing between them would say nothing new.
    let set =
        db.prepare_cached("UPDATE sessions SET turns = 0 WHERE key = ?1 AND turns > 0")?.execute([key.as_str()])?;
    if set > 0 {
        db.prepare_cached("INSERT INTO history (session, reset_at) VALUES (?1, ?2)")?.execute([key.as_str(), at])?;
        return Ok(true);
    }
    db.prepare_cached("SELECT 1 FROM sessions WHERE key = ?1")?.exists([key.as_str()])
}
