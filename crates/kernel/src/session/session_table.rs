//! Table of live sessions: who creates one, who waits, which expire, and clean-up exactly once.
//!
//! It is a plain value behind one lock of the engine. Every check that could race with its action is one method, and so
//! one locked operation.
//!
//! `B` is the type of a session's resources. They are handed out for clean-up exactly once: to the sweep, to a
//! deletion, to the shutdown, or to the creator whose session was removed during its creation. A session leaves the
//! table before its clean-up begins, and its successor cannot be created before the clean-up is over.

use std::collections::HashMap;

use quell_protocol::SessionKey;

use super::{SessionInput, SessionState, SessionUse};
use crate::time::Moment;

#[derive(Debug)]
pub struct SessionTable<B> {
    entries: HashMap<SessionKey, SessionTableEntry<B>>,
    /// Number of unfinished clean-ups per key.
    cleaning_up: HashMap<SessionKey, usize>,
    /// Keys for which no session may be created, with the number of blocks.
    blocked: HashMap<SessionKey, usize>,
    last_token: u64,
    closed: bool,
}

#[derive(Debug)]
struct SessionTableEntry<B> {
    state: SessionState,
    /// `None` while the session is being created.
    resources: Option<B>,
    /// Token of the caller that creates or changes it.
    creator: Option<CreateToken>,
    /// It was removed while it was being created or changed.
    removed: bool,
}

/// Identifies the one caller that creates or changes a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CreateToken(u64);

/// What a caller that needs a session has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionLookup<B> {
    /// Use it. The lookup counts as a use.
    Live(B),
    /// Create it, then call [`SessionTable::finish_create`] or [`SessionTable::fail_create`].
    Create(CreateToken),
    /// Look again after a change: another caller creates it, or its predecessor is being cleaned up.
    Wait,
    /// Clean up this expired session, then look again.
    CleanUp(SessionCleanup<B>),
    /// Give up: the daemon is shutting down.
    Closed,
}

/// What a caller that changes a session has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum ChangeLookup<B> {
    /// Change it, then call [`SessionTable::finish_change`] or [`SessionTable::fail_create`].
    Change(CreateToken, B),
    /// There is no live session: change only the stored one.
    Absent,
    /// Look again after a change of the table.
    Wait,
    /// Give up: the daemon is shutting down.
    Closed,
}

/// A session that left the table and has to be cleaned up.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionCleanup<B> {
    pub key: SessionKey,
    pub resources: B,
    /// State in which it left the table.
    pub state: SessionState,
}

impl<B> SessionCleanup<B> {
    /// Returns true the first time: the caller has to release the resources then.
    pub fn begin_cleanup(&mut self, now: Moment) -> bool {
        let (state, effect) = self.state.step(SessionInput::CleanUp, now);
        self.state = state;
        effect.is_some()
    }
}

impl<B> Default for SessionTable<B> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            cleaning_up: HashMap::new(),
            blocked: HashMap::new(),
            last_token: 0,
            closed: false,
        }
    }
}

impl<B: Clone> SessionTable<B> {
    /// Looks up a session for use. `need` says of a live session whether it may expire.
    pub fn lookup(&mut self, key: &SessionKey, now: Moment, need: impl FnOnce(&B) -> SessionUse) -> SessionLookup<B> {
        if self.closed {
            return SessionLookup::Closed;
        }
        let Some(entry) = self.entries.get_mut(key) else {
            if self.may_create(key) {
                return SessionLookup::Create(self.insert_creating(key));
            }
            return SessionLookup::Wait;
        };
        let Some(body) = entry.resources.as_ref().filter(|_| entry.creator.is_none()) else {
            return SessionLookup::Wait;
        };
        if expire_if_idle(&mut entry.state, need(body), now) {
            return self.remove_for_cleanup(key).map_or(SessionLookup::Wait, SessionLookup::CleanUp);
        }
        entry.state = entry.state.step(SessionInput::Touched, now).0;
        SessionLookup::Live(body.clone())
    }

    pub fn begin_change(&mut self, key: &SessionKey) -> ChangeLookup<B> {
        if self.closed {
            return ChangeLookup::Closed;
        }
        let is_vacant = self.may_create(key);
        let last_token = &mut self.last_token;
        match self.entries.get_mut(key) {
            None if is_vacant => ChangeLookup::Absent,
            None => ChangeLookup::Wait,
            Some(SessionTableEntry { resources: Some(body), creator: creator @ None, .. }) => {
                let token = next_token(last_token);
                *creator = Some(token);
                ChangeLookup::Change(token, body.clone())
            }
            Some(_) => ChangeLookup::Wait,
        }
    }

    /// Finishes a creation: the session is ready.
    ///
    /// # Errors
    /// The session was removed meanwhile. The caller has to clean it up; the clean-up counts as begun.
    pub fn finish_create(
        &mut self,
        key: &SessionKey,
        token: CreateToken,
        body: B,
        now: Moment,
    ) -> Result<(), SessionCleanup<B>> {
        self.finish_change(key, token, body, now).map(drop)
    }

