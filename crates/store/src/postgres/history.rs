//! History of sessions.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};

use super::columns::{Text, get, optional_text, parse_id, text, to_limit};
use super::connection::PgConnection;
use super::{PostgresStore, journal, notes};
use crate::cursor::{PagedList, limit_plus_one};
use crate::{HistoryItem, HistoryStore, NoteScope, SealedTurn, StoreError, StoreFuture, StorePage};

/// The condition for turns of session `$1` after its last reset.
macro_rules! since_reset {
    () => {
        "session = $1 AND turn IS NOT NULL AND seq > coalesce(
             (SELECT max(seq) FROM history WHERE session = $1 AND reset_at IS NOT NULL), 0)"
    };
}

impl HistoryStore for PostgresStore {
    fn append_turn(&self, sealed: SealedTurn) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let id = sealed.run.clone();
            let known = self.write(move |db| {
                let SealedTurn { session, run, turn, view } = &sealed;
                insert_turn(db, session, run, turn, view)
            });
            if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(id)) }
        })
    }

    fn turns(&self, session: SessionKey) -> StoreFuture<'_, Vec<String>> {
        self.read(move |db| {
            let sql = concat!("SELECT turn FROM history WHERE ", since_reset!(), " ORDER BY seq");
            db.query(sql, &[&session.as_str()])?.iter().map(|row| text(row, 0)).collect()
        })
    }

    fn page(
        &self,
        session: SessionKey,
        limit: usize,
        cursor: Option<String>,
    ) -> StoreFuture<'_, StorePage<HistoryItem>> {
        Box::pin(async move {
            let before = PagedList::History.parse_cursor(cursor.as_deref())?;
            let rows = self.read(move |db| query_history(db, &session, before, limit)).await?;
            let (mut page, next) = PagedList::History.split_page(rows, limit);
            page.reverse();
            Ok((page, next))
        })
    }

    fn newest_turns(&self, session: SessionKey, before: i64, limit: usize) -> StoreFuture<'_, Vec<(i64, String)>> {
        self.read(move |db| {
            let sql = concat!(
                "SELECT seq, turn FROM history WHERE ",
                since_reset!(),
                " AND seq < $2 ORDER BY seq DESC LIMIT $3"
            );
            let rows = db.query(sql, &[&session.as_str(), &before, &to_limit(limit)])?;
            rows.iter().map(|row| Ok((get(row, 0)?, text(row, 1)?))).collect()
        })
    }

    fn first_turn(&self, session: SessionKey) -> StoreFuture<'_, Option<String>> {
        self.read(move |db| {
            let sql = concat!("SELECT turn FROM history WHERE ", since_reset!(), " ORDER BY seq LIMIT 1");
            db.query_optional(sql, &[&session.as_str()])?.map(|row| text(&row, 0)).transpose()
        })
    }

    fn reset(&self, session: SessionKey, at: String) -> StoreFuture<'_, bool> {
        self.write(move |db| reset_history(db, &session, &at))
    }
}

/// Appends a turn unless it is recorded already. True when the run exists.
pub(super) fn insert_turn(
    db: &PgConnection,
    session: &SessionKey,
    run: &RunId,
    turn: &str,
    view: &str,
) -> Result<bool, StoreError> {
    let (session, id) = (session.as_str(), run.as_str());
    let sql = "INSERT INTO history (session, run, turn) SELECT session, id, $3 FROM runs WHERE id = $2 AND session = $1
               ON CONFLICT (run) DO NOTHING";
    if db.execute(sql, &[&session, &id, &Text(turn)])? == 0 {
        return db.exists("SELECT 1 FROM history WHERE run = $1 AND session = $2", &[&id, &session]);
    }
    db.execute("UPDATE sessions SET turns = turns + 1 WHERE key = $1", &[&session])?;
    // A turn that is recorded late must not hide the receipt of a run that is over.
    let sql = "UPDATE runs SET view = $2 WHERE id = $1 AND state IN ('accepted', 'started')";
    db.execute(sql, &[&id, &Text(view)])?;
    journal::delete_journal(db, run)?;
    Ok(true)
}

fn query_history(
    db: &PgConnection,
    session: &SessionKey,
    before: i64,
    limit: usize,
) -> Result<Vec<(i64, HistoryItem)>, StoreError> {
    let sql = "SELECT history.seq, turn, reset_at, agent, principal
               FROM history LEFT JOIN runs ON runs.id = history.run
               WHERE history.session = $1 AND history.seq < $2 ORDER BY history.seq DESC LIMIT $3";
    let rows = db.query(sql, &[&session.as_str(), &before, &limit_plus_one(limit)])?;
    let item = |row: &tokio_postgres::Row| -> Result<HistoryItem, StoreError> {
        Ok(match optional_text(row, 1)? {
            Some(turn) => HistoryItem::Turn {
                turn,
                agent: parse_id(row, 3, AgentId::parse)?,
                principal: parse_id(row, 4, Principal::parse)?,
            },
            None => HistoryItem::Reset { at: get(row, 2)? },
        })
    };
    rows.iter().map(|row| Ok((get(row, 0)?, item(row)?))).collect()
}

fn reset_history(db: &PgConnection, key: &SessionKey, at: &str) -> Result<bool, StoreError> {
    // The notes of a session belong to its history.
    notes::delete_notes(db, &NoteScope::Session(key.clone()))?;
    // Set no second mark when there is no turn after the last one.
    let set = db.execute("UPDATE sessions SET turns = 0 WHERE key = $1 AND turns > 0", &[&key.as_str()])?;
    if set > 0 {
        db.execute("INSERT INTO history (session, reset_at) VALUES ($1, $2)", &[&key.as_str(), &at])?;
        return Ok(true);
    }
    db.exists("SELECT 1 FROM sessions WHERE key = $1", &[&key.as_str()])
}
