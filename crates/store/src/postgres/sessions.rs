//! Sessions: record use, configure, list, delete.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use tokio_postgres::Row;

use super::columns::{Text, get, optional_text, parse_id, to_limit, to_unsigned};
use super::connection::PgConnection;
use super::runs::run_from_row;
use super::{PostgresStore, audit};
use crate::cursor::{PagedList, limit_plus_one};
use crate::{
    AuditEntry, DeleteSessionOutcome, IdleSession, PrivateEndpoints, RunRow, SessionListFilter, SessionSetup,
    SessionSetupAccess, SessionSetupOutcome, SessionStore, StoreError, StoreFuture, StorePage, StoredOwnership,
    StoredSession,
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
        "greatest(last_used_at, coalesce(imported_at, ''))"
    };
}

impl SessionStore for PostgresStore {
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
        self.read(|db| get(&db.query_row("SELECT count(*) FROM sessions", &[])?, 0).map(to_unsigned))
    }

    fn list_ownership(&self) -> StoreFuture<'_, Vec<StoredOwnership>> {
        self.read(|db| {
            let ownership = |row: &Row| {
                let owner: Option<String> = get(row, 1)?;
                Ok(StoredOwnership {
                    key: parse_id(row, 0, SessionKey::parse)?,
                    owner: owner.and_then(|owner| Principal::parse(owner).ok()),
                    shared: get(row, 2)?,
                })
            };
            db.query("SELECT key, owner, shared FROM sessions", &[])?.iter().map(ownership).collect()
        })
    }

    fn set_shared(&self, key: SessionKey, shared: bool) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            Ok(db.execute("UPDATE sessions SET shared = $2 WHERE key = $1", &[&key.as_str(), &shared])? > 0)
        })
    }

    fn set_up(&self, setup: SessionSetup) -> StoreFuture<'_, SessionSetupOutcome> {
        self.write(move |db| set_up_session(db, &setup))
    }

    fn touch(&self, key: SessionKey, at: String) -> StoreFuture<'_, ()> {
        self.write_relaxed(move |db| {
            let sql = "UPDATE sessions SET last_used_at = $2 WHERE key = $1 AND last_used_at < $2";
            db.execute(sql, &[&key.as_str(), &at]).map(drop)
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
                " AS used FROM sessions WHERE (",
                used_at!(),
                ", key) > ($1, $2) AND NOT EXISTS
                     (SELECT 1 FROM runs WHERE runs.session = sessions.key AND state IN ('accepted', 'started'))
                  ORDER BY used, key LIMIT $3"
            );
            let (used, key) = after.as_ref().map_or(("", ""), |idle| (&idle.used_at, idle.key.as_str()));
            let rows = db.query(sql, &[&used, &key, &to_limit(limit)])?;
            let idle = |row| Ok(IdleSession { key: parse_id(row, 0, SessionKey::parse)?, used_at: get(row, 1)? });
            rows.iter().map(idle).collect()
        })
    }

    fn delete_idle(&self, idle: IdleSession, entry: AuditEntry) -> StoreFuture<'_, DeleteSessionOutcome> {
        self.write(move |db| {
            let open = query_open_runs(db, &idle.key)?;
            let other_node = "SELECT 1 FROM session_nodes WHERE session = $1 AND epoch <> $2";
            if !open.is_empty() || db.exists(other_node, &[&idle.key.as_str(), &db.writer()?.number()])? {
                return Ok(DeleteSessionOutcome::InUse(open));
            }
            let sql = concat!("SELECT 1 FROM sessions WHERE key = $1 AND ", used_at!(), " = $2");
            if !db.exists(sql, &[&idle.key.as_str(), &idle.used_at])? {
                return Ok(DeleteSessionOutcome::Unknown);
            }
            audit::insert_audit_entry(db, &entry)?;
            delete_session(db, &idle.key, &entry.at)
        })
    }
}

fn set_up_session(db: &PgConnection, setup: &SessionSetup) -> Result<SessionSetupOutcome, StoreError> {
    let owner = db.query_optional("SELECT owner FROM sessions WHERE key = $1 FOR UPDATE", &[&setup.key.as_str()])?;
    let owner: Option<Option<String>> = owner.map(|row| get(&row, 0)).transpose()?;
    let known = owner.is_some();
    let is_own = owner.is_none_or(|owner| owner.as_deref() == Some(setup.requested_by.as_str()));
    if setup.access == SessionSetupAccess::OwnerOnly && !is_own {
        return Ok(SessionSetupOutcome::NotOwner);
    }
    let SessionSetup { key, agent, at, requested_by: principal, .. } = setup;
    record_use(db, key, agent, principal, at)?;
    let sql = "UPDATE sessions SET agent = $2, config = $3, secrets = $4, private_base_url = $5, private_mcp_url = $6
               WHERE key = $1";
    let private = setup.private_endpoints;
    db.execute(
        sql,
        &[&key.as_str(), &agent.as_str(), &Text(&setup.config), &setup.secrets, &private.base_url, &private.mcp_url],
    )?;
    Ok(if known { SessionSetupOutcome::Updated } else { SessionSetupOutcome::New })
}

