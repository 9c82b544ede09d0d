//! Amendments of a stored receipt: added after the end of a run was stored, and kept when the end is stored again.

use quell_protocol::{Amendment, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, params};

use super::columns::{invalid_column, parse_id_column};
use crate::amendments;

/// Returns `None` when the run is not stored as ended or has no receipt.
pub(super) fn add_amendment(
    db: &Connection,
    run: &RunId,
    amendment: Amendment,
) -> rusqlite::Result<Option<(SessionKey, Amendment)>> {
    let mut select = db.prepare_cached("SELECT session, view FROM runs WHERE id = ?1 AND state = 'ended'")?;
    let row = |row: &rusqlite::Row<'_>| Ok((parse_id_column(row, 0, SessionKey::parse)?, row.get::<_, String>(1)?));
    let Some((session, view)) = select.query_row([run.as_str()], row).optional()? else { return Ok(None) };
    let amended = amendments::add_amendment(&view, amendment).map_err(|problem| invalid_column(1, problem))?;
    let Some((view, amendment)) = amended else { return Ok(None) };
    db.prepare_cached("UPDATE runs SET view = ?2 WHERE id = ?1")?.execute(params![run.as_str(), view])?;
    Ok(Some((session, amendment)))
}

/// Merges into a view the amendments that only its stored version has.
pub(super) fn merge_stored_amendments(db: &Connection, run: &RunId, view: &str) -> rusqlite::Result<String> {
    let mut select = db.prepare_cached("SELECT view FROM runs WHERE id = ?1 AND state = 'ended'")?;
    let stored: Option<String> = select.query_row([run.as_str()], |row| row.get(0)).optional()?;
    let Some(stored) = stored else { return Ok(view.to_owned()) };
    amendments::merge_amendments(&stored, view).map_err(|problem| invalid_column(1, problem))
}
