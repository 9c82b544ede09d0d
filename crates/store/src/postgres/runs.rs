//! Runs: insert once per id, record state changes, list.

use quell_protocol::api::Hold;
use quell_protocol::{AgentId, Amendment, Principal, RunId, SessionKey};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::columns::{Text, get, invalid_column, parse_id, text};
use super::connection::{PgConnection, Values};
use super::{PostgresStore, amendments, cluster, history, hold, journal, sessions, spend};
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

pub(super) const RUN_COLUMNS: &str = select!();

impl RunStore for PostgresStore {
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
            let sql = "UPDATE runs SET state = 'started', view = $2 WHERE id = $1 AND state = 'accepted'";
            update_existing_run(db, sql, &[&id.as_str(), &Text(&view)], id)
        })
    }

    fn record_end(&self, id: RunId, view: String, spent: RunSpend) -> StoreFuture<'_, ()> {
        self.update_run(id, move |db, id| {
            let sql = "UPDATE runs SET state = 'ended', view = $2 WHERE id = $1 AND state <> 'steered'";
            journal::delete_journal(db, id)?;
            spend::count_run_spend(db, id, &spent)?;
            let view = amendments::merge_stored_amendments(db, id, &view)?;
            update_existing_run(db, sql, &[&id.as_str(), &Text(&view)], id)
        })
    }

    fn record_steered(&self, id: RunId, into: RunId) -> StoreFuture<'_, ()> {
        self.update_run(id, move |db, id| {
            let sql = "UPDATE runs SET state = 'steered', steered_into = $2 WHERE id = $1 AND state = 'accepted'";
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
        self.read_snapshot(move |db| query_run(db, &id))
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
            db.query(sql, &[])?.iter().map(run_from_row).collect()
        })
    }

    fn delete_receipts_before(&self, before: String) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| db.execute("DELETE FROM receipts WHERE deleted_at < $1", &[&before]).map(drop))
    }

    fn delete_oldest_receipts(&self, limit: u32) -> StoreFuture<'_, usize> {
        self.write_relaxed(move |db| {
            let sql = "DELETE FROM receipts WHERE run IN (SELECT run FROM receipts ORDER BY deleted_at LIMIT $1)";
            db.execute(sql, &[&i64::from(limit)]).map(to_count)
        })
    }

    fn delete_runs_of_agent_before(&self, agent: AgentId, before: String) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let values: Values<'_> = &[&agent.as_str(), &before];
            let sql = "UPDATE sessions SET turns = turns - (
                           SELECT count(*) FROM history JOIN runs ON runs.id = history.run
                           WHERE runs.session = sessions.key AND runs.agent = $1 AND runs.accepted_at < $2
                               AND runs.state = 'ended')
                       WHERE key IN (SELECT session FROM runs WHERE agent = $1 AND accepted_at < $2)";
            db.execute(sql, values)?;
            db.execute("DELETE FROM runs WHERE agent = $1 AND accepted_at < $2 AND state = 'ended'", values).map(drop)
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

impl PostgresStore {
    /// Runs an update that returns whether the run exists.
    fn update_run<F>(&self, id: RunId, mut update: F) -> StoreFuture<'_, ()>
    where
        F: FnMut(&PgConnection, &RunId) -> Result<bool, StoreError> + Send + 'static,
    {
        Box::pin(async move {
            let run = id.clone();
            let known = self.write(move |db| update(db, &run)).await?;
            if known { Ok(()) } else { Err(StoreError::NoSuchRun(id)) }
        })
    }
}

/// A number of changed rows.
pub(super) fn to_count(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX)
}

fn seal_run(db: &PgConnection, sealed: &SealedRun) -> Result<(), StoreError> {
    let SealedRun { session, run, turn, view, spent } = sealed;
    let is_open = "SELECT 1 FROM runs WHERE id = $1 AND state IN ('accepted', 'started') FOR UPDATE";
    if !db.exists(is_open, &[&run.as_str()])? {
        return Ok(());
    }
    if let Some(turn) = turn {
        history::insert_turn(db, session, run, turn, view)?;
    }
    let sql = "UPDATE runs SET state = 'ended', view = $2 WHERE id = $1";
    db.execute(sql, &[&run.as_str(), &Text(view)])?;
    spend::count_run_spend(db, run, spent)?;
    journal::delete_journal(db, run)
}

