//! The sessions of the store in memory, and their settings.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};

use super::{Data, MemoryStore, ReceiptEntry, SessionEntry, newest_rows};
use crate::cursor::PagedList;
use crate::{
    AuditEntry, DeleteSessionOutcome, IdleSession, NoteScope, PrivateEndpoints, RunRow, SessionListFilter,
    SessionSetup, SessionSetupAccess, SessionSetupOutcome, SessionStore, StoreFuture, StorePage, StoredOwnership,
    StoredRunState, StoredSession,
};

impl Data {
    pub(super) fn session_mut(&mut self, key: &SessionKey) -> Option<&mut SessionEntry> {
        self.sessions.iter_mut().find(|entry| entry.session.key == *key)
    }

    pub(super) fn has_session(&self, key: &SessionKey) -> bool {
        self.sessions.iter().any(|entry| entry.session.key == *key)
    }

    /// Creates a session with the principal as its owner, or moves it to the top of the list. Only the owner's use
    /// changes its agent.
    pub(super) fn record_use(&mut self, key: &SessionKey, agent: &AgentId, principal: &Principal, at: &str) {
        let use_order = self.next_number();
        let Some(entry) = self.session_mut(key) else {
            let session = StoredSession {
                key: key.clone(),
                agent: agent.clone(),
                created_at: at.to_owned(),
                last_used_at: at.to_owned(),
                turns: 0,
                config: None,
                secrets: None,
                private_endpoints: PrivateEndpoints::default(),
                owner: Some(principal.clone()),
                imported_at: None,
                shared: false,
            };
            return self.sessions.push(SessionEntry { use_order, session });
        };
        entry.use_order = use_order;
        at.clone_into(&mut entry.session.last_used_at);
        if entry.session.owner.as_ref() == Some(principal) {
            entry.session.agent = agent.clone();
        }
    }

    fn delete_session(&mut self, key: &SessionKey, at: &str) -> DeleteSessionOutcome {
        let ended = self.runs.iter().filter(|run| run.row.session == *key && run.row.state == StoredRunState::Ended);
        let ended: Vec<RunRow> = ended.filter_map(|run| run.row.without_texts()).collect();
        for row in ended {
            if !self.receipts.iter().any(|receipt| receipt.row.id == row.id) {
                self.receipts.push(ReceiptEntry { deleted_at: at.to_owned(), row });
            }
        }
        let runs: Vec<String> =
            self.runs.extract_if(.., |run| run.row.session == *key).map(|run| run.row.id.to_string()).collect();
        self.journal.retain(|(run, _), _| !runs.contains(run));
        self.delete_file_changes(&runs);
        self.delete_push_targets(&runs);
        self.history.retain(|entry| entry.session != *key);
        self.notes.retain(|entry| entry.scope != NoteScope::Session(key.clone()));
        match self.sessions.extract_if(.., |entry| entry.session.key == *key).count() {
            0 => DeleteSessionOutcome::Unknown,
            _ => DeleteSessionOutcome::Deleted,
        }
    }

    fn set_up_session(&mut self, setup: SessionSetup) -> SessionSetupOutcome {
        let SessionSetup { key, agent, at, config, secrets, private_endpoints, requested_by, access } = setup;
        let known = self.session_mut(&key).map(|entry| entry.session.owner.as_ref() == Some(&requested_by));
        if access == SessionSetupAccess::OwnerOnly && known == Some(false) {
            return SessionSetupOutcome::NotOwner;
        }
        self.record_use(&key, &agent, &requested_by, &at);
        if let Some(SessionEntry { session, .. }) = self.session_mut(&key) {
            (session.agent, session.config, session.secrets) = (agent, Some(config), secrets);
            session.private_endpoints = private_endpoints;
        }
        if known.is_some() { SessionSetupOutcome::Updated } else { SessionSetupOutcome::New }
    }

    /// Sessions without open runs, the least recently used first.
    fn idle_sessions(&self) -> Vec<IdleSession> {
        let idle = self.sessions.iter().filter(|entry| self.open_runs(&entry.session.key).is_empty());
        let mut idle: Vec<IdleSession> = idle
            .map(|entry| {
                let imported_at = entry.session.imported_at.clone().unwrap_or_default();
                IdleSession {
                    key: entry.session.key.clone(),
                    used_at: imported_at.max(entry.session.last_used_at.clone()),
                }
            })
            .collect();
        idle.sort_by(|one, other| idle_order(one).cmp(&idle_order(other)));
        idle
    }
}

