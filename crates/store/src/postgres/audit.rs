//! The audit log.

use quell_protocol::Principal;
use quell_protocol::audit::{Action, AuditRow};
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{Text, get, invalid_column, optional_text, parse_id, text, to_limit, to_unsigned};
use super::connection::PgConnection;
use crate::{AuditEntry, AuditStore, StoreError, StoreFuture};

/// Entries that are deleted in one transaction.
const DELETE_BATCH_ROWS: i64 = 1000;

impl AuditStore for PostgresStore {
    fn append(&self, entries: Vec<AuditEntry>) -> StoreFuture<'_, ()> {
        self.write(move |db| entries.iter().try_for_each(|entry| insert_audit_entry(db, entry)))
    }

    fn list(&self, after: u64, limit: usize) -> StoreFuture<'_, (Vec<AuditRow>, bool)> {
        self.read(move |db| {
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let sql = "SELECT seq, at, principal, surface, origin, action, target, detail FROM audit
                       WHERE seq > $1 ORDER BY seq LIMIT $2";
            let rows = db.query(sql, &[&after, &to_limit(limit.saturating_add(1))])?;
            let mut rows = rows.iter().map(audit_row).collect::<Result<Vec<_>, _>>()?;
            let more = rows.len() > limit;
            rows.truncate(limit);
            Ok((rows, more))
        })
    }

    fn list_origins(&self, action: Action) -> StoreFuture<'_, Vec<(Principal, String)>> {
        self.read(move |db| {
            let sql = "SELECT DISTINCT principal, origin FROM audit WHERE action = $1 AND origin IS NOT NULL
                       ORDER BY principal, origin";
            let rows = db.query(sql, &[&action.as_str()])?;
            rows.iter().map(|row| Ok((parse_id(row, 0, Principal::parse)?, text(row, 1)?))).collect()
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

pub(super) fn insert_audit_entry(db: &PgConnection, entry: &AuditEntry) -> Result<(), StoreError> {
    let surface = serde_json::to_value(entry.surface).ok();
    let surface = surface.as_ref().and_then(serde_json::Value::as_str).unwrap_or("daemon");
    let [from, target, detail] = [&entry.from, &entry.target, &entry.detail].map(|value| value.as_deref().map(Text));
    let sql = "INSERT INTO audit (at, principal, surface, origin, action, target, detail)
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let (principal, action) = (entry.principal.as_str(), entry.action.as_str());
    db.execute(sql, &[&entry.at, &principal, &surface, &from, &action, &target, &detail]).map(drop)
}

/// Checks only the oldest entries, so that a wall clock that was set back does not cause a scan of the whole log.
fn delete_oldest_entries(db: &PgConnection, time: &str) -> Result<u64, StoreError> {
    let sql = "DELETE FROM audit WHERE at < $1 AND seq IN (SELECT seq FROM audit ORDER BY seq LIMIT $2)";
    db.execute(sql, &[&time, &DELETE_BATCH_ROWS])
}

fn audit_row(row: &Row) -> Result<AuditRow, StoreError> {
    let surface: String = get(row, 3)?;
    let surface = serde_json::from_value(surface.into()).map_err(invalid_column)?;
    Ok(AuditRow {
        seq: to_unsigned(get(row, 0)?),
        at: get(row, 1)?,
        principal: parse_id(row, 2, Principal::parse)?,
        surface,
        from: optional_text(row, 4)?,
        action: get(row, 5)?,
        target: optional_text(row, 6)?,
        detail: optional_text(row, 7)?,
    })
}
