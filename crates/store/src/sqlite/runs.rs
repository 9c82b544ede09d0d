//! Runs: insert once per id, record state changes, list.

use quell_protocol::api::Hold;
use quell_protocol::{AgentId, Amendment, Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::columns::{invalid_column, parse_id_column};
use super::{SqliteStore, amendments, history, hold, journal, sessions, spend};
use crate::cursor::{PagedList, limit_plus_one};
use crate::{
    AcceptRunOutcome, RunListFilter, RunRow, RunSpend, RunStore, SealedRun, StoreError, StoreFuture, StorePage,
    StoredRunState,
};

/// The columns that [`run_from_row`] reads. A macro, because `concat!` needs a literal.
macro_rules! select {
    () => {
        "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view, seq FROM runs"
    };
}

impl RunStore for SqliteStore {
    fn accept(&self, row: RunRow) -> StoreFuture<'_, AcceptRunOutcome> {
        self.write(move |db| insert_accepted_run(db, &row))
    }

    fn insert_with_turn(&self, row: RunRow, turn: String) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            if insert_run(db, &row)? > 0 {
                sessions::record_use(db, &row.session, &row.agent, &row.principal, &row.accepted_at)?;
                history::insert_turn(db, &row.session, &row.id, &turn, &row.view)?;
            }
            Ok(())
        })
    }

    fn record_start(&self, id: RunId, view: String) -> StoreFuture<'_, ()> {
        self.update_run(id, move |db, id| {
            let sql = "UPDATE runs SET state = 'started', view = ?2 WHERE id = ?1 AND state = 'accepted'";
            update_existing_run(db, sql, &[&id.as_str(), &view], id)
        })
    }

    fn record_end(&self, id: RunId, view: String, spent: RunSpend) -> StoreFuture<'_, ()> {
        self.update_run(id, move |db, id| {
            let sql = "UPDATE runs SET state = 'ended', view = ?2 WHERE id = ?1 AND state <> 'steered'";
            journal::delete_journal(db, id)?;
            spend::count_run_spend(db, id, &spent)?;
            let view = amendments::merge_stored_amendments(db, id, &view)?;
            update_existing_run(db, sql, &[&id.as_str(), &view], id)
        })
    }

    fn record_steered(&self, id: RunId, into: RunId) -> StoreFuture<'_, ()> {
        self.update_run(id, move |db, id| {
            let sql = "UPDATE runs SET state = 'steered', steered_into = ?2 WHERE id = ?1 AND state = 'accepted'";
            update_existing_run(db, sql, &[&id.as_str(), &into.as_str()], id)
        })
    }

    fn amend(&self, run: RunId, amendment: Amendment) -> StoreFuture<'_, (SessionKey, Amendment)> {
        Box::pin(async move {
            let of = run.clone();
            let amended = self.write(move |db| amendments::add_amendment(db, &of, amendment.clone())).await?;
            amended.ok_or(StoreError::NoSuchRun(run))
        })
    }

    fn seal(&self, runs: Vec<SealedRun>) -> StoreFuture<'_, ()> {
        self.write(move |db| runs.iter().try_for_each(|sealed| seal_run(db, sealed)))
    }

    fn find(&self, id: RunId) -> StoreFuture<'_, Option<RunRow>> {
        self.read(move |db| query_run(db, &id))
    }

    fn list_with_cursors(&self, filter: RunListFilter) -> StoreFuture<'_, StorePage<(RunRow, String)>> {
        Box::pin(async move {
            let before = PagedList::Runs.parse_cursor(filter.cursor.as_deref())?;
            let limit = filter.limit;
            let rows = self.read(move |db| query_runs(db, &filter, before)).await?;
            Ok(PagedList::Runs.split_page_with_cursors(rows, limit))
        })
    }

    fn list_open(&self) -> StoreFuture<'_, Vec<RunRow>> {
        self.read(|db| {
            let sql = concat!(select!(), " WHERE state IN ('accepted', 'started') ORDER BY seq");
            db.prepare_cached(sql)?.query_map([], run_from_row)?.collect()
        })
    }

    fn delete_receipts_before(&self, before: String) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM receipts WHERE deleted_at < ?1")?.execute([&before]).map(drop)
        })
    }

    fn delete_oldest_receipts(&self, limit: u32) -> StoreFuture<'_, usize> {
        self.write_relaxed(move |db| {
            let sql = "DELETE FROM receipts WHERE run IN (SELECT run FROM receipts ORDER BY deleted_at LIMIT ?1)";
            db.prepare_cached(sql)?.execute([limit])
        })
    }

    fn delete_runs_of_agent_before(&self, agent: AgentId, before: String) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE sessions SET turns = turns - (
                           SELECT count(*) FROM history JOIN runs ON runs.id = history.run
                           WHERE runs.session = sessions.key AND runs.agent = ?1 AND runs.accepted_at < ?2
                               AND runs.state = 'ended')
                       WHERE key IN (SELECT session FROM runs WHERE agent = ?1 AND accepted_at < ?2)";
            db.prepare_cached(sql)?.execute([agent.as_str(), &before])?;
            let sql = "DELETE FROM runs WHERE agent = ?1 AND accepted_at < ?2 AND state = 'ended'";
            db.prepare_cached(sql)?.execute([agent.as_str(), &before]).map(drop)
        })
    }

    fn set_hold(&self, hold: &Hold, after: Option<u64>) -> StoreFuture<'_, Option<u64>> {
        let hold = hold.clone();
        self.write(move |db| hold::write_hold(db, &hold, after))
    }

    fn hold(&self) -> StoreFuture<'_, Hold> {
        self.read(hold::read_hold)
    }
}

