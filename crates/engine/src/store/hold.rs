//! The hold: whether new runs are refused, which survives a restart.

use quell_protocol::Principal;
use quell_protocol::api::Hold;
use rusqlite::{Connection, OptionalExtension, params};

use super::runs::unfit;
use super::{Store, StoreError};

impl Store {
    /// Sets or lifts the hold. Durable before it answers.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then the hold is as it was.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says: handed over, it is written whether or not the caller waits.
    pub async fn set_hold(&self, hold: &Hold) -> Result<(), StoreError> {
        let hold = hold.clone();
        self.write(move |db| {
            let by = hold.by.as_ref().map(Principal::as_str);
            db.prepare_cached("REPLACE INTO hold (only, held, reason, since, set_by) VALUES (1, ?1, ?2, ?3, ?4)")?
                .execute(params![hold.held, hold.reason, hold.since, by])
                .map(drop)
        })
        .await
    }

    /// The hold as it was set last; not held when it never was.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn hold(&self) -> Result<Hold, StoreError> {
        self.read(read_hold).await
    }
}

pub(super) fn read_hold(db: &Connection) -> rusqlite::Result<Hold> {
    let mut statement = db.prepare_cached("SELECT held, reason, since, set_by FROM hold")?;
    let hold = statement.query_row([], |row| {
        let by: Option<String> = row.get(3)?;
        let by = by.map(Principal::parse).transpose().map_err(|bad| unfit(3, bad))?;
        Ok(Hold { held: row.get(0)?, reason: row.get(1)?, since: row.get(2)?, by })
    });
    Ok(hold.optional()?.unwrap_or_default())
}
