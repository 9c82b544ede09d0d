//! What is thrown away: sessions by the age of their last use, and the room that they leave.

use quell_protocol::SessionKey;
use rusqlite::{Connection, params};

use super::audit::append;
use super::runs::id;
use super::sessions::keep_receipts;
use super::{AuditEntry, Deleted, Store, StoreError};

/// A session that may be thrown away, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// Its key.
    pub key: SessionKey,
    /// RFC 3339: its last use, or when it was imported if that is later.
    pub used_at: String,
}

/// The later of a session's last use and its import.
macro_rules! used_at {
    () => {
        "max(last_used_at, ifnull(imported_at, ''))"
    };
}

impl Store {
    /// At most `limit` sessions without open runs, the oldest use first, behind `after`.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn idle_sessions(&self, after: Option<Idle>, limit: usize) -> Result<Vec<Idle>, StoreError> {
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
            let idle = |row: &rusqlite::Row<'_>| Ok(Idle { key: id(row, 0, SessionKey::parse)?, used_at: row.get(1)? });
            db.prepare_cached(sql)?.query_map(params![used, key, limit], idle)?.collect()
        })
        .await
    }

    /// How many sessions there are.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be counted.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn count_sessions(&self) -> Result<u64, StoreError> {
        self.read(|db| {
            db.prepare_cached("SELECT count(*) FROM sessions")?.query_row([], |row| row.get(0)).map(positive)
        })
        .await
    }

    /// Bytes of the pages that hold something. The file may be larger.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be counted.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn used_bytes(&self) -> Result<u64, StoreError> {
        self.read(|db| {
            let sql = "SELECT (page_count - freelist_count) * page_size
                       FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
            db.prepare_cached(sql)?.query_row([], |row| row.get(0)).map(positive)
        })
        .await
    }

    /// Deletes a session as [`Store::delete_session`] does, unless it was used since it was looked at, together with the entry
    /// that says so.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn retire_session(&self, idle: Idle, entry: AuditEntry) -> Result<Deleted, StoreError> {
        self.write(move |db| retire(db, &idle, &entry)).await
    }

    /// Pages that hold nothing.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be counted.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn free_pages(&self) -> Result<u64, StoreError> {
        self.read(|db| db.pragma_query_value(None, "freelist_count", |row| row.get(0)).map(positive)).await
    }

    /// Gives at most `pages` free pages back to the file system. Answers how many are left.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn give_back(&self, pages: u32) -> Result<u64, StoreError> {
        self.write_relaxed(move |db| {
            // One step of the statement gives back one page. None would mean all of them.
            let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({})", pages.max(1)))?;
            let mut steps = vacuum.query([])?;
            while steps.next()?.is_some() {}
            db.pragma_query_value(None, "freelist_count", |row| row.get(0)).map(positive)
        })
        .await
    }
}

impl Store {
    /// Throws away the receipts of sessions that were deleted before this moment, RFC 3339.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn forget_receipts(&self, before: String) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            db.prepare_cached("DELETE FROM receipts WHERE deleted_at < ?1")?.execute([&before]).map(drop)
        })
        .await
    }

    /// Throws away at most so many receipts of deleted sessions, the oldest first. Answers how many there were.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn forget_oldest_receipts(&self, most: u32) -> Result<usize, StoreError> {
        self.write_relaxed(move |db| {
            let sql = "DELETE FROM receipts WHERE run IN (SELECT run FROM receipts ORDER BY deleted_at LIMIT ?1)";
            db.prepare_cached(sql)?.execute([most])
        })
        .await
    }
}

fn retire(db: &Connection, idle: &Idle, entry: &AuditEntry) -> rusqlite::Result<Deleted> {
    let open = "SELECT id FROM runs WHERE session = ?1 AND state IN ('accepted', 'started')";
    let open = db
        .prepare_cached(open)?
        .query_map([idle.key.as_str()], |row| id(row, 0, quell_protocol::RunId::parse))?
        .collect::<Result<Vec<_>, _>>()?;
    if !open.is_empty() {
        return Ok(Deleted::InUse(open));
    }
    let sql = concat!("SELECT 1 FROM sessions WHERE key = ?1 AND ", used_at!(), " = ?2");
    if !db.prepare_cached(sql)?.exists([idle.key.as_str(), &idle.used_at])? {
        return Ok(Deleted::Unknown);
    }
    keep_receipts(db, &idle.key)?;
    // Turns and runs go with it by their foreign keys.
    db.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute([idle.key.as_str()])?;
    append(db, entry)?;
    Ok(Deleted::Yes)
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