pub(super) fn insert_accepted_run(db: &PgConnection, row: &RunRow) -> Result<AcceptRunOutcome, StoreError> {
    if let Some(existing) = query_receipt(db, &row.id)? {
        // The session was deleted; the run's id stays in use.
        return Ok(AcceptRunOutcome::Existing(existing));
    }
    cluster::require_own_session(db, &row.session)?;
    if insert_run(db, row)? == 0 {
        let existing = query_run(db, &row.id)?.map(AcceptRunOutcome::Existing);
        return existing.ok_or_else(|| StoreError::Bug("a run that exists is not found".to_owned()));
    }
    sessions::record_use(db, &row.session, &row.agent, &row.principal, &row.accepted_at)?;
    Ok(AcceptRunOutcome::New)
}

/// Inserts the row of a run unless one with its id exists. Returns the number of inserted rows.
pub(super) fn insert_run(db: &PgConnection, row: &RunRow) -> Result<u64, StoreError> {
    let (state, into) = state_columns(&row.state);
    let sql = "INSERT INTO runs (id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING";
    db.execute(
        sql,
        &[
            &row.id.as_str(),
            &row.session.as_str(),
            &row.agent.as_str(),
            &row.principal.as_str(),
            &Text(&row.fingerprint),
            &state,
            &into,
            &row.accepted_at,
            &Text(&row.view),
        ],
    )
}

fn update_existing_run(db: &PgConnection, sql: &str, values: Values<'_>, id: &RunId) -> Result<bool, StoreError> {
    if db.execute(sql, values)? > 0 {
        return Ok(true);
    }
    db.exists("SELECT 1 FROM runs WHERE id = $1", &[&id.as_str()])
}

fn query_run(db: &PgConnection, id: &RunId) -> Result<Option<RunRow>, StoreError> {
    if let Some(receipt) = query_receipt(db, id)? {
        return Ok(Some(receipt));
    }
    let sql = concat!(select!(), " WHERE id = $1");
    db.query_optional(sql, &[&id.as_str()])?.as_ref().map(run_from_row).transpose()
}

/// Finds the receipt of a run whose session was deleted. It takes precedence over an imported run with the same id.
fn query_receipt(db: &PgConnection, id: &RunId) -> Result<Option<RunRow>, StoreError> {
    let sql = "SELECT run, session, agent, principal, fingerprint, 'ended', NULL::text, accepted_at, view
               FROM receipts WHERE run = $1";
    db.query_optional(sql, &[&id.as_str()])?.as_ref().map(run_from_row).transpose()
}

fn query_runs(db: &PgConnection, filter: &RunListFilter, before: i64) -> Result<Vec<(i64, RunRow)>, StoreError> {
    let limit = limit_plus_one(filter.limit);
    let session = filter.session.as_ref().map(SessionKey::as_str);
    let principal = filter.principal.as_ref().map(Principal::as_str);
    let visible_to = filter.visible_to.as_ref().map(Principal::as_str);
    let mut sql = String::from(concat!(select!(), " WHERE seq < $1"));
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&before, &limit];
    let conditions = [
        (&session, " AND session = $N"),
        (&principal, " AND principal = $N"),
        (&visible_to, " AND (principal = $N OR session IN (SELECT key FROM sessions WHERE owner = $N OR shared))"),
    ];
    for (value, condition) in conditions {
        if value.is_some() {
            values.push(value);
            sql.push_str(&condition.replace("$N", &format!("${}", values.len())));
        }
    }
    sql.push_str(" ORDER BY seq DESC LIMIT $2");
    db.query(&sql, &values)?.iter().map(|row| Ok((get(row, 9)?, run_from_row(row)?))).collect()
}

fn state_columns(state: &StoredRunState) -> (&'static str, Option<&str>) {
    match state {
        StoredRunState::Accepted => ("accepted", None),
        StoredRunState::Started => ("started", None),
        StoredRunState::Ended => ("ended", None),
        StoredRunState::Steered { into } => ("steered", Some(into.as_str())),
    }
}

pub(super) fn run_from_row(row: &Row) -> Result<RunRow, StoreError> {
    let (state, into): (String, Option<String>) = (get(row, 5)?, get(row, 6)?);
    let state = match (state.as_str(), into) {
        ("accepted", None) => StoredRunState::Accepted,
        ("started", None) => StoredRunState::Started,
        ("ended", None) => StoredRunState::Ended,
        ("steered", Some(into)) => StoredRunState::Steered { into: RunId::parse(into).map_err(invalid_column)? },
        (other, _) => return Err(invalid_column(format!("{other} is not the state of a run"))),
    };
    Ok(RunRow {
        id: parse_id(row, 0, RunId::parse)?,
        session: parse_id(row, 1, SessionKey::parse)?,
        agent: parse_id(row, 2, AgentId::parse)?,
        principal: parse_id(row, 3, Principal::parse)?,
        fingerprint: text(row, 4)?,
        state,
        accepted_at: get(row, 7)?,
        view: text(row, 8)?,
    })
}
