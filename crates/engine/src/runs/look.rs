//! Looking: which runs there are, whose and how far.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use quell_kernel::RunState;
use quell_kernel::registry::Entry;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId, SessionKey};

use super::Runs;
use super::tell::agent_state;
use crate::cell::{Cell, Progress};

impl Runs {
    /// The cell of a run that is not forgotten.
    #[must_use]
    pub fn cell(&self, id: &RunId) -> Option<Arc<Cell>> {
        self.lock().cells.get(id).cloned()
    }

    /// Cells of all runs that are not over, in order of acceptance.
    #[must_use]
    pub fn active(&self) -> Vec<Arc<Cell>> {
        let state = self.lock();
        let mut entries: Vec<&Entry> = state.registry.iter().filter(|entry| !entry.state.is_ended()).collect();
        entries.sort_by_key(|entry| entry.mark);
        entries.into_iter().filter_map(|entry| state.cells.get(&entry.run.id).cloned()).collect()
    }

    /// Cells of a session's runs that are not over, in order of acceptance.
    #[must_use]
    pub fn of_session(&self, key: &SessionKey) -> Vec<Arc<Cell>> {
        let state = self.lock();
        state.registry.of_session(key).filter_map(|entry| state.cells.get(&entry.run.id).cloned()).collect()
    }

    /// Sessions in which a run may have waited for this one, which is over: it superseded it there.
    #[must_use]
    pub fn sessions_of_scope(&self, ended: &Cell) -> Vec<SessionKey> {
        let scope = ended.run.scope.as_deref();
        scope.map(|scope| self.lock().registry.sessions_of_scope(scope)).unwrap_or_default()
    }

    /// True while a run of this session is at work or ends; one that waits is not.
    #[must_use]
    pub fn is_at_work(&self, key: &SessionKey) -> bool {
        self.lock().registry.of_session(key).any(|entry| entry.state != RunState::Queued)
    }

    /// Runs of a session that are over, and that the database may not know as such yet.
    #[must_use]
    pub fn over_of_session(&self, key: &SessionKey) -> Vec<RunId> {
        let state = self.lock();
        let over = |cell: &&Arc<Cell>| cell.run.session == *key && cell.progress() == Progress::Ended;
        state.cells.values().filter(over).map(|cell| cell.id().clone()).collect()
    }

    /// Those of these runs that are not in memory.
    #[must_use]
    pub fn unknown_of(&self, mut runs: Vec<RunId>) -> Vec<RunId> {
        let state = self.lock();
        runs.retain(|run| !state.cells.contains_key(run));
        runs
    }

    /// What an agent's runs are doing, and which they are.
    #[must_use]
    pub fn agent(&self, agent: &AgentId) -> (ComputeStatus, Vec<RunId>) {
        agent_state(&self.lock().registry, agent)
    }

    /// Sessions that have a run that is not over.
    #[must_use]
    pub fn sessions(&self) -> HashSet<SessionKey> {
        self.lock().registry.sessions().cloned().collect()
    }

    /// Sessions that have a turn that the database refused and is to take yet.
    #[must_use]
    pub fn unrecorded_sessions(&self) -> HashSet<SessionKey> {
        self.lock().refused.iter().map(|cell| cell.run.session.clone()).collect()
    }

    /// Sessions that have a run waiting.
    #[must_use]
    pub fn waiting_sessions(&self) -> BTreeSet<SessionKey> {
        let queued = |entry: &&Entry| entry.state == RunState::Queued;
        self.lock().registry.iter().filter(queued).map(|entry| entry.run.session.clone()).collect()
    }
}
