//! The list of who did what. Entries are only ever added at its end, and only ever forgotten at its beginning.

use quell_protocol::audit::{Action, AuditRow};
use quell_protocol::{Principal, Surface};
use rusqlite::{Connection, Row, params};

use super::runs::{id, unfit};
use super::{Store, StoreError};

/// Entries that are forgotten in one transaction.
const AT_A_TIME: i64 = 1000;

/// An entry before it has its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// RFC 3339.
    pub at: String,
    /// Who.
    pub principal: Principal,
    /// Through which door.
    pub surface: Surface,
    /// From where, as far as it is known.
    pub from: Option<String>,
    /// What.
    pub action: Action,
    /// To what.
    pub target: Option<String>,
    /// More about it, for people.
    pub detail: Option<String>,
}

impl Store {
    /// Adds entries to the end of the list, in their order. Durable when it answers.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written; then none was.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write(move |db| entries.iter().try_for_each(|entry| append(db, entry))).await
    }

    /// At most `limit` entries behind number `after`, the oldest first, and whether there are more.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn audit(&self, after: u64, limit: usize) -> Result<(Vec<AuditRow>, bool), StoreError> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let ask_for = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut rows: Vec<AuditRow> = self
            .read(move |db| {
                let sql = "SELECT seq, at, principal, surface, origin, action, target, detail FROM audit
                           WHERE seq > ?1 ORDER BY seq LIMIT ?2";
                db.prepare_cached(sql)?.query_map([after, ask_for], audit_row)?.collect()
            })
            .await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// Forgets entries from before `time`, RFC 3339, from the beginning of the list on. Answers how many; it is done in small
    /// transactions, so that other writes are not held up.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be written.
    ///
    /// # Cancel safety
    /// Safe: dropped, it has forgotten some and not others.
    pub async fn forget_audit(&self, time: String) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        loop {
            let time = time.clone();
            let gone = self.write(move |db| forget(db, &time)).await?;
            forgotten += gone;
            if i64::try_from(gone) != Ok(AT_A_TIME) {
                return Ok(forgotten);
            }
        }
    }
}

pub(super) fn append(db: &Connection, entry: &AuditEntry) -> rusqlite::Result<()> {
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

/// Looks at the oldest only: a wall clock that was set back does not make it read the whole list.
fn forget(db: &Connection, time: &str) -> rusqlite::Result<u64> {
    let sql = "DELETE FROM audit WHERE at < ?1 AND seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?2)";
    db.prepare_cached(sql)?.execute(params![time, AT_A_TIME]).map(|gone| gone as u64)
}

fn audit_row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    let surface: String = row.get(3)?;
    let surface = serde_json::from_value(surface.into()).map_err(|error| unfit(3, error))?;
    Ok(AuditRow {
        seq: u64::try_from(row.get::<_, i64>(0)?).map_err(|error| unfit(0, error))?,
        at: row.get(1)?,
        principal: id(row, 2, Principal::parse)?,
        surface,
        from: row.get(4)?,
        action: row.get(5)?,
        target: row.get(6)?,
        detail: row.get(7)?,
    })
}
