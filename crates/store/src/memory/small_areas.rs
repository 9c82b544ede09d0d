//! Agents, tokens, cookies, the audit log, spend.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::daily_spend::{PricedUsage, SpendAmount, add_usage};
use quell_protocol::audit::{Action, AuditRow};
use quell_protocol::{AgentId, Principal, Usage};

use super::{Data, MemoryStore};
use crate::{
    AccessStore, AgentStore, AuditEntry, AuditStore, NoteScope, SpendStore, StoreError, StoreFuture, StoredAgent,
    StoredCookie, StoredToken,
};

impl Data {
    pub(super) fn append_audit(&mut self, entry: AuditEntry) {
        let AuditEntry { at, principal, surface, from, action, target, detail } = entry;
        self.last_audit += 1;
        let (seq, action) = (self.last_audit, action.as_str().to_owned());
        self.audit.push(AuditRow { seq, at, principal, surface, from, action, target, detail });
    }

    pub(super) fn add_spend(&mut self, agent: &AgentId, day: &str, usage: Usage) {
        if (usage.input_tokens, usage.output_tokens) == (0, 0) {
            return;
        }
        let (_, total) =
            self.spend.entry((agent.to_string(), day.to_owned())).or_insert_with(|| (agent.clone(), Usage::default()));
        *total = Usage { estimated: false, ..add_usage(*total, usage) };
    }

    pub(super) fn add_key_spend(&mut self, key: &Principal, day: &str, new: PricedUsage) {
        let new = PricedUsage { usage: Usage { cached_tokens: 0, estimated: false, ..new.usage }, ..new };
        if new == PricedUsage::default() {
            return;
        }
        let total = self.key_spend.entry((key.clone(), day.to_owned())).or_default();
        *total = total.add(new);
    }
}

impl AgentStore for MemoryStore {
    fn create(&self, agent: StoredAgent) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            if data.agents.contains_key(agent.id.as_str()) {
                return Err(StoreError::Bug(format!("the agent {} exists", agent.id)));
            }
            data.agents.insert(agent.id.to_string(), agent);
            Ok(())
        })
    }

    fn list(&self) -> StoreFuture<'_, Vec<StoredAgent>> {
        self.read(|data| Ok(data.agents.values().cloned().collect()))
    }

    fn delete(&self, ids: Vec<AgentId>) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            for id in ids {
                data.agents.remove(id.as_str());
                data.notes.retain(|entry| entry.scope != NoteScope::Agent(id.clone()));
            }
        })
    }
}

impl AccessStore for MemoryStore {
    fn create_token(&self, token: StoredToken) -> StoreFuture<'_, ()> {
        self.write(move |data| {
            let name = token.row.name.clone();
            if data.tokens.contains_key(&name) {
                return Err(StoreError::NameTaken(name));
            }
            data.tokens.insert(name, token);
            Ok(())
        })
    }

    fn list_tokens(&self) -> StoreFuture<'_, Vec<StoredToken>> {
        self.read(|data| Ok(data.tokens.values().cloned().collect()))
    }

    fn rotate_token(&self, token: StoredToken) -> StoreFuture<'_, bool> {
        self.write(move |data| {
            let stored = data.tokens.get_mut(&token.row.name);
            let Some(stored) = stored.filter(|stored| token.previous_sha256.as_ref() == Some(&stored.sha256)) else {
                return Ok(false);
            };
            let (scope, scopes, created_at) =
                (stored.row.scope, stored.row.scopes.clone(), stored.row.created_at.clone());
            *stored = token;
            (stored.row.scope, stored.row.scopes, stored.row.created_at) = (scope, scopes, created_at);
            Ok(true)
        })
    }

    fn revoke_token(&self, name: String) -> StoreFuture<'_, bool> {
        self.write(move |data| {
            let Some(token) = data.tokens.remove(&name) else { return Ok(false) };
            let is_of_token =
                |sha256: &String| *sha256 == token.sha256 || Some(sha256) == token.previous_sha256.as_ref();
            data.cookies.retain(|cookie| !is_of_token(&cookie.token));
            Ok(true)
        })
    }

    fn save_cookie(&self, cookie: StoredCookie, limit: usize) -> StoreFuture<'_, ()> {
        self.change(move |data| {
            let token = cookie.token.clone();
            data.cookies.retain(|stored| stored.sha256 != cookie.sha256);
            data.cookies.push(cookie);
            data.cookies.sort_by_key(|stored| Reverse(stored.expires));
            let mut kept = 0;
            data.cookies.retain(|stored| {
                kept += usize::from(stored.token == token);
                stored.token != token || kept <= limit
            });
        })
    }

    fn delete_cookie(&self, sha256: String) -> StoreFuture<'_, ()> {
        self.change(move |data| data.cookies.retain(|stored| stored.sha256 != sha256))
    }

    fn list_valid_cookies(&self, now: i64, limit: usize) -> StoreFuture<'_, Vec<StoredCookie>> {
        self.read(move |data| {
            Ok(data.cookies.iter().filter(|stored| stored.expires >= now).take(limit).cloned().collect())
        })
    }

    fn delete_expired_cookies(&self, now: i64) -> StoreFuture<'_, ()> {
        self.change(move |data| data.cookies.retain(|stored| stored.expires >= now))
    }
}

impl AuditStore for MemoryStore {
    fn append(&self, entries: Vec<AuditEntry>) -> StoreFuture<'_, ()> {
        self.change(move |data| entries.into_iter().for_each(|entry| data.append_audit(entry)))
    }

    fn list(&self, after: u64, limit: usize) -> StoreFuture<'_, (Vec<AuditRow>, bool)> {
        self.read(move |data| {
            let rows = data.audit.iter().filter(|row| row.seq > after);
            Ok((rows.clone().take(limit).cloned().collect(), rows.count() > limit))
        })
    }

    fn list_origins(&self, action: Action) -> StoreFuture<'_, Vec<(Principal, String)>> {
        self.read(move |data| {
            let rows = data.audit.iter().filter(|row| row.action == action.as_str());
            let pairs = rows.filter_map(|row| Some((row.principal.clone(), row.from.clone()?)));
            Ok(pairs.collect::<BTreeSet<_>>().into_iter().collect())
        })
    }

    fn delete_before(&self, time: String) -> StoreFuture<'_, u64> {
        self.write(move |data| {
            let old = data.audit.iter().take_while(|row| row.at < time).count();
            Ok(data.audit.drain(..old).count() as u64)
        })
    }
}

impl SpendStore for MemoryStore {
    fn add(&self, agent: AgentId, day: String, usage: Usage) -> StoreFuture<'_, ()> {
        self.change(move |data| data.add_spend(&agent, &day, usage))
    }

    fn on_day(&self, day: String) -> StoreFuture<'_, Vec<(AgentId, Usage)>> {
        self.read(move |data| {
            let spent = data.spend.iter().filter(|((_, of), _)| *of == day);
            Ok(spent.map(|(_, (agent, usage))| (agent.clone(), *usage)).collect())
        })
    }

    fn by_key(&self, first_day: String, last_day: String) -> StoreFuture<'_, Vec<(Principal, PricedUsage)>> {
        self.read(move |data| {
            let mut sums: BTreeMap<Principal, PricedUsage> = BTreeMap::new();
            let days = first_day..=last_day;
            for ((key, _), usage) in data.key_spend.iter().filter(|((_, day), _)| days.contains(day)) {
                let sum = sums.entry(key.clone()).or_default();
                *sum = sum.add(*usage);
            }
            Ok(sums.into_iter().collect())
        })
    }
}
