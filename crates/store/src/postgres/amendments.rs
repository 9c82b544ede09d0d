//! Amendments of a stored receipt: added after the end of a run was stored, and kept when the end is stored again.

use quell_protocol::{Amendment, RunId, SessionKey};

use super::columns::{Text, invalid_column, parse_id, text};
use super::connection::PgConnection;
use crate::{StoreError, amendments};

/// Returns `None` when the run is not stored as ended or has no receipt.
pub(super) fn add_amendment(
    db: &PgConnection,
    run: &RunId,
    amendment: Amendment,
) -> Result<Option<(SessionKey, Amendment)>, StoreError> {
    let sql = "SELECT session, view FROM runs WHERE id = $1 AND state = 'ended' FOR UPDATE";
    let Some(row) = db.query_optional(sql, &[&run.as_str()])? else { return Ok(None) };
    let (session, view) = (parse_id(&row, 0, SessionKey::parse)?, text(&row, 1)?);
    let amended = amendments::add_amendment(&view, amendment).map_err(invalid_column)?;
    let Some((view, amendment)) = amended else { return Ok(None) };
    db.execute("UPDATE runs SET view = $2 WHERE id = $1", &[&run.as_str(), &Text(&view)])?;
    Ok(Some((session, amendment)))
}

/// Merges into a view the amendments that only its stored version has.
pub(super) fn merge_stored_amendments(db: &PgConnection, run: &RunId, view: &str) -> Result<String, StoreError> {
    let sql = "SELECT view FROM runs WHERE id = $1 AND state = 'ended' FOR UPDATE";
    let Some(row) = db.query_optional(sql, &[&run.as_str()])? else { return Ok(view.to_owned()) };
    amendments::merge_amendments(&text(&row, 0)?, view).map_err(invalid_column)
}
