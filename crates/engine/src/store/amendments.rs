//! What becomes known of a run after its end was stored: written into the receipt of its stored view.

use quell_protocol::receipt::line::wall_ms;
use quell_protocol::{Amendment, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

use super::runs::{id, unfit};
use super::{Store, StoreError};

impl Store {
    /// Adds an amendment to the receipt of a run that is over and stored. Answers it as it was written, with its milliseconds
    /// since the stop, and the session of the run. Durable before it answers.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`] when the run is not there or has no receipt; else when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn amend_run(&self, run: RunId, amendment: Amendment) -> Result<(SessionKey, Amendment), StoreError> {
        let of = run.clone();
        let amended = self.write(move |db| amend(db, &of, amendment.clone())).await?;
        amended.ok_or(StoreError::NoSuchRun(run))
    }
}

fn amend(db: &Connection, run: &RunId, mut amendment: Amendment) -> rusqlite::Result<Option<(SessionKey, Amendment)>> {
    let mut asked = db.prepare_cached("SELECT session, view FROM runs WHERE id = ?1 AND state = 'ended'")?;
    let row = |row: &rusqlite::Row<'_>| Ok((id(row, 0, SessionKey::parse)?, row.get::<_, String>(1)?));
    let Some((session, view)) = asked.query_row([run.as_str()], row).optional()? else { return Ok(None) };
    let mut view: Value = parsed(&view)?;
    let Some(receipt) = view.get_mut("receipt").and_then(Value::as_object_mut) else { return Ok(None) };
    let requested = receipt.get("requestedAt").and_then(|at| serde_json::from_value(at.clone()).ok());
    amendment.at.ms =
        requested.and_then(|at| wall_ms(&amendment.at).zip(wall_ms(&at))).map(|(now, requested)| now - requested);
    let line = serde_json::to_value(&amendment).map_err(|problem| unfit(1, problem))?;
    match receipt.get_mut("amendments").and_then(Value::as_array_mut) {
        Some(before) => before.push(line),
        // A receipt of a version that knew none.
        None => drop(receipt.insert("amendments".to_owned(), Value::Array(vec![line]))),
    }
    let mut written = db.prepare_cached("UPDATE runs SET view = ?2 WHERE id = ?1")?;
    written.execute(params![run.as_str(), view.to_string()])?;
    Ok(Some((session, amendment)))
}

/// The view of a run that is to be stored, with the amendments that its stored view has and it has not: they came when the
/// run was forgotten already.
pub(super) fn with_stored(db: &Connection, run: &RunId, view: &str) -> rusqlite::Result<String> {
    let mut asked = db.prepare_cached("SELECT view FROM runs WHERE id = ?1 AND state = 'ended'")?;
    let stored: Option<String> = asked.query_row([run.as_str()], |row| row.get(0)).optional()?;
    let of = |view: &Value| view.pointer("/receipt/amendments").and_then(Value::as_array).cloned().unwrap_or_default();
    let stored = stored.and_then(|stored| serde_json::from_str(&stored).ok()).map(|stored| of(&stored));
    let Some(stored) = stored.filter(|stored| !stored.is_empty()) else { return Ok(view.to_owned()) };
    let mut view: Value = parsed(view)?;
    let known = of(&view);
    if let Some(amendments) = view.pointer_mut("/receipt/amendments").and_then(Value::as_array_mut) {
        amendments.extend(stored.into_iter().filter(|amendment| !known.contains(amendment)));
    }
    Ok(view.to_string())
}

fn parsed(view: &str) -> rusqlite::Result<Value> {
    serde_json::from_str(view).map_err(|problem| unfit(1, problem))
}
