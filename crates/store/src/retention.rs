//! Queries and deletions for retention: idle sessions, receipts, free pages.

use quell_protocol::SessionKey;
use rusqlite::{Connection, params};

use super::audit::insert_audit_entry;
use super::runs::parse_id_column;
use super::sessions::save_receipts;
use super::{AuditEntry, DeleteSessionOutcome, Store, StoreError};

/// A session that may be deleted, as read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleSession {
    pub key: SessionKey,
    /// RFC 3339: the last use, or the import if that is later.
    pub used_at: String,
}

/// The later of a session's last use and its import.
macro_rules! used_at {
    () => {
        "max(last_used_at, ifnull(imported_at, ''))"
    };
}

impl Store {
    /// Lists at most `limit` sessions without open runs that come after `after`, the least recently used first.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn idle_sessions(
        &self,
        after: Option<IdleSession>,
        limit: usize,
    ) -> Result<Vec<IdleSession>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read(move |db| {
            let sql = concat!(
                "SELECT key, ",
                used_at!(),
                " AS used FROM sessions
                  WHERE (used, key) > (?1, ?2)
                    AND key NOT IN (SELECT session FROM runs WHERE state IN ('accepted', 'started'))
                  ORDER BY used, key LIMIT ?3"
            );
            let (used, key) = after.as_ref().map_or(("", ""), |idle| (&idle.used_at, idle.key.as_str()));
            let idle = |row: &rusqlite::Row<'_>| {
                Ok(IdleSession { key: parse_id_column(row, 0, SessionKey::parse)?, used_at: row.get(1)? })
            };
            db.prepare_cached(sql)?.query_map(params![used, key, limit], idle)?.collect()
        })
        .await
    }

    /// # Cancel safety
    /// Safe: only reads.
    pub async fn count_sessions(&self) -> Result<u64, StoreError> {
        self.read(|db| {
            db.prepare_cached("SELECT count(*) FROM sessions")?.query_row([], |row| row.get(0)).map(to_unsigned)
        })
        .await
    }

    /// Bytes of the pages in use. The file may be larger.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn used_bytes(&self) -> Result<u64, StoreError> {
        self.read(|db| {
            let sql = "SELECT (page_count - freelist_count) * page_size
                       FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
            db.prepare_cached(sql)?.query_row([], |row| row.get(0)).map(to_unsigned)
        })
        .await
    }

    /// Deletes a session as [`Store::delete_session`] does, together with an audit entry, unless the session was used
    /// since it was listed.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_idle_session(
        &self,
        idle: IdleSession,
        entry: AuditEntry,
    ) -> Result<DeleteSessionOutcome, StoreError> {
        self.write(move |db| delete_if_still_idle(db, &idle, &entry)).await
    }

    /// Number of unused pages.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn count_free_pages(&self) -> Result<u64, StoreError> {
        self.read(|db| db.pragma_query_value(None, "freelist_count", |row| row.get(0)).map(to_unsigned)).await
    }

    /// Returns at most `pages` free pages to the file system. Returns how many free pages remain.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn release_free_pages(&self, pages: u32) -> Result<u64, StoreError> {
        self.write_relaxed(move |db| {
            // Each step of the statement frees one page. An argument of 0 would mean all pages.
            let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({})", pages.max(1)))?;
            let mut steps = vacuum.query([])?;
            while steps.next()?.is_some() {}
            db.pragma_query_value(None, "freelist_count", |row| row.get(0)).map(to_unsigned)
        })
        .await
    }
}

impl Store {
    /// Deletes the receipts of sessions that were deleted before this time, RFC 3339.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_receipts_before(&self, before: String) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM receipts WHERE deleted_at < ?1")?.execute([&before]).map(drop)
        })
        .await
    }

    /// Deletes at most `limit` receipts of deleted sessions, oldest first. Returns the number of deleted receipts.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_oldest_receipts(&self, limit: u32) -> Result<usize, StoreError> {
        self.write_relaxed(move |db| {
            let sql = "DELETE FROM receipts WHERE run IN (SELECT run FROM receipts ORDER BY deleted_at LIMIT ?1)";
            db.prepare_cached(sql)?.execute([limit])
        })
        .await
    }
}

fn delete_if_still_idle(
    db: &Connection,
    idle: &IdleSession,
    entry: &AuditEntry,
) -> rusqlite::Result<DeleteSessionOutcome> {
    let open = "SELECT id FROM runs WHERE session = ?1 AND state IN ('accepted', 'started')";
    let open = db
        .prepare_cached(open)?
        .query_map([idle.key.as_str()], |row| parse_id_column(row, 0, quell_protocol::RunId::parse))?
        .collect::<Result<Vec<_>, _>>()?;
    if !open.is_empty() {
        return Ok(DeleteSessionOutcome::InUse(open));
    }
    let sql = concat!("SELECT 1 FROM sessions WHERE key = ?1 AND ", used_at!(), " = ?2");
    if !db.prepare_cached(sql)?.exists([idle.key.as_str(), &idle.used_at])? {
        return Ok(DeleteSessionOutcome::Unknown);
    }
    save_receipts(db, &idle.key)?;
    // Turns and runs are deleted with it by their foreign keys.
    db.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute([idle.key.as_str()])?;
    insert_audit_entry(db, entry)?;
    Ok(DeleteSessionOutcome::Deleted)
}

fn to_unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