impl SqliteStore {
    /// Runs an update that returns whether the run exists.
    fn update_run<F>(&self, id: RunId, mut update: F) -> StoreFuture<'_, ()>
    where
        F: FnMut(&Connection, &RunId) -> rusqlite::Result<bool> + Send + 'static,
    {
        Box::pin(async move {
            let run = id.clone();
            let known = self.write(move |db| update(db, &run)).await?;
            if known { Ok(()) } else { Err(StoreError::NoSuchRun(id)) }
        })
    }
}

fn seal_run(db: &Connection, sealed: &SealedRun) -> rusqlite::Result<()> {
    let SealedRun { session, run, turn, view, spent } = sealed;
    if let Some(turn) = turn {
        history::insert_turn(db, session, run, turn, view)?;
    }
    let sql = "UPDATE runs SET state = 'ended', view = ?2 WHERE id = ?1 AND state IN ('accepted', 'started')";
    db.prepare_cached(sql)?.execute([run.as_str(), view])?;
    spend::count_run_spend(db, run, spent)?;
    journal::delete_journal(db, run)
}

pub(super) fn insert_accepted_run(db: &Connection, row: &RunRow) -> rusqlite::Result<AcceptRunOutcome> {
    if let Some(existing) = query_receipt(db, &row.id)? {
        // The session was deleted; the run's id stays in use.
        return Ok(AcceptRunOutcome::Existing(existing));
    }
    let inserted = insert_run(db, row)?;
    if inserted == 0 {
        return query_run(db, &row.id)?.map(AcceptRunOutcome::Existing).ok_or(rusqlite::Error::QueryReturnedNoRows);
    }
    sessions::record_use(db, &row.session, &row.agent, &row.principal, &row.accepted_at)?;
    Ok(AcceptRunOutcome::New)
}

/// Inserts the row of a run unless one with its id exists. Returns the number of inserted rows.
pub(super) fn insert_run(db: &Connection, row: &RunRow) -> rusqlite::Result<usize> {
    let (state, into) = state_columns(&row.state);
    db.prepare_cached(
        "INSERT INTO runs (id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO NOTHING",
    )?
    .execute(params![
        row.id.as_str(),
        row.session.as_str(),
        row.agent.as_str(),
        row.principal.as_str(),
        row.fingerprint,
        state,
        into,
        row.accepted_at,
        row.view
    ])
}