impl SessionStore for MemoryStore {
    fn find(&self, key: SessionKey) -> StoreFuture<'_, Option<StoredSession>> {
        self.read(move |data| {
            Ok(data.sessions.iter().map(|entry| &entry.session).find(|session| session.key == key).cloned())
        })
    }

    fn list(&self, filter: SessionListFilter) -> StoreFuture<'_, StorePage<StoredSession>> {
        self.read(move |data| {
            let SessionListFilter { search, limit, cursor, visible_to } = filter;
            let before = PagedList::Sessions.parse_cursor(cursor.as_deref())?;
            let search = search.unwrap_or_default().to_ascii_lowercase();
            let contains = |text: &str| text.to_ascii_lowercase().contains(&search);
            let found = data.sessions.iter().filter(|SessionEntry { session, .. }| {
                (contains(session.key.as_str()) || contains(session.agent.as_str()))
                    && visible_to.as_ref().is_none_or(|viewer| is_visible_to(session, viewer))
            });
            let rows = found.map(|entry| (entry.use_order, entry.session.clone())).collect();
            Ok(PagedList::Sessions.split_page(newest_rows(rows, before, limit), limit))
        })
    }

    fn count(&self) -> StoreFuture<'_, u64> {
        self.read(|data| Ok(data.sessions.len() as u64))
    }

    fn list_ownership(&self) -> StoreFuture<'_, Vec<StoredOwnership>> {
        self.read(|data| {
            let ownership = |StoredSession { key, owner, shared, .. }: &StoredSession| StoredOwnership {
                key: key.clone(),
                owner: owner.clone(),
                shared: *shared,
            };
            Ok(data.sessions.iter().map(|entry| ownership(&entry.session)).collect())
        })
    }

    fn set_shared(&self, key: SessionKey, shared: bool) -> StoreFuture<'_, bool> {
        self.write(move |data| {
            let Some(entry) = data.session_mut(&key) else { return Ok(false) };
            entry.session.shared = shared;
            Ok(true)
        })
    }

    fn set_up(&self, setup: SessionSetup) -> StoreFuture<'_, SessionSetupOutcome> {
        self.write(move |data| Ok(data.set_up_session(setup)))
    }

    fn touch(&self, key: SessionKey, at: String) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            if let Some(entry) = data.session_mut(&key).filter(|entry| entry.session.last_used_at < at) {
                entry.session.last_used_at = at;
            }
        })
    }

    fn delete(&self, key: SessionKey, ended: Vec<RunId>, at: String) -> StoreFuture<'_, DeleteSessionOutcome> {
        self.write(move |data| {
            let mut open = data.open_runs(&key);
            open.retain(|run| !ended.contains(run));
            Ok(if open.is_empty() { data.delete_session(&key, &at) } else { DeleteSessionOutcome::InUse(open) })
        })
    }

    fn list_idle(&self, after: Option<IdleSession>, limit: usize) -> StoreFuture<'_, Vec<IdleSession>> {
        self.read(move |data| {
            let mut idle = data.idle_sessions();
            idle.retain(|idle| after.as_ref().is_none_or(|after| idle_order(idle) > idle_order(after)));
            idle.truncate(limit);
            Ok(idle)
        })
    }

    fn delete_idle(&self, idle: IdleSession, entry: AuditEntry) -> StoreFuture<'_, DeleteSessionOutcome> {
        self.write(move |data| {
            let open = data.open_runs(&idle.key);
            if !open.is_empty() {
                return Ok(DeleteSessionOutcome::InUse(open));
            }
            if !data.idle_sessions().contains(&idle) {
                return Ok(DeleteSessionOutcome::Unknown);
            }
            let deleted = data.delete_session(&idle.key, &entry.at);
            data.append_audit(entry);
            Ok(deleted)
        })
    }
}

pub(super) fn is_visible_to(session: &StoredSession, viewer: &Principal) -> bool {
    session.shared || session.owner.as_ref() == Some(viewer)
}

fn idle_order(idle: &IdleSession) -> (&str, &str) {
    (&idle.used_at, idle.key.as_str())
}
