//! Sessions: record use, configure, list, delete.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::columns::{parse_id_column, to_limit, to_unsigned};
use super::{SqliteStore, audit};
use crate::cursor::{PagedList, limit_plus_one};
use crate::{
    AuditEntry, DeleteSessionOutcome, IdleSession, PrivateEndpoints, SessionListFilter, SessionSetup,
    SessionSetupAccess, SessionSetupOutcome, SessionStore, StoreFuture, StorePage, StoredOwnership, StoredSession,
};

/// The columns that [`session_from_row`] reads. A macro, because `concat!` needs a literal.
macro_rules! select {
    () => {
        "SELECT key, agent, created_at, last_used_at, turns, config, secrets, private_base_url, private_mcp_url, owner, imported_at,
         shared, use_order FROM sessions"
    };
}

/// The later of a session's last use and its import.
macro_rules! used_at {
    () => {
        "max(last_used_at, ifnull(imported_at, ''))"
    };
}

impl SessionStore for SqliteStore {
    fn find(&self, key: SessionKey) -> StoreFuture<'_, Option<StoredSession>> {
        self.read(move |db| query_session(db, &key))
    }

    fn list(&self, filter: SessionListFilter) -> StoreFuture<'_, StorePage<StoredSession>> {
        Box::pin(async move {
            let before = PagedList::Sessions.parse_cursor(filter.cursor.as_deref())?;
            let limit = filter.limit;
            let rows = self.read(move |db| query_sessions(db, &filter, before)).await?;
            Ok(PagedList::Sessions.split_page(rows, limit))
        })
    }

    fn count(&self) -> StoreFuture<'_, u64> {
        self.read(|db| {
            db.prepare_cached("SELECT count(*) FROM sessions")?.query_row([], |row| row.get(0)).map(to_unsigned)
        })
    }

    fn list_ownership(&self) -> StoreFuture<'_, Vec<StoredOwnership>> {
        self.read(|db| {
            let ownership = |row: &Row<'_>| {
                let owner: Option<String> = row.get(1)?;
                Ok(StoredOwnership {
                    key: parse_id_column(row, 0, SessionKey::parse)?,
                    owner: owner.and_then(|owner| Principal::parse(owner).ok()),
                    shared: row.get(2)?,
                })
            };
            db.prepare_cached("SELECT key, owner, shared FROM sessions")?.query_map([], ownership)?.collect()
        })
    }

    fn set_shared(&self, key: SessionKey, shared: bool) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let sql = "UPDATE sessions SET shared = ?2 WHERE key = ?1";
            Ok(db.prepare_cached(sql)?.execute(params![key.as_str(), shared])? > 0)
        })
    }

    fn set_up(&self, setup: SessionSetup) -> StoreFuture<'_, SessionSetupOutcome> {
        self.write(move |db| set_up_session(db, &setup))
    }

    fn touch(&self, key: SessionKey, at: String) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE sessions SET last_used_at = ?2 WHERE key = ?1 AND last_used_at < ?2";
            db.prepare_cached(sql)?.execute([key.as_str(), &at]).map(drop)
        })
    }

    fn delete(&self, key: SessionKey, ended: Vec<RunId>, at: String) -> StoreFuture<'_, DeleteSessionOutcome> {
        self.write(move |db| {
            let mut open = query_open_runs(db, &key)?;
            open.retain(|run| !ended.contains(run));
            if open.is_empty() { delete_session(db, &key, &at) } else { Ok(DeleteSessionOutcome::InUse(open)) }
        })
    }

    fn list_idle(&self, after: Option<IdleSession>, limit: usize) -> StoreFuture<'_, Vec<IdleSession>> {
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
            let idle = |row: &Row<'_>| {
                Ok(IdleSession { key: parse_id_column(row, 0, SessionKey::parse)?, used_at: row.get(1)? })
            };
            db.prepare_cached(sql)?.query_map(params![used, key, to_limit(limit)], idle)?.collect()
        })
    }

    fn delete_idle(&self, idle: IdleSession, entry: AuditEntry) -> StoreFuture<'_, DeleteSessionOutcome> {
        self.write(move |db| {
            let open = query_open_runs(db, &idle.key)?;
            if !open.is_empty() {
                return Ok(DeleteSessionOutcome::InUse(open));
            }
            let sql = concat!("SELECT 1 FROM sessions WHERE key = ?1 AND ", used_at!(), " = ?2");
            if !db.prepare_cached(sql)?.exists([idle.key.as_str(), &idle.used_at])? {
                return Ok(DeleteSessionOutcome::Unknown);
            }
            audit::insert_audit_entry(db, &entry)?;
            delete_session(db, &idle.key, &entry.at)
        })
    }
}

