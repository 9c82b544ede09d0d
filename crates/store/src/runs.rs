//! Runs: insert once per id, record state changes, list.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::cursor::{PagedList, limit_plus_one};
use super::{
    AcceptRunOutcome, RunListFilter, RunRow, RunSpend, Store, StoreError, StoredRunState, amendments, journal,
    sessions, spend,
};

/// The columns that [`run_from_row`] reads. A macro, because `concat!` needs a literal.
macro_rules! select {
    () => {
        "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view, seq FROM runs"
    };
}
impl Store {
    /// Inserts an accepted run, and creates its session or records its use, unless a run with this id exists. Durable
    /// when it returns.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then the run does not exist.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn accept_run(&self, row: RunRow) -> Result<AcceptRunOutcome, StoreError> {
        self.write(move |db| insert_accepted_run(db, &row)).await
    }

    /// Records that an accepted run has started. Changes nothing if the run is in a later state.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`] when there is no such run.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn record_run_start(&self, id: RunId, view: String) -> Result<(), StoreError> {
        let run = id.clone();
        let known = self.write(move |db| {
            let sql = "UPDATE runs SET state = 'started', view = ?2 WHERE id = ?1 AND state = 'accepted'";
            update_existing_run(db, sql, &[&id.as_str(), &view], &id)
        });
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
    }

    /// Records the end of a run with its last view, and counts its tokens. Can be called again to amend both. A
    /// steered run is not changed. The tokens count even if the run was deleted.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`] when there is no such run.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn record_run_end(&self, id: RunId, view: String, spent: RunSpend) -> Result<(), StoreError> {
        let run = id.clone();
        let known = self.write(move |db| {
            let sql = "UPDATE runs SET state = 'ended', view = ?2 WHERE id = ?1 AND state <> 'steered'";
            journal::delete_journal(db, &id)?;
            spend::count_run_spend(db, &id, &spent)?;
            let view = amendments::merge_stored_amendments(db, &id, &view)?;
            update_existing_run(db, sql, &[&id.as_str(), &view], &id)
        });
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
    }

    /// Records that another run took the text of an accepted run. Changes nothing if the run is in a later state.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`] when there is no such run.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn record_run_steered(&self, id: RunId, into: RunId) -> Result<(), StoreError> {
        let run = id.clone();
        let known = self.write(move |db| {
            let sql = "UPDATE runs SET state = 'steered', steered_into = ?2 WHERE id = ?1 AND state = 'accepted'";
            update_existing_run(db, sql, &[&id.as_str(), &into.as_str()], &id)
        });
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
    }

    /// Finds a run, or the receipt of a run whose session was deleted.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn find_run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        self.read(move |db| query_run(db, &id)).await
    }

    /// Lists runs, newest first, and the cursor of the next page.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_runs(&self, filter: RunListFilter) -> Result<(Vec<RunRow>, Option<String>), StoreError> {
        let before = PagedList::Runs.parse_cursor(filter.cursor.as_deref())?;
        let limit = filter.limit;
        let rows = self.read(move |db| query_runs(db, &filter, before)).await?;
        Ok(PagedList::Runs.split_page(rows, limit))
    }

    /// Lists the runs that have not ended, oldest first. When a daemon starts, these are the runs that the previous
    /// one left.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_open_runs(&self) -> Result<Vec<RunRow>, StoreError> {
        self.read(|db| {
            let sql = concat!(select!(), " WHERE state IN ('accepted', 'started') ORDER BY seq");
            db.prepare_cached(sql)?.query_map([], run_from_row)?.collect()
        })
        .await
    }
}

fn insert_accepted_run(db: &Connection, row: &RunRow) -> rusqlite::Result<AcceptRunOutcome> {
    if let Some(existing) = query_receipt(db, &row.id)? {
        // The session was deleted; the run's id stays in use.
        return Ok(AcceptRunOutcome::Existing(existing));
    }
    let inserted = insert_run(db, row)?;
    if inserted == 0 {
        return query_run(db, &row.id)?.map(AcceptRunOutcome::Existing).ok_or(rusqlite::Error::QueryReturnedNoRows);
    }
    sessions::record_session_use(db, (&row.session, &row.agent), &row.principal, &row.accepted_at)?;
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

/// Parses the id in a column.
pub(super) fn parse_id_column<T, E>(
    row: &Row<'_>,
    at: usize,
    parse: impl Fn(String) -> Result<T, E>,
) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    parse(row.get(at)?).map_err(|error| invalid_column(at, error))
}

/// The error for a value that this store would not have written.
pub(super) fn invalid_column(
    at: usize,
    problem: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, problem.into())
}
