//! Runs: accepted once per id, then only ever forward to their end.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::cursor::{Listing, ask_for};
use super::{
    AcceptedRow, RunFilter, RunRow, Spent, Store, StoreError, StoredState, amendments, journal, sessions, spend,
};

/// The columns that [`run_row`] reads, a macro so that `concat!` takes it.
macro_rules! select {
    () => {
        "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view, seq FROM runs"
    };
}
impl Store {
    /// Takes a run into the database, and makes or touches its session, unless a run of that id is there. Durable before
    /// it answers.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then the run does not exist.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says: handed over, the run is written whether or not the caller waits.
    pub async fn accept_run(&self, row: RunRow) -> Result<AcceptedRow, StoreError> {
        self.write(move |db| accept(db, &row)).await
    }

    /// Notes that an accepted run has started. On a run that is further along it changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] when there is no such run or it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn start_run(&self, id: RunId, view: String) -> Result<(), StoreError> {
        let run = id.clone();
        let known = self.write(move |db| {
            let sql = "UPDATE runs SET state = 'started', view = ?2 WHERE id = ?1 AND state = 'accepted'";
            changed_or_known(db, sql, &[&id.as_str(), &view], &id)
        });
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
    }

    /// Notes that a run is over, with its last view, and counts what it has used; again to amend both. A steered run stays what
    /// it is. What was used counts also for a run that was deleted.
    ///
    /// # Errors
    /// [`StoreError`] when there is no such run or it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn end_run(&self, id: RunId, view: String, spent: Spent) -> Result<(), StoreError> {
        let run = id.clone();
        let known = self.write(move |db| {
            let sql = "UPDATE runs SET state = 'ended', view = ?2 WHERE id = ?1 AND state <> 'steered'";
            journal::forget(db, &id)?;
            spend::count(db, &id, &spent)?;
            let view = amendments::with_stored(db, &id, &view)?;
            changed_or_known(db, sql, &[&id.as_str(), &view], &id)
        });
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
    }

    /// Notes that another run took the text of an accepted one. On a run that is further along it changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] when there is no such run or it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn steered(&self, id: RunId, into: RunId) -> Result<(), StoreError> {
        let run = id.clone();
        let known = self.write(move |db| {
            let sql = "UPDATE runs SET state = 'steered', steered_into = ?2 WHERE id = ?1 AND state = 'accepted'";
            changed_or_known(db, sql, &[&id.as_str(), &into.as_str()], &id)
        });
        if known.await? { Ok(()) } else { Err(StoreError::NoSuchRun(run)) }
    }

    /// A run.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        self.read(move |db| find(db, &id)).await
    }

    /// Runs, newest first, and the cursor of the next page.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read, or the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn runs(&self, filter: RunFilter) -> Result<(Vec<RunRow>, Option<String>), StoreError> {
        let before = Listing::Runs.before(filter.cursor.as_deref())?;
        let limit = filter.limit;
        let rows = self.read(move |db| list(db, &filter, before)).await?;
        Ok(Listing::Runs.page(rows, limit))
    }

    /// Runs that are accepted or started and not over, oldest first. At the start of a daemon: what the last one left.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn open_runs(&self) -> Result<Vec<RunRow>, StoreError> {
        self.read(|db| {
            let sql = concat!(select!(), " WHERE state IN ('accepted', 'started') ORDER BY seq");
            db.prepare_cached(sql)?.query_map([], run_row)?.collect()
        })
        .await
    }
}

fn accept(db: &Connection, row: &RunRow) -> rusqlite::Result<AcceptedRow> {
    if let Some(over) = receipt(db, &row.id)? {
        // Its session was deleted; its id stays taken.
        return Ok(AcceptedRow::Existing(over));
    }
    let inserted = insert(db, row)?;
    if inserted == 0 {
        return find(db, &row.id)?.map(AcceptedRow::Existing).ok_or(rusqlite::Error::QueryReturnedNoRows);
    }
    sessions::used(db, (&row.session, &row.agent), &row.principal, &row.accepted_at)?;
    Ok(AcceptedRow::New)
}

/// Writes the row of a run unless there is one of its id; answers how many were written.
pub(super) fn insert(db: &Connection, row: &RunRow) -> rusqlite::Result<usize> {
    let (state, into) = words(&row.state);
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

fn changed_or_known(db: &Connection, sql: &str, values: &[&dyn ToSql], id: &RunId) -> rusqlite::Result<bool> {
    let changed = db.prepare_cached(sql)?.execute(values)?;
    if changed > 0 {
        return Ok(true);
    }
    db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([id.as_str()])
}

fn find(db: &Connection, id: &RunId) -> rusqlite::Result<Option<RunRow>> {
    let sql = concat!(select!(), " WHERE id = ?1");
    if let Some(kept) = receipt(db, id)? {
        return Ok(Some(kept));
    }
    db.prepare_cached(sql)?.query_row([id.as_str()], run_row).optional()
}

/// What is left of a run whose session was deleted. It is the truth of that run, also when an import brings one of the same id.
fn receipt(db: &Connection, id: &RunId) -> rusqlite::Result<Option<RunRow>> {
    let sql = "SELECT run, session, agent, principal, fingerprint, 'ended', NULL, accepted_at, view FROM receipts
               WHERE run = ?1";
    db.prepare_cached(sql)?.query_row([id.as_str()], run_row).optional()
}

fn list(db: &Connection, filter: &RunFilter, before: i64) -> rusqlite::Result<Vec<(i64, RunRow)>> {
    let limit = ask_for(filter.limit);
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
    db.prepare_cached(&sql)?.query_map(values.as_slice(), |row| Ok((row.get("seq")?, run_row(row)?)))?.collect()
}

fn words(state: &StoredState) -> (&'static str, Option<&str>) {
    match state {
        StoredState::Accepted => ("accepted", None),
        StoredState::Started => ("started", None),
        StoredState::Ended => ("ended", None),
        StoredState::Steered { into } => ("steered", Some(into.as_str())),
    }
}

pub(super) fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let into: Option<String> = row.get(6)?;
    let state: String = row.get(5)?;
    let state = match (state.as_str(), into) {
        ("accepted", None) => StoredState::Accepted,
        ("started", None) => StoredState::Started,
        ("ended", None) => StoredState::Ended,
        ("steered", Some(into)) => StoredState::Steered { into: RunId::parse(into).map_err(|bad| unfit(6, bad))? },
        (other, _) => return Err(unfit(5, format!("{other} is not the state of a run"))),
    };
    Ok(RunRow {
        id: id(row, 0, RunId::parse)?,
        session: id(row, 1, SessionKey::parse)?,
        agent: id(row, 2, AgentId::parse)?,
        principal: id(row, 3, Principal::parse)?,
        fingerprint: row.get(4)?,
        state,
        accepted_at: row.get(7)?,
        view: row.get(8)?,
    })
}

/// The id in a column, checked.
pub(super) fn id<T, E>(row: &Row<'_>, at: usize, parse: impl Fn(String) -> Result<T, E>) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    parse(row.get(at)?).map_err(|bad| unfit(at, bad))
}

/// A value that is not one of those that the store writes.
pub(super) fn unfit(
    at: usize,
    problem: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, problem.into())
}
