//! The audit log: append, list, delete old entries.

use quell_protocol::audit::{Action, AuditRow};
use quell_protocol::{Principal, Surface};
use rusqlite::{Connection, Row, params};

use super::runs::{invalid_column, parse_id_column};
use super::{Store, StoreError};

/// Entries that are deleted in one transaction.
const DELETE_BATCH_ROWS: i64 = 1000;

/// An audit entry before it gets its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// RFC 3339.
    pub at: String,
    pub principal: Principal,
    pub surface: Surface,
    /// Origin of the request, as far as it is known.
    pub from: Option<String>,
    pub action: Action,
    pub target: Option<String>,
    pub detail: Option<String>,
}

impl Store {
    /// Appends entries to the log, in their order. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none is.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write(move |db| entries.iter().try_for_each(|entry| insert_audit_entry(db, entry))).await
    }

    /// Lists at most `limit` entries with a number above `after`, oldest first, and whether there are more.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_audit(&self, after: u64, limit: usize) -> Result<(Vec<AuditRow>, bool), StoreError> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let row_limit = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut rows: Vec<AuditRow> = self
            .read(move |db| {
                let sql = "SELECT seq, at, principal, surface, origin, action, target, detail FROM audit
                           WHERE seq > ?1 ORDER BY seq LIMIT ?2";
                db.prepare_cached(sql)?.query_map([after, row_limit], audit_row)?.collect()
            })
            .await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// Deletes entries from before `time`, RFC 3339, from the oldest on. Returns their number. Works in small
    /// transactions, so that other writes are not delayed.
    ///
    /// # Cancel safety
    /// Safe: when dropped, some entries are deleted and others are not.
    pub async fn delete_audit_before(&self, time: String) -> Result<u64, StoreError> {
        let mut total = 0;
        loop {
            let time = time.clone();
            let deleted = self.write(move |db| delete_oldest_entries(db, &time)).await?;
            total += deleted;
            if i64::try_from(deleted) != Ok(DELETE_BATCH_ROWS) {
                return Ok(total);
            }
        }
    }
}

pub(super) fn insert_audit_entry(db: &Connection, entry: &AuditEntry) -> rusqlite::Result<()> {
    let surface = serde_json::to_value(entry.surface).ok();
    db.prepare_cached(
        "INSERT INTO audit (at, principal, surface, origin, action, target, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        entry.at,
        entry.principal.as_str(),
        surface.as_ref().and_then(serde_json::Value::as_str).unwrap_or("daemon"),
        entry.from,
        entry.action.as_str(),
        entry.target,
        entry.detail
    ])?;
    Ok(())
}

/// Checks only the oldest entries, so that a wall clock that was set back does not cause a scan of the whole log.
fn delete_oldest_entries(db: &Connection, time: &str) -> rusqlite::Result<u64> {
    let sql = "DELETE FROM audit WHERE at < ?1 AND seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?2)";
    db.prepare_cached(sql)?.execute(params![time, DELETE_BATCH_ROWS]).map(|deleted| deleted as u64)
}

fn audit_row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    let surface: String = row.get(3)?;
    let surface = serde_json::from_value(surface.into()).map_err(|error| invalid_column(3, error))?;
    Ok(AuditRow {
        seq: u64::try_from(row.get::<_, i64>(0)?).map_err(|error| invalid_column(0, error))?,
        at: row.get(1)?,
        principal: parse_id_column(row, 2, Principal::parse)?,
        surface,
        from: row.get(4)?,
        action: row.get(5)?,
        target: row.get(6)?,
        detail: row.get(7)?,
    })
}
