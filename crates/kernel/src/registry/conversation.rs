//! Runs of one conversation in a chat network: what an interrupting message aborts and waits for, in whichever session it is.

use std::collections::HashMap;
use std::sync::Arc;

use quell_protocol::api::OnBusy;
use quell_protocol::{InterruptionScope, RunId, SessionKey};

use super::{Entry, NewRun, Registry, Who};
use crate::channel::keys::is_of_channel;
use crate::run::RunState;

/// The runs of each scope, so that a message in one of a thousand chats looks at no run of the others. A stop does: what came
/// into a chat's session through another door has no scope.
#[derive(Debug, Default)]
pub(super) struct Conversations(HashMap<Arc<InterruptionScope>, Vec<RunId>>);

impl Conversations {
    pub(super) fn add(&mut self, run: &NewRun) {
        if let Some(scope) = &run.scope {
            self.0.entry(Arc::clone(scope)).or_default().push(run.id.clone());
        }
    }

    pub(super) fn remove(&mut self, run: &NewRun) {
        let Some(scope) = &run.scope else { return };
        let Some(runs) = self.0.get_mut(scope) else { return };
        runs.retain(|id| *id != run.id);
        if runs.is_empty() {
            self.0.remove(scope);
        }
    }
}

impl Registry {
    /// What an interrupting run aborts: what was accepted before it in its scope, else in its session, as far as its sender may
    /// stop it.
    pub(super) fn superseded_by(&self, entry: &Entry) -> Vec<RunId> {
        let who = Who { principal: entry.run.principal.clone(), admin: entry.run.admin };
        let older = |other: &&Entry| other.mark < entry.mark && who.may_stop(other) && !other.state.is_ended();
        let mut found: Vec<&Entry> = match &entry.run.scope {
            Some(scope) => self.of_scope(scope).filter(older).collect(),
            None => self.of_session(&entry.run.session).filter(older).collect(),
        };
        found.sort_unstable_by_key(|other| other.mark);
        found.into_iter().map(|other| other.run.id.clone()).collect()
    }

    /// True while an interrupting run has to wait for one that it superseded in another session: the whole chain before it is
    /// over before it starts.
    pub(super) fn is_held_back(&self, entry: &Entry) -> bool {
        let Some(scope) = entry.run.scope.as_deref().filter(|_| entry.run.on_busy == OnBusy::Interrupt) else {
            return false;
        };
        // Those that had not started were over when they were superseded.
        let at_work = |other: &Entry| matches!(other.state, RunState::Running | RunState::Ending { .. });
        self.of_scope(scope).any(|other| other.mark < entry.mark && at_work(other))
    }

    /// Sessions in which a run may have waited for one of this scope that is over now.
    #[must_use]
    pub fn sessions_of_scope(&self, scope: &InterruptionScope) -> Vec<SessionKey> {
        let queued = self.of_scope(scope).filter(|entry| entry.state == RunState::Queued);
        let mut keys: Vec<SessionKey> = queued.map(|entry| entry.run.session.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    pub(super) fn of_scope<'a>(&'a self, scope: &'a InterruptionScope) -> impl Iterator<Item = &'a Entry> {
        self.conversations.0.get(scope).into_iter().flatten().filter_map(|id| self.runs.get(id))
    }

    /// What a stop in a chat covers: its scope, and what came into its session through other doors.
    pub(super) fn of_chat<'a>(
        &'a self,
        scope: &'a InterruptionScope,
        session: &'a SessionKey,
    ) -> impl Iterator<Item = &'a Entry> {
        let from_elsewhere = move |entry: &&Entry| entry.run.scope.is_none() && entry.run.session == *session;
        self.of_scope(scope).chain(self.runs.values().filter(from_elsewhere))
    }

    pub(super) fn of_channel<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.runs.values().filter(move |entry| match entry.run.scope.as_deref() {
            Some(scope) => scope.channel == name,
            None => is_of_channel(&entry.run.session, name),
        })
    }
}
