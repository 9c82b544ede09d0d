//! The hold on new runs. It survives a restart.

use quell_protocol::Principal;
use quell_protocol::api::Hold;

use super::columns::{Text, get, invalid_column, optional_text, to_unsigned};
use super::connection::PgConnection;
use crate::StoreError;

pub(super) fn write_hold(db: &PgConnection, hold: &Hold, after: Option<u64>) -> Result<Option<u64>, StoreError> {
    let sql = "INSERT INTO hold (held, reason, since, set_by) VALUES ($1, $2, $3, $4)
               ON CONFLICT (only_row) DO UPDATE SET
                   held = excluded.held, reason = excluded.reason, since = excluded.since, set_by = excluded.set_by,
                   revision = hold.revision + 1
               WHERE $5::bigint IS NULL OR hold.revision = $5
               RETURNING revision";
    let by = hold.by.as_ref().map(Principal::as_str);
    let after = after.map(|after| i64::try_from(after).unwrap_or(i64::MAX));
    let row = db.query_optional(sql, &[&hold.held, &hold.reason.as_deref().map(Text), &hold.since, &by, &after])?;
    row.map(|row| get(&row, 0).map(to_unsigned)).transpose()
}

pub(super) fn read_hold(db: &PgConnection) -> Result<Hold, StoreError> {
    let Some(row) = db.query_optional("SELECT held, reason, since, set_by, revision FROM hold", &[])? else {
        return Ok(Hold::default());
    };
    let by: Option<String> = get(&row, 3)?;
    let by = by.map(Principal::parse).transpose().map_err(invalid_column)?;
    let revision = to_unsigned(get(&row, 4)?);
    Ok(Hold {
        held: get(&row, 0)?,
        reason: optional_text(&row, 1)?,
        since: get(&row, 2)?,
        by,
        revision,
        unstored: false,
    })
}
