//! Index of runs by interruption scope, and superseding within a conversation, which may span sessions.

use std::collections::HashMap;
use std::sync::Arc;

use quell_protocol::api::OnBusy;
use quell_protocol::{InterruptionScope, RunId, SessionKey};

use super::{NewRun, RegistryEntry, RunRegistry, StopRequester};
use crate::channel::session_keys::belongs_to_channel;
use crate::run::RunState;

/// The runs of each scope, so that a message in one chat does not scan the runs of all others. A stop scans all runs,
/// because runs that came into a chat's session through another transport have no scope.
#[derive(Debug, Default)]
pub(super) struct ConversationIndex(HashMap<Arc<InterruptionScope>, Vec<RunId>>);

impl ConversationIndex {
    pub(super) fn add(&mut self, run: &NewRun) {
        if let Some(scope) = &run.interruption_scope {
            self.0.entry(Arc::clone(scope)).or_default().push(run.id.clone());
        }
    }

    pub(super) fn remove(&mut self, run: &NewRun) {
        let Some(scope) = &run.interruption_scope else { return };
        let Some(runs) = self.0.get_mut(scope) else { return };
        runs.retain(|id| *id != run.id);
        if runs.is_empty() {
            self.0.remove(scope);
        }
    }
}

impl RunRegistry {
    /// The runs that an interrupting run aborts: those accepted before it in its scope, or in its session if it has no
    /// scope, as far as its sender may stop them.
    pub(super) fn superseded_by(&self, entry: &RegistryEntry) -> Vec<RunId> {
        let sender = StopRequester { principal: entry.run.principal.clone(), admin: entry.run.admin };
        let older = |other: &&RegistryEntry| {
            other.accept_seq < entry.accept_seq && sender.may_stop(other) && !other.state.is_ended()
        };
        let mut found: Vec<&RegistryEntry> = match &entry.run.interruption_scope {
            Some(scope) => self.runs_of_scope(scope).filter(older).collect(),
            None => self.runs_of_session(&entry.run.session).filter(older).collect(),
        };
        found.sort_unstable_by_key(|other| other.accept_seq);
        found.into_iter().map(|other| other.run.id.clone()).collect()
    }

    /// True while an interrupting run has to wait for a superseded run of its scope, in any session. All runs that it
    /// superseded, directly or not, end before it starts.
    pub(super) fn waits_for_superseded(&self, entry: &RegistryEntry) -> bool {
        let Some(scope) = entry.run.interruption_scope.as_deref().filter(|_| entry.run.on_busy == OnBusy::Interrupt)
        else {
            return false;
        };
        // Superseded runs that had not started are over already.
        let at_work = |other: &RegistryEntry| matches!(other.state, RunState::Running | RunState::Ending { .. });
        self.runs_of_scope(scope).any(|other| other.accept_seq < entry.accept_seq && at_work(other))
    }

    /// Sessions with a queued run of this scope, which may have waited for a run that is over now.
    pub fn queued_sessions_of_scope(&self, scope: &InterruptionScope) -> Vec<SessionKey> {
        let queued = self.runs_of_scope(scope).filter(|entry| entry.state == RunState::Queued);
        let mut keys: Vec<SessionKey> = queued.map(|entry| entry.run.session.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    pub(super) fn runs_of_scope<'a>(&'a self, scope: &'a InterruptionScope) -> impl Iterator<Item = &'a RegistryEntry> {
        self.conversations.0.get(scope).into_iter().flatten().filter_map(|id| self.runs.get(id))
    }

    /// The runs that a stop in a chat covers: those of its scope, and those of its session that came through other
    /// transports.
    pub(super) fn runs_of_conversation<'a>(
        &'a self,
        scope: &'a InterruptionScope,
        session: &'a SessionKey,
    ) -> impl Iterator<Item = &'a RegistryEntry> {
        let from_elsewhere =
            move |entry: &&RegistryEntry| entry.run.interruption_scope.is_none() && entry.run.session == *session;
        self.runs_of_scope(scope).chain(self.runs.values().filter(from_elsewhere))
    }

    pub(super) fn runs_of_channel<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a RegistryEntry> {
        self.runs.values().filter(move |entry| match entry.run.interruption_scope.as_deref() {
            Some(scope) => scope.channel == name,
            None => belongs_to_channel(&entry.run.session, name),
        })
    }
}
