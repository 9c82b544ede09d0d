//! The hold on new runs. It survives a restart.

use quell_protocol::Principal;
use quell_protocol::api::Hold;

use super::columns::{Text, get, invalid_column, optional_text};
use super::connection::PgConnection;
use crate::StoreError;

pub(super) fn write_hold(db: &PgConnection, hold: &Hold) -> Result<(), StoreError> {
    let sql = "INSERT INTO hold (held, reason, since, set_by) VALUES ($1, $2, $3, $4)
               ON CONFLICT (only_row) DO UPDATE SET
                   held = excluded.held, reason = excluded.reason, since = excluded.since, set_by = excluded.set_by";
    let by = hold.by.as_ref().map(Principal::as_str);
    db.execute(sql, &[&hold.held, &hold.reason.as_deref().map(Text), &hold.since, &by]).map(drop)
}

pub(super) fn read_hold(db: &PgConnection) -> Result<Hold, StoreError> {
    let Some(row) = db.query_optional("SELECT held, reason, since, set_by FROM hold", &[])? else {
        return Ok(Hold::default());
    };
    let by: Option<String> = get(&row, 3)?;
    let by = by.map(Principal::parse).transpose().map_err(invalid_column)?;
    Ok(Hold { held: get(&row, 0)?, reason: optional_text(&row, 1)?, since: get(&row, 2)?, by })
}
