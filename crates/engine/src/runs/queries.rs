//! Queries of the run table.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use quell_kernel::RunState;
use quell_kernel::registry::RegistryEntry;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId, SessionKey};

use super::RunTable;
use super::agent_notices::agent_state;
use crate::live_run::{LiveRun, RunProgress};

impl RunTable {
    /// The live run of a run that is not forgotten.
    pub fn live_run(&self, id: &RunId) -> Option<Arc<LiveRun>> {
        self.lock().live_runs.get(id).cloned()
    }

    /// All runs that are not over, in order of acceptance.
    pub fn active_runs(&self) -> Vec<Arc<LiveRun>> {
        let state = self.lock();
        let mut entries: Vec<&RegistryEntry> = state.registry.iter().filter(|entry| !entry.state.is_ended()).collect();
        entries.sort_by_key(|entry| entry.accept_seq);
        entries.into_iter().filter_map(|entry| state.live_runs.get(&entry.run.id).cloned()).collect()
    }

    /// A session's runs that are not over, in order of acceptance.
    pub fn runs_of_session(&self, key: &SessionKey) -> Vec<Arc<LiveRun>> {
        let state = self.lock();
        state.registry.runs_of_session(key).filter_map(|entry| state.live_runs.get(&entry.run.id).cloned()).collect()
    }

    /// Sessions with queued runs that may have waited for this ended run, because they superseded it.
    pub fn queued_sessions_of_scope(&self, ended: &LiveRun) -> Vec<SessionKey> {
        let scope = ended.run.interruption_scope.as_deref();
        scope.map(|scope| self.lock().registry.queued_sessions_of_scope(scope)).unwrap_or_default()
    }

    /// True while a run of this session is running or ending; a queued one does not count.
    pub fn has_working_run(&self, key: &SessionKey) -> bool {
        self.lock().registry.runs_of_session(key).any(|entry| entry.state != RunState::Queued)
    }

    /// Runs of a session that are over, and whose end may not be stored yet.
    pub fn ended_runs_of_session(&self, key: &SessionKey) -> Vec<RunId> {
        let state = self.lock();
        let is_ended =
            |live_run: &&Arc<LiveRun>| live_run.run.session == *key && live_run.progress() == RunProgress::Ended;
        state.live_runs.values().filter(is_ended).map(|live_run| live_run.id().clone()).collect()
    }

    /// Those of these runs that are not in memory.
    pub fn unknown_runs(&self, mut runs: Vec<RunId>) -> Vec<RunId> {
        let state = self.lock();
        runs.retain(|run| !state.live_runs.contains_key(run));
        runs
    }

    /// The compute status of an agent, and its runs that are not over.
    pub fn agent_state(&self, agent: &AgentId) -> (ComputeStatus, Vec<RunId>) {
        agent_state(&self.lock().registry, agent)
    }

    /// Sessions with a run that is not over.
    pub fn active_sessions(&self) -> HashSet<SessionKey> {
        self.lock().registry.sessions().cloned().collect()
    }

    /// Sessions with a turn that the database refused and that will be recorded later.
    pub fn unrecorded_sessions(&self) -> HashSet<SessionKey> {
        self.lock().unrecorded.iter().map(|live_run| live_run.run.session.clone()).collect()
    }

    /// Sessions with a queued run.
    pub fn waiting_sessions(&self) -> BTreeSet<SessionKey> {
        let queued = |entry: &&RegistryEntry| entry.state == RunState::Queued;
        self.lock().registry.iter().filter(queued).map(|entry| entry.run.session.clone()).collect()
    }
}
