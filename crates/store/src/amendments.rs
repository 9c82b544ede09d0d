//! Amend the stored receipt of a run after its end was stored.

use quell_protocol::receipt::summary_line::unix_millis;
use quell_protocol::{Amendment, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

use super::runs::{invalid_column, parse_id_column};
use super::{Store, StoreError};

impl Store {
    /// Adds an amendment to the stored receipt of an ended run. Returns the session of the run, and the amendment as
    /// written: with its milliseconds since the stop. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`] when the run is not stored or has no receipt.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn amend_run(&self, run: RunId, amendment: Amendment) -> Result<(SessionKey, Amendment), StoreError> {
        let of = run.clone();
        let amended = self.write(move |db| add_amendment(db, &of, amendment.clone())).await?;
        amended.ok_or(StoreError::NoSuchRun(run))
    }
}

fn add_amendment(
    db: &Connection,
    run: &RunId,
    mut amendment: Amendment,
) -> rusqlite::Result<Option<(SessionKey, Amendment)>> {
    let mut select = db.prepare_cached("SELECT session, view FROM runs WHERE id = ?1 AND state = 'ended'")?;
    let row = |row: &rusqlite::Row<'_>| Ok((parse_id_column(row, 0, SessionKey::parse)?, row.get::<_, String>(1)?));
    let Some((session, view)) = select.query_row([run.as_str()], row).optional()? else { return Ok(None) };
    let mut view: Value = parse_view(&view)?;
    let Some(receipt) = view.get_mut("receipt").and_then(Value::as_object_mut) else { return Ok(None) };
    let requested = receipt.get("requestedAt").and_then(|at| serde_json::from_value(at.clone()).ok());
    amendment.at.ms = requested
        .and_then(|at| unix_millis(&amendment.at).zip(unix_millis(&at)))
        .map(|(now, requested)| now - requested);
    let line = serde_json::to_value(&amendment).map_err(|problem| invalid_column(1, problem))?;
    match receipt.get_mut("amendments").and_then(Value::as_array_mut) {
        Some(before) => before.push(line),
        // An older version wrote this receipt without the field.
        None => drop(receipt.insert("amendments".to_owned(), Value::Array(vec![line]))),
    }
    let mut update = db.prepare_cached("UPDATE runs SET view = ?2 WHERE id = ?1")?;
    update.execute(params![run.as_str(), view.to_string()])?;
    Ok(Some((session, amendment)))
}

/// Merges into a view the amendments that only its stored version has: they arrived when the run was already out of
/// memory.
pub(super) fn merge_stored_amendments(db: &Connection, run: &RunId, view: &str) -> rusqlite::Result<String> {
    let mut select = db.prepare_cached("SELECT view FROM runs WHERE id = ?1 AND state = 'ended'")?;
    let stored: Option<String> = select.query_row([run.as_str()], |row| row.get(0)).optional()?;
    let of = |view: &Value| view.pointer("/receipt/amendments").and_then(Value::as_array).cloned().unwrap_or_default();
    let stored = stored.and_then(|stored| serde_json::from_str(&stored).ok()).map(|stored| of(&stored));
    let Some(stored) = stored.filter(|stored| !stored.is_empty()) else { return Ok(view.to_owned()) };
    let mut view: Value = parse_view(view)?;
    let known = of(&view);
    if let Some(amendments) = view.pointer_mut("/receipt/amendments").and_then(Value::as_array_mut) {
        amendments.extend(stored.into_iter().filter(|amendment| !known.contains(amendment)));
    }
    Ok(view.to_string())
}

fn parse_view(view: &str) -> rusqlite::Result<Value> {
    serde_json::from_str(view).map_err(|problem| invalid_column(1, problem))
}
