//! Runs of one conversation in a chat network: what an interrupting message aborts and waits for, in whichever session it is.

use quell_protocol::api::OnBusy;
use quell_protocol::{InterruptionScope, RunId, SessionKey};

use super::{Entry, Registry, Who};
use crate::run::RunState;

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
        self.runs.values().filter(move |entry| entry.run.scope.as_deref() == Some(scope))
    }
}