fn query_open_runs(db: &PgConnection, session: &SessionKey) -> Result<Vec<RunId>, StoreError> {
    let sql = "SELECT id FROM runs WHERE session = $1 AND state IN ('accepted', 'started')";
    db.query(sql, &[&session.as_str()])?.iter().map(|row| parse_id(row, 0, RunId::parse)).collect()
}

/// Turns, runs and notes are deleted with the session by their foreign keys.
fn delete_session(db: &PgConnection, key: &SessionKey, at: &str) -> Result<DeleteSessionOutcome, StoreError> {
    save_receipts(db, key, at)?;
    db.execute("DELETE FROM session_homes WHERE session = $1", &[&key.as_str()])?;
    let deleted = db.execute("DELETE FROM sessions WHERE key = $1", &[&key.as_str()])?;
    Ok(if deleted > 0 { DeleteSessionOutcome::Deleted } else { DeleteSessionOutcome::Unknown })
}

/// Keeps the receipts of a session that is deleted, without messages and answers. An existing receipt is not
/// replaced, so that nobody can forge one by an import and a deletion.
fn save_receipts(db: &PgConnection, key: &SessionKey, at: &str) -> Result<(), StoreError> {
    let sql = "SELECT id, session, agent, principal, fingerprint, state, steered_into, accepted_at, view FROM runs
               WHERE session = $1 AND state = 'ended' ORDER BY seq";
    let runs = db.query(sql, &[&key.as_str()])?;
    let runs: Vec<RunRow> = runs.iter().map(run_from_row).collect::<Result<_, _>>()?;
    let kept: Vec<RunRow> = runs.iter().filter_map(RunRow::without_texts).collect();
    let column = |of: fn(&RunRow) -> &str| -> Vec<Text<'_>> { kept.iter().map(|row| Text(of(row))).collect() };
    let sql = "INSERT INTO receipts (run, session, agent, principal, fingerprint, accepted_at, deleted_at, view)
               SELECT run, $7, agent, principal, fingerprint, accepted_at, $8, view
               FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
                   AS kept (run, agent, principal, fingerprint, accepted_at, view)
               ON CONFLICT (run) DO NOTHING";
    db.execute(
        sql,
        &[
            &column(|row| row.id.as_str()),
            &column(|row| row.agent.as_str()),
            &column(|row| row.principal.as_str()),
            &column(|row| &row.fingerprint),
            &column(|row| &row.accepted_at),
            &column(|row| &row.view),
            &key.as_str(),
            &at,
        ],
    )
    .map(drop)
}

/// Creates a session with the principal as its owner, or moves it to the top of the list. Only the owner's use
/// changes its agent.
pub(super) fn record_use(
    db: &PgConnection,
    key: &SessionKey,
    agent: &AgentId,
    principal: &Principal,
    at: &str,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO sessions (key, agent, created_at, last_used_at, use_order, owner)
               VALUES ($1, $2, $3, $3, (SELECT coalesce(max(use_order), 0) + 1 FROM sessions), $4)
               ON CONFLICT (key) DO UPDATE SET
                   agent = CASE WHEN sessions.owner = excluded.owner THEN excluded.agent ELSE sessions.agent END,
                   last_used_at = excluded.last_used_at, use_order = excluded.use_order";
    db.execute(sql, &[&key.as_str(), &agent.as_str(), &at, &principal.as_str()]).map(drop)
}

pub(super) fn query_session(db: &PgConnection, key: &SessionKey) -> Result<Option<StoredSession>, StoreError> {
    let sql = concat!(select!(), " WHERE key = $1");
    db.query_optional(sql, &[&key.as_str()])?.as_ref().map(session_from_row).transpose()
}

fn query_sessions(
    db: &PgConnection,
    filter: &SessionListFilter,
    before: i64,
) -> Result<Vec<(i64, StoredSession)>, StoreError> {
    let sql = concat!(
        select!(),
        " WHERE use_order < $1
            AND (position(lower($2) IN lower(key)) > 0 OR position(lower($2) IN lower(agent)) > 0)
            AND ($4::text IS NULL OR owner = $4 OR shared)
          ORDER BY use_order DESC LIMIT $3"
    );
    let search = Text(filter.search.as_deref().unwrap_or_default());
    let visible_to = filter.visible_to.as_ref().map(Principal::as_str);
    let rows = db.query(sql, &[&before, &search, &limit_plus_one(filter.limit), &visible_to])?;
    rows.iter().map(|row| Ok((get(row, 12)?, session_from_row(row)?))).collect()
}

fn session_from_row(row: &Row) -> Result<StoredSession, StoreError> {
    Ok(StoredSession {
        key: parse_id(row, 0, SessionKey::parse)?,
        agent: parse_id(row, 1, AgentId::parse)?,
        created_at: get(row, 2)?,
        last_used_at: get(row, 3)?,
        turns: to_unsigned(get(row, 4)?),
        config: optional_text(row, 5)?,
        secrets: get(row, 6)?,
        private_endpoints: PrivateEndpoints { base_url: get(row, 7)?, mcp_url: get(row, 8)? },
        owner: get::<Option<String>>(row, 9)?.and_then(|owner| Principal::parse(owner).ok()),
        imported_at: get(row, 10)?,
        shared: get(row, 11)?,
    })
}
