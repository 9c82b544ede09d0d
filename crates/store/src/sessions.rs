//! Sessions: record use, configure, list, delete.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::cursor::{PagedList, limit_plus_one};
use super::runs::parse_id_column;
use super::{
    PrivateEndpoints, SessionListFilter, SessionSetup, SessionSetupAccess, SessionSetupOutcome, Store, StoreError,
    StoredSession,
};

/// The columns that [`session_from_row`] reads. A macro, because `concat!` needs a literal.
macro_rules! select {
    () => {
        "SELECT key, agent, created_at, last_used_at, turns, config, secrets, private_base_url, private_mcp_url, owner, imported_at,
         use_order FROM sessions"
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteSessionOutcome {
    Deleted,
    Unknown,
    /// The session has these open runs; nothing was deleted.
    InUse(Vec<RunId>),
}

impl Store {
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn find_session(&self, key: SessionKey) -> Result<Option<StoredSession>, StoreError> {
        self.read(move |db| {
            let sql = concat!(select!(), " WHERE key = ?1");
            db.prepare_cached(sql)?.query_row([key.as_str()], session_from_row).optional()
        })
        .await
    }

    /// Lists sessions, the most recently used first, and the cursor of the next page.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_sessions(
        &self,
        filter: SessionListFilter,
    ) -> Result<(Vec<StoredSession>, Option<String>), StoreError> {
        let before = PagedList::Sessions.parse_cursor(filter.cursor.as_deref())?;
        let limit = filter.limit;
        let rows = self.read(move |db| query_sessions(db, &filter, before)).await?;
        Ok(PagedList::Sessions.split_page(rows, limit))
    }

    /// Creates a session without a message, or configures an existing one, which counts as a use. Durable when it
    /// returns.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then nothing is changed.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn set_up_session(&self, setup: SessionSetup) -> Result<SessionSetupOutcome, StoreError> {
        self.write(move |db| {
            let mut owner = db.prepare_cached("SELECT owner FROM sessions WHERE key = ?1")?;
            let owner: Option<Option<String>> = owner.query_row([setup.key.as_str()], |row| row.get(0)).optional()?;
            let known = owner.is_some();
            let is_own = owner.is_none_or(|owner| owner.as_deref() == Some(setup.requested_by.as_str()));
            if setup.access == SessionSetupAccess::OwnerOnly && !is_own {
                return Ok(SessionSetupOutcome::NotOwner);
            }
            record_session_use(db, (&setup.key, &setup.agent), &setup.requested_by, &setup.at)?;
            db.prepare_cached(
                "UPDATE sessions SET agent = ?2, config = ?3, secrets = ?4, private_base_url = ?5, private_mcp_url = ?6
                 WHERE key = ?1",
            )?
            .execute(params![
                setup.key.as_str(),
                setup.agent.as_str(),
                setup.config,
                setup.secrets,
                setup.private_endpoints.base_url,
                setup.private_endpoints.mcp_url
            ])?;
            Ok(if known { SessionSetupOutcome::Updated } else { SessionSetupOutcome::New })
        })
        .await
    }

    /// Records the last use of a session without waiting for a sync of the disk. Changes nothing if the session does
    /// not exist or has a later use.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn touch_session(&self, key: SessionKey, at: String) -> Result<(), StoreError> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE sessions SET last_used_at = ?2 WHERE key = ?1 AND last_used_at < ?2";
            db.prepare_cached(sql)?.execute([key.as_str(), &at]).map(drop)
        })
        .await
    }

    /// Deletes a session with its turns and runs, and keeps the receipts. Refused while it has an open run that is
    /// not among `ended`.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_session(&self, key: SessionKey, ended: Vec<RunId>) -> Result<DeleteSessionOutcome, StoreError> {
        self.write(move |db| {
            let mut open =
                db.prepare_cached("SELECT id FROM runs WHERE session = ?1 AND state IN ('accepted', 'started')")?;
            let mut open: Vec<RunId> = open
                .query_map([key.as_str()], |row| parse_id_column(row, 0, RunId::parse))?
                .collect::<Result<_, _>>()?;
            open.retain(|run| !ended.contains(run));
            if !open.is_empty() {
                return Ok(DeleteSessionOutcome::InUse(open));
            }
            save_receipts(db, &key)?;
            // Turns, runs and notes are deleted with it by their foreign keys.
            let deleted = db.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute([key.as_str()])?;
            Ok(if deleted > 0 { DeleteSessionOutcome::Deleted } else { DeleteSessionOutcome::Unknown })
        })
        .await
    }
}

/// Keeps the receipts of a session that is deleted, without messages and answers. An existing receipt is not
/// replaced, so that nobody can forge one by an import and a deletion.
pub(super) fn save_receipts(db: &Connection, key: &SessionKey) -> rusqlite::Result<()> {
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

/// Creates a session with `by` as its owner, or moves it to the top of the list. Only the owner's use changes its
/// agent.
pub(super) fn record_session_use(
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

fn query_sessions(
    db: &Connection,
    filter: &SessionListFilter,
    before: i64,
) -> rusqlite::Result<Vec<(i64, StoredSession)>> {
    let sql = concat!(
        select!(),
        " WHERE use_order < ?1 AND (instr(lower(key), lower(?2)) OR instr(lower(agent), lower(?2)))
          ORDER BY use_order DESC LIMIT ?3"
    );
    let search = filter.search.as_deref().unwrap_or_default();
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![before, search, limit_plus_one(filter.limit)], |row| {
        Ok((row.get("use_order")?, session_from_row(row)?))
    })?;
    rows.collect()
}

pub(super) fn session_from_row(row: &Row<'_>) -> rusqlite::Result<StoredSession> {
    Ok(StoredSession {
        key: parse_id_column(row, 0, SessionKey::parse)?,
        agent: parse_id_column(row, 1, AgentId::parse)?,
        created_at: row.get(2)?,
        last_used_at: row.get(3)?,
        turns: u64::from(row.get::<_, u32>(4)?),
        config: row.get(5)?,
        secrets: row.get(6)?,
        private_endpoints: PrivateEndpoints { base_url: row.get(7)?, mcp_url: row.get(8)? },
        owner: row.get::<_, Option<String>>(9)?.and_then(|owner| Principal::parse(owner).ok()),
        imported_at: row.get(10)?,
    })
}
