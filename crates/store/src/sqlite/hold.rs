//! The hold on new runs. It survives a restart.

use quell_protocol::Principal;
use quell_protocol::api::Hold;
use rusqlite::{Connection, OptionalExtension, params};

use super::columns::invalid_column;

pub(super) fn write_hold(db: &Connection, hold: &Hold) -> rusqlite::Result<()> {
    let by = hold.by.as_ref().map(Principal::as_str);
    db.prepare_cached("REPLACE INTO hold (only, held, reason, since, set_by) VALUES (1, ?1, ?2, ?3, ?4)")?
        .execute(params![hold.held, hold.reason, hold.since, by])
        .map(drop)
}

pub(super) fn read_hold(db: &Connection) -> rusqlite::Result<Hold> {
    let mut statement = db.prepare_cached("SELECT held, reason, since, set_by FROM hold")?;
    let hold = statement.query_row([], |row| {
        let by: Option<String> = row.get(3)?;
        let by = by.map(Principal::parse).transpose().map_err(|error| invalid_column(3, error))?;
        Ok(Hold { held: row.get(0)?, reason: row.get(1)?, since: row.get(2)?, by })
    });
    Ok(hold.optional()?.unwrap_or_default())
}