    /// Finishes a change. Returns the previous resources.
    ///
    /// # Errors
    /// As for [`SessionTable::finish_create`].
    pub fn finish_change(
        &mut self,
        key: &SessionKey,
        token: CreateToken,
        body: B,
        now: Moment,
    ) -> Result<Option<B>, SessionCleanup<B>> {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.creator == Some(token)) else {
            *self.cleaning_up.entry(key.clone()).or_default() += 1;
            return Err(SessionCleanup { key: key.clone(), resources: body, state: SessionState::Uninitialised });
        };
        entry.creator = None;
        entry.state = entry.state.step(SessionInput::Initialised, now).0;
        let before = entry.resources.replace(body);
        if !entry.removed {
            return Ok(before);
        }
        // The previous resources need no clean-up: the new ones include them.
        Err(self.remove_for_cleanup(key).unwrap_or_else(|| unreachable!("its resources have just been set")))
    }

    /// Ends a failed creation or change. `rest` is what exists of a new session by then; the caller has to clean it up.
    /// An existing session stays unchanged, or has to be cleaned up if it was removed meanwhile.
    pub fn fail_create(&mut self, key: &SessionKey, token: CreateToken, rest: Option<B>) -> Option<SessionCleanup<B>> {
        let entry = self.entries.get_mut(key).filter(|entry| entry.creator == Some(token))?;
        entry.creator = None;
        if entry.resources.is_none() {
            entry.resources = rest;
            if entry.resources.is_none() {
                self.entries.remove(key);
                return None;
            }
            return self.remove_for_cleanup(key);
        }
        if entry.removed { self.remove_for_cleanup(key) } else { None }
    }

    /// Checks for expiry when work arrives that may have to wait. An expired session is cleaned up by its next use.
    /// Otherwise the waiting work keeps the session, however long it waits.
    pub fn keep_for_waiting_work(&mut self, key: &SessionKey, now: Moment, need: impl FnOnce(&B) -> SessionUse) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(body) = entry.resources.as_ref().filter(|_| entry.creator.is_none()) else { return };
        expire_if_idle(&mut entry.state, need(body), now);
    }

    pub fn touch(&mut self, key: &SessionKey, now: Moment) {
        self.apply_input(key, SessionInput::Touched, now);
    }

    /// Marks a session as without an active run.
    pub fn release(&mut self, key: &SessionKey, now: Moment) {
        self.apply_input(key, SessionInput::Released, now);
    }

    /// Removes expired sessions. The caller has to clean up each of them.
    pub fn remove_expired(
        &mut self,
        now: Moment,
        need: impl Fn(&SessionKey, &B) -> SessionUse,
    ) -> Vec<SessionCleanup<B>> {
        let mut expired = Vec::new();
        for (key, entry) in &mut self.entries {
            let Some(body) = entry.resources.as_ref().filter(|_| entry.creator.is_none()) else { continue };
            if expire_if_idle(&mut entry.state, need(key, body), now) {
                expired.push(key.clone());
            }
        }
        expired.iter().filter_map(|key| self.remove_for_cleanup(key)).collect()
    }

    /// Removes a session, which the caller has to clean up. A session in creation or change is cleaned up by its
    /// creator.
    pub fn remove(&mut self, key: &SessionKey) -> Option<SessionCleanup<B>> {
        let entry = self.entries.get_mut(key)?;
        if entry.creator.is_some() {
            entry.removed = true;
            return None;
        }
        self.remove_for_cleanup(key)
    }

    /// Removes all sessions, which the caller has to clean up, and accepts no lookups any more.
    pub fn close(&mut self) -> Vec<SessionCleanup<B>> {
        self.closed = true;
        let keys: Vec<SessionKey> = self.entries.keys().cloned().collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Blocks the creation of a session until [`SessionTable::unblock_creation`] is called as often. Does not affect a live
    /// session.
    pub fn block_creation(&mut self, key: &SessionKey) {
        *self.blocked.entry(key.clone()).or_default() += 1;
    }

    pub fn unblock_creation(&mut self, key: &SessionKey) {
        decrement_count(&mut self.blocked, key);
    }

    pub fn finish_cleanup(&mut self, key: &SessionKey) {
        decrement_count(&mut self.cleaning_up, key);
    }

    pub fn state(&self, key: &SessionKey) -> Option<SessionState> {
        self.entries.get(key).map(|entry| entry.state)
    }

    pub fn resources(&self, key: &SessionKey) -> Option<&B> {
        self.entries.get(key)?.resources.as_ref()
    }

    /// Number of sessions that are live or being created.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn has_cleanups(&self) -> bool {
        !self.cleaning_up.is_empty()
    }

    /// True when no session of this key is live, being created or being cleaned up.
    pub fn is_gone(&self, key: &SessionKey) -> bool {
        !self.entries.contains_key(key) && !self.cleaning_up.contains_key(key)
    }

    fn may_create(&self, key: &SessionKey) -> bool {
        self.is_gone(key) && !self.blocked.contains_key(key)
    }

    fn insert_creating(&mut self, key: &SessionKey) -> CreateToken {
        let token = next_token(&mut self.last_token);
        let entry = SessionTableEntry {
            state: SessionState::Uninitialised,
            resources: None,
            creator: Some(token),
            removed: false,
        };
        self.entries.insert(key.clone(), entry);
        token
    }

    fn remove_for_cleanup(&mut self, key: &SessionKey) -> Option<SessionCleanup<B>> {
        let SessionTableEntry { state, resources, .. } = self.entries.remove(key)?;
        *self.cleaning_up.entry(key.clone()).or_default() += 1;
        Some(SessionCleanup { key: key.clone(), resources: resources?, state })
    }

    fn apply_input(&mut self, key: &SessionKey, input: SessionInput, now: Moment) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = entry.state.step(input, now).0;
        }
    }
}

fn expire_if_idle(state: &mut SessionState, need: SessionUse, now: Moment) -> bool {
    if let SessionUse::Idle { idle } = need {
        *state = state.step(SessionInput::ExpireIfIdle { idle }, now).0;
    }
    *state == SessionState::Expired
}

fn decrement_count(counts: &mut HashMap<SessionKey, usize>, key: &SessionKey) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn next_token(last_token: &mut u64) -> CreateToken {
    *last_token += 1;
    CreateToken(*last_token)
}