fn update_existing_run(db: &Connection, sql: &str, values: &[&dyn ToSql], id: &RunId) -> rusqlite::Result<bool> {
    let changed = db.prepare_cached(sql)?.execute(values)?;
    if changed > 0 {
        return Ok(true);
    }
    db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([id.as_str()])
}

fn query_run(db: &Connection, id: &RunId) -> rusqlite::Result<Option<RunRow>> {
    let sql = concat!(select!(), " WHERE id = ?1");
    if let Some(receipt) = query_receipt(db, id)? {
        return Ok(Some(receipt));
    }
    db.prepare_cached(sql)?.query_row([id.as_str()], run_from_row).optional()
}

/// Finds the receipt of a run whose session was deleted. It takes precedence over an imported run with the same id.
fn query_receipt(db: &Connection, id: &RunId) -> rusqlite::Result<Option<RunRow>> {
    let sql = "SELECT run, session, agent, principal, fingerprint, 'ended', NULL, accepted_at, view FROM receipts
               WHERE run = ?1";
    db.prepare_cached(sql)?.query_row([id.as_str()], run_from_row).optional()
}

fn query_runs(db: &Connection, filter: &RunListFilter, before: i64) -> rusqlite::Result<Vec<(i64, RunRow)>> {
    let limit = limit_plus_one(filter.limit);
    let mut sql = String::from(concat!(select!(), " WHERE seq < ?"));
    let mut values: Vec<&dyn ToSql> = vec![&before];
    let session = filter.session.as_ref().map(SessionKey::as_str);
    if let Some(session) = &session {
        sql.push_str(" AND session = ?");
        values.push(session);
    }
    let principal = filter.principal.as_ref().map(Principal::as_str);
    if let Some(principal) = &principal {
        sql.push_str(" AND principal = ?");
        values.push(principal);
    }
    let visible_to = filter.visible_to.as_ref().map(Principal::as_str);
    if let Some(viewer) = &visible_to {
        sql.push_str(" AND (principal = ? OR session IN (SELECT key FROM sessions WHERE owner = ? OR shared))");
        values.extend([viewer as &dyn ToSql, viewer]);
    }
    sql.push_str(" ORDER BY seq DESC LIMIT ?");
    values.push(&limit);
    db.prepare_cached(&sql)?.query_map(values.as_slice(), |row| Ok((row.get("seq")?, run_from_row(row)?)))?.collect()
}

fn state_columns(state: &StoredRunState) -> (&'static str, Option<&str>) {
    match state {
        StoredRunState::Accepted => ("accepted", None),
        StoredRunState::Started => ("started", None),
        StoredRunState::Ended => ("ended", None),
        StoredRunState::Steered { into } => ("steered", Some(into.as_str())),
    }
}

pub(super) fn run_from_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let into: Option<String> = row.get(6)?;
    let state: String = row.get(5)?;
    let state = match (state.as_str(), into) {
        ("accepted", None) => StoredRunState::Accepted,
        ("started", None) => StoredRunState::Started,
        ("ended", None) => StoredRunState::Ended,
        ("steered", Some(into)) => {
            StoredRunState::Steered { into: RunId::parse(into).map_err(|error| invalid_column(6, error))? }
        }
        (other, _) => return Err(invalid_column(5, format!("{other} is not the state of a run"))),
    };
    Ok(RunRow {
        id: parse_id_column(row, 0, RunId::parse)?,
        session: parse_id_column(row, 1, SessionKey::parse)?,
        agent: parse_id_column(row, 2, AgentId::parse)?,
        principal: parse_id_column(row, 3, Principal::parse)?,
        fingerprint: row.get(4)?,
        state,
        accepted_at: row.get(7)?,
        view: row.get(8)?,
    })
}
