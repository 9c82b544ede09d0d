//! Sessions: made by their first run, listed by their last one.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::cursor::{Listing, ask_for};
use super::runs::id;
use super::{PrivateEndpoints, SessionFilter, SessionSetup, SetUp, SetUpAccess, Store, StoreError, StoredSession};

/// The columns that [`session_row`] reads, a macro so that `concat!` takes it.
macro_rules! select {
    () => {
        "SELECT key, agent, created_at, last_used_at, turns, config, secrets, private_base_url, private_mcp_url, owner, imported_at,
         use_order FROM sessions"
    };
}

/// What came of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// The session is gone.
    Yes,
    /// There is no such session.
    Unknown,
    /// These runs of it are open; nothing was deleted.
    InUse(Vec<RunId>),
}

impl Store {
    /// A session.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn session(&self, key: SessionKey) -> Result<Option<StoredSession>, StoreError> {
        self.read(move |db| {
            let sql = concat!(select!(), " WHERE key = ?1");
            db.prepare_cached(sql)?.query_row([key.as_str()], session_row).optional()
        })
        .await
    }

    /// Sessions, the one used last first, and the cursor of the next page.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read, or the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn sessions(&self, filter: SessionFilter) -> Result<(Vec<StoredSession>, Option<String>), StoreError> {
        let before = Listing::Sessions.before(filter.cursor.as_deref())?;
        let limit = filter.limit;
        let rows = self.read(move |db| list(db, &filter, before)).await?;
        Ok(Listing::Sessions.page(rows, limit))
    }

    /// Makes a session without a message, or configures one that is there, which counts as a use. Durable before it answers.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then nothing has changed.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn set_up_session(&self, setup: SessionSetup) -> Result<SetUp, StoreError> {
        self.write(move |db| {
            let mut owner = db.prepare_cached("SELECT owner FROM sessions WHERE key = ?1")?;
            let owner: Option<Option<String>> = owner.query_row([setup.key.as_str()], |row| row.get(0)).optional()?;
            let known = owner.is_some();
            let is_own = owner.is_none_or(|owner| owner.as_deref() == Some(setup.by.as_str()));
            if setup.access == SetUpAccess::OwnerOnly && !is_own {
                return Ok(SetUp::NotYours);
            }
            used(db, (&setup.key, &setup.agent), &setup.by, &setup.at)?;
            db.prepare_cached(
                "UPDATE sessions SET agent = ?2, config = ?3, secrets = ?4, private_base_url = ?5, private_mcp_url = ?6
                 WHERE key = ?1",
            )?
            .execute(params![
                setup.key.as_str(),
                setup.agent.as_str(),
                setup.config,
                setup.secrets,
                setup.private.base_url,
                setup.private.mcp_url
            ])?;
            Ok(if known { SetUp::Known } else { SetUp::New })
        })
        .await
    }

    /// Notes when a session was used last, without a sync of its own. One that is not there, or was used later, stays as it is.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn touch_session(&self, key: SessionKey, at: String) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE sessions SET last_used_at = ?2 WHERE key = ?1 AND last_used_at < ?2";
            db.prepare_cached(sql)?.execute([key.as_str(), &at]).map(drop)
        })
        .await
    }

    /// Deletes a session with its turns and runs, of which the receipts stay, unless it has an open run that is none of those
    /// that are `over`.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn delete_session(&self, key: SessionKey, over: Vec<RunId>) -> Result<Deleted, StoreError> {
        self.write(move |db| {
            let mut open =
                db.prepare_cached("SELECT id FROM runs WHERE session = ?1 AND state IN ('accepted', 'started')")?;
            let mut open: Vec<RunId> =
                open.query_map([key.as_str()], |row| id(row, 0, RunId::parse))?.collect::<Result<_, _>>()?;
            open.retain(|run| !over.contains(run));
            if !open.is_empty() {
                return Ok(Deleted::InUse(open));
            }
            keep_receipts(db, &key)?;
            // Turns, runs and notes go with it by their foreign keys.
            let deleted = db.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute([key.as_str()])?;
            Ok(if deleted > 0 { Deleted::Yes } else { Deleted::Unknown })
        })
        .await
    }
}

/// What people may know of a run when its session is gone: its receipt, without the message and the answer. What was kept before
/// stays as it is, so that nobody imports and deletes another receipt in its place.
pub(super) fn keep_receipts(db: &Connection, key: &SessionKey) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO receipts (run, session, agent, principal, fingerprint, accepted_at, deleted_at, view)
         SELECT id, session, agent, principal, fingerprint, accepted_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
                json_set(json_remove(view, '$.output'), '$.text', '')
         FROM runs WHERE session = ?1 AND state = 'ended' AND json_valid(view)
         ON CONFLICT (run) DO NOTHING",
    )?
    .execute([key.as_str()])?;
    Ok(())
}

/// A session is used: it is made, by this principal, or becomes the first of the list. Its agent is its owner's to choose.
pub(super) fn used(
    db: &Connection,
    (key, agent): (&SessionKey, &AgentId),
    by: &Principal,
    at: &str,
) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO sessions (key, agent, created_at, last_used_at, use_order, owner)
         VALUES (?1, ?2, ?3, ?3, (SELECT ifnull(max(use_order), 0) + 1 FROM sessions), ?4)
         ON CONFLICT (key) DO UPDATE SET
             agent = CASE WHEN sessions.owner = excluded.owner THEN excluded.agent ELSE sessions.agent END,
             last_used_at = excluded.last_used_at, use_order = excluded.use_order",
    )?
    .execute(params![key.as_str(), agent.as_str(), at, by.as_str()])?;
    Ok(())
}

fn list(db: &Connection, filter: &SessionFilter, before: i64) -> rusqlite::Result<Vec<(i64, StoredSession)>> {
    let sql = concat!(
        select!(),
        " WHERE use_order < ?1 AND (instr(lower(key), lower(?2)) OR instr(lower(agent), lower(?2)))
          ORDER BY use_order DESC LIMIT ?3"
    );
    let search = filter.search.as_deref().unwrap_or_default();
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![before, search, ask_for(filter.limit)], |row| {
        Ok((row.get("use_order")?, session_row(row)?))
    })?;
    rows.collect()
}

pub(super) fn session_row(row: &Row<'_>) -> rusqlite::Result<StoredSession> {
    Ok(StoredSession {
        key: id(row, 0, SessionKey::parse)?,
        agent: id(row, 1, AgentId::parse)?,
        created_at: row.get(2)?,
        last_used_at: row.get(3)?,
        turns: u64::from(row.get::<_, u32>(4)?),
        config: row.get(5)?,
        secrets: row.get(6)?,
        private: PrivateEndpoints { base_url: row.get(7)?, mcp_url: row.get(8)? },
        owner: row.get::<_, Option<String>>(9)?.and_then(|owner| Principal::parse(owner).ok()),
        imported_at: row.get(10)?,
    })
}
