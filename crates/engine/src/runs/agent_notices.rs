//! Publish changes of agents' status and run lists to subscribers (row B3 in `docs/design/requirements.md`).

use std::time::Duration;

use quell_kernel::RunRegistry;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId};

use super::{RunTable, RunTableState};
use crate::live_run::EngineNotice;

/// How long changes of an agent's run list are collected before they are published. A change of the status is published
/// at once.
const PUBLISH_DELAY: Duration = Duration::from_millis(20);

impl RunTable {
    /// Publishes status changes now, and schedules the changed run lists.
    pub(super) fn publish_agent_changes(&self, state: &mut RunTableState) {
        if !self.0.hub.has_readers() {
            // A new subscriber does not know what earlier ones were told.
            state.published.clear();
            return;
        }
        let mut runs_changed = false;
        for agent in self.0.services.agents.snapshot().keys() {
            let (status, changes) = (state.registry.compute_status(agent), state.registry.agent_change_count(agent));
            match state.published.get(agent) {
                Some((published, version)) if *published == status => runs_changed |= *version != changes,
                Some(_) | None => self.publish_agent(state, agent),
            }
        }
        if runs_changed && !state.is_publish_scheduled {
            state.is_publish_scheduled = true;
            let runs = self.clone();
            self.spawn(async move {
                tokio::time::sleep(PUBLISH_DELAY).await;
                runs.publish_changed_runs();
            });
        }
    }

    /// Publishes the agents whose run lists differ from the published ones.
    fn publish_changed_runs(&self) {
        let mut state = self.lock();
        state.is_publish_scheduled = false;
        let changed = |(agent, (_, version)): (&AgentId, &(ComputeStatus, u64))| {
            (*version != state.registry.agent_change_count(agent)).then(|| agent.clone())
        };
        let agents: Vec<AgentId> = state.published.iter().filter_map(changed).collect();
        for agent in agents {
            self.publish_agent(&mut state, &agent);
        }
    }

    fn publish_agent(&self, state: &mut RunTableState, agent: &AgentId) {
        let (status, active) = agent_state(&state.registry, agent);
        state.published.insert(agent.clone(), (status, state.registry.agent_change_count(agent)));
        self.0.hub.publish(&EngineNotice::Agent { agent: agent.clone(), status, active });
    }
}

impl RunTable {
    /// Tells the clients of this node about an agent whose work on another node has changed.
    pub(crate) fn publish_agent_again(&self, agent: &AgentId) {
        // Locked, so that no older state follows a newer one.
        let state = self.lock();
        let (status, active) = agent_state(&state.registry, agent);
        self.0.hub.publish_foreign(&EngineNotice::Agent { agent: agent.clone(), status, active });
    }
}

pub(super) fn agent_state(registry: &RunRegistry, agent: &AgentId) -> (ComputeStatus, Vec<RunId>) {
    (registry.compute_status(agent), registry.runs_of_agent(agent).cloned().collect())
}
