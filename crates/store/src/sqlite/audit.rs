//! The audit log.

use quell_protocol::Principal;
use quell_protocol::audit::{Action, AuditRow};
use rusqlite::{Connection, Row, params};

use super::SqliteStore;
use super::columns::{invalid_column, parse_id_column, to_limit};
use crate::{AuditEntry, AuditStore, StoreFuture};

/// Entries that are deleted in one transaction.
const DELETE_BATCH_ROWS: i64 = 1000;

impl AuditStore for SqliteStore {
    fn append(&self, entries: Vec<AuditEntry>) -> StoreFuture<'_, ()> {
        self.write(move |db| entries.iter().try_for_each(|entry| insert_audit_entry(db, entry)))
    }

    fn list(&self, after: u64, limit: usize) -> StoreFuture<'_, (Vec<AuditRow>, bool)> {
        self.read(move |db| {
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let sql = "SELECT seq, at, principal, surface, origin, action, target, detail FROM audit
                       WHERE seq > ?1 ORDER BY seq LIMIT ?2";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([after, to_limit(limit.saturating_add(1))], audit_row)?;
            let mut rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            let more = rows.len() > limit;
            rows.truncate(limit);
            Ok((rows, more))
        })
    }

    fn list_origins(&self, action: Action) -> StoreFuture<'_, Vec<(Principal, String)>> {
        self.read(move |db| {
            let sql = "SELECT DISTINCT principal, origin FROM audit WHERE action = ?1 AND origin IS NOT NULL
                       ORDER BY principal, origin";
            let row = |row: &Row<'_>| Ok((parse_id_column(row, 0, Principal::parse)?, row.get(1)?));
            db.prepare_cached(sql)?.query_map([action.as_str()], row)?.collect()
        })
    }

    fn delete_before(&self, time: String) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut total = 0;
            loop {
                let time = time.clone();
                let deleted = self.write(move |db| delete_oldest_entries(db, &time)).await?;
                total += deleted;
                if i64::try_from(deleted) != Ok(DELETE_BATCH_ROWS) {
                    return Ok(total);
                }
            }
        })
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