fn set_up_session(db: &Connection, setup: &SessionSetup) -> rusqlite::Result<SessionSetupOutcome> {
    let mut owner = db.prepare_cached("SELECT owner FROM sessions WHERE key = ?1")?;
    let owner: Option<Option<String>> = owner.query_row([setup.key.as_str()], |row| row.get(0)).optional()?;
    let known = owner.is_some();
    let is_own = owner.is_none_or(|owner| owner.as_deref() == Some(setup.requested_by.as_str()));
    if setup.access == SessionSetupAccess::OwnerOnly && !is_own {
        return Ok(SessionSetupOutcome::NotOwner);
    }
    let SessionSetup { key, agent, at, requested_by: principal, .. } = setup;
    record_use(db, key, agent, principal, at)?;
    db.prepare_cached(
        "UPDATE sessions SET agent = ?2, config = ?3, secrets = ?4, private_base_url = ?5, private_mcp_url = ?6
         WHERE key = ?1",
    )?
    .execute(params![
        key.as_str(),
        agent.as_str(),
        setup.config,
        setup.secrets,
        setup.private_endpoints.base_url,
        setup.private_endpoints.mcp_url
    ])?;
    Ok(if known { SessionSetupOutcome::Updated } else { SessionSetupOutcome::New })
}

fn query_open_runs(db: &Connection, session: &SessionKey) -> rusqlite::Result<Vec<RunId>> {
    db.prepare_cached("SELECT id FROM runs WHERE session = ?1 AND state IN ('accepted', 'started')")?
        .query_map([session.as_str()], |row| parse_id_column(row, 0, RunId::parse))?
        .collect()
}

/// Turns, runs and notes are deleted with the session by their foreign keys.
fn delete_session(db: &Connection, key: &SessionKey, at: &str) -> rusqlite::Result<DeleteSessionOutcome> {
    save_receipts(db, key, at)?;
    let deleted = db.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute([key.as_str()])?;
    Ok(if deleted > 0 { DeleteSessionOutcome::Deleted } else { DeleteSessionOutcome::Unknown })
}

/// Keeps the receipts of a session that is deleted, without messages and answers. An existing receipt is not
/// replaced, so that nobody can forge one by an import and a deletion.
fn save_receipts(db: &Connection, key: &SessionKey, at: &str) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO receipts (run, session, agent, principal, fingerprint, accepted_at, deleted_at, view)
         SELECT id, session, agent, principal, fingerprint, accepted_at, ?2,
                json_set(json_remove(view, '$.output'), '$.text', '')
         FROM runs WHERE session = ?1 AND state = 'ended' AND json_valid(view)
         ON CONFLICT (run) DO NOTHING",
    )?
    .execute([key.as_str(), at])?;
    Ok(())
}

/// Creates a session with the principal as its owner, or moves it to the top of the list. Only the owner's use
/// changes its agent.
pub(super) fn record_use(
    db: &Connection,
    key: &SessionKey,
    agent: &AgentId,
    principal: &Principal,
    at: &str,
) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO sessions (key, agent, created_at, last_used_at, use_order, owner)
         VALUES (?1, ?2, ?3, ?3, (SELECT ifnull(max(use_order), 0) + 1 FROM sessions), ?4)
         ON CONFLICT (key) DO UPDATE SET
             agent = CASE WHEN sessions.owner = excluded.owner THEN excluded.agent ELSE sessions.agent END,
             last_used_at = excluded.last_used_at, use_order = excluded.use_order",
    )?
    .execute(params![key.as_str(), agent.as_str(), at, principal.as_str()])?;
    Ok(())
}

pub(super) fn query_session(db: &Connection, key: &SessionKey) -> rusqlite::Result<Option<StoredSession>> {
    let sql = concat!(select!(), " WHERE key = ?1");
    db.prepare_cached(sql)?.query_row([key.as_str()], session_from_row).optional()
}

fn query_sessions(
    db: &Connection,
    filter: &SessionListFilter,
    before: i64,
) -> rusqlite::Result<Vec<(i64, StoredSession)>> {
    let sql = concat!(
        select!(),
        " WHERE use_order < ?1 AND (instr(lower(key), lower(?2)) OR instr(lower(agent), lower(?2)))
            AND (?4 IS NULL OR owner = ?4 OR shared)
          ORDER BY use_order DESC LIMIT ?3"
    );
    let search = filter.search.as_deref().unwrap_or_default();
    let visible_to = filter.visible_to.as_ref().map(Principal::as_str);
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![before, search, limit_plus_one(filter.limit), visible_to], |row| {
        Ok((row.get("use_order")?, session_from_row(row)?))
    })?;
    rows.collect()
}

fn session_from_row(row: &Row<'_>) -> rusqlite::Result<StoredSession> {
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
        shared: row.get(11)?,
    })
}
