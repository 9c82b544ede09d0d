//! The hold on new runs. It survives a restart.

use quell_protocol::Principal;
use quell_protocol::api::Hold;
use rusqlite::{Connection, OptionalExtension, params};

use super::columns::{invalid_column, to_unsigned};

pub(super) fn write_hold(db: &Connection, hold: &Hold, after: Option<u64>) -> rusqlite::Result<Option<u64>> {
    let sql = "INSERT INTO hold (only, held, reason, since, set_by) VALUES (1, ?1, ?2, ?3, ?4)
               ON CONFLICT (only) DO UPDATE SET
                   held = excluded.held, reason = excluded.reason, since = excluded.since, set_by = excluded.set_by,
                   revision = hold.revision + 1
               WHERE ?5 IS NULL OR hold.revision = ?5
               RETURNING revision";
    let by = hold.by.as_ref().map(Principal::as_str);
    let mut statement = db.prepare_cached(sql)?;
    let after = after.map(|after| i64::try_from(after).unwrap_or(i64::MAX));
    let revision = statement.query_row(params![hold.held, hold.reason, hold.since, by, after], |row| row.get(0));
    Ok(revision.optional()?.map(to_unsigned))
}

pub(super) fn read_hold(db: &Connection) -> rusqlite::Result<Hold> {
    let mut statement = db.prepare_cached("SELECT held, reason, since, set_by, revision FROM hold")?;
    let hold = statement.query_row([], |row| {
        let by: Option<String> = row.get(3)?;
        let by = by.map(Principal::parse).transpose().map_err(|error| invalid_column(3, error))?;
        let (reason, since, revision) = (row.get(1)?, row.get(2)?, to_unsigned(row.get(4)?));
        Ok(Hold { held: row.get(0)?, reason, since, by, revision, unstored: false })
    });
    Ok(hold.optional()?.unwrap_or_default())
}
