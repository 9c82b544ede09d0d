//! Enroll, unenroll and remove agents under the lock of the run table; stop a subtree of agents.
//!
//! Each is one step under that lock, and so is the acceptance of a run. A run accepted before such a step is seen by
//! it; one after it is refused. Lock order: run table, then agent registry.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_kernel::registry::{StopRequest, StopRequester, StopScope};
use quell_protocol::{AgentId, RunId};

use super::{RunTable, StopResult};
use crate::agent::Agent;
use crate::live_run::EngineNotice;

impl RunTable {
    /// Adds an agent whose id was reserved. It exists and takes runs from the same step on, and subscribers are
    /// notified.
    pub fn add_agent(&self, agent: Arc<Agent>) {
        let id = agent.id.clone();
        let mut state = self.lock();
        self.services().agents.add_reserved(agent);
        state.registry.enroll(id.clone());
        self.hub().publish(&EngineNotice::AgentListChanged { agent: id, change: "created".into() });
    }

    /// Stops enrolling runs for the marked agents, unless one of them has runs that are not over.
    ///
    /// # Errors
    /// These runs; nothing has changed then.
    pub fn unenroll(&self, agents: &BTreeSet<AgentId>) -> Result<(), Vec<RunId>> {
        self.lock().registry.unenroll(agents)
    }

    /// Stops enrolling runs for the marked agents, and stops all runs that they have.
    #[must_use]
    pub fn unenroll_and_stop(
        &self,
        agents: &BTreeSet<AgentId>,
        requester: &StopRequester,
        request: &StopRequest,
    ) -> StopResult {
        self.stop_runs(request.level, |registry, now| registry.unenroll_and_stop(agents, requester, request, now))
    }

    /// Cancels the removal of the marked agents: they take runs again.
    pub fn reenroll(&self, agents: &BTreeSet<AgentId>) {
        let mut state = self.lock();
        let registry = &self.services().agents;
        for agent in agents.iter().filter(|agent| registry.get(agent).is_some()) {
            state.registry.enroll(agent.clone());
        }
        registry.cancel_removal(agents);
    }

    /// Removes marked agents whose runs are over, and notifies subscribers.
    pub fn remove_agents(&self, agents: &BTreeSet<AgentId>) {
        let mut state = self.lock();
        self.services().agents.remove_marked(agents);
        state.registry.forget_unenrolled(agents);
        state.published.retain(|agent, _| !agents.contains(agent));
        for agent in agents {
            self.hub().publish(&EngineNotice::AgentListChanged { agent: agent.clone(), change: "deleted".into() });
        }
    }

    /// Stops the runs of an agent and of all agents below it that `requester` may stop, including queued ones. The
    /// subtree is determined in the same step.
    #[must_use]
    pub fn stop_agent_tree(&self, root: &AgentId, requester: &StopRequester, request: &StopRequest) -> StopResult {
        self.stop_runs(request.level, |registry, now| {
            let scope = StopScope::Agents { ids: self.services().agents.subtree(root) };
            registry.stop(&scope, requester, request, now)
        })
    }
}
