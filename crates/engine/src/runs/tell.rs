//! What subscribers are told of agents as their runs come, go and change (row B3).

use std::time::Duration;

use quell_kernel::Registry;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId};

use super::{Runs, State};
use crate::cell::Notice;

/// How long a change of an agent's runs waits for further ones before subscribers are told. A change of its status does not wait.
const TELL_RUNS: Duration = Duration::from_millis(20);

impl Runs {
    /// Publishes what changed in the agents' compute status (row B3).
    pub(super) fn show(&self, state: &mut State) {
        if !self.0.hub.has_subscribers() {
            // What the last subscriber was told says nothing to the next one.
            state.shown.clear();
            return;
        }
        let mut runs_changed = false;
        for agent in self.0.workshop.society.roll().keys() {
            let (status, changes) = (state.registry.compute_status(agent), state.registry.changes_of_agent(agent));
            match state.shown.get(agent) {
                Some((shown, told)) if *shown == status => runs_changed |= *told != changes,
                Some(_) | None => self.tell(state, agent),
            }
        }
        if runs_changed && !state.telling {
            state.telling = true;
            let runs = self.clone();
            self.spawn(async move {
                tokio::time::sleep(TELL_RUNS).await;
                runs.tell_changed();
            });
        }
    }

    /// Tells of the agents whose runs are other ones than subscribers were told.
    fn tell_changed(&self) {
        let mut state = self.lock();
        state.telling = false;
        let stale = |(agent, (_, told)): (&AgentId, &(ComputeStatus, u64))| {
            (*told != state.registry.changes_of_agent(agent)).then(|| agent.clone())
        };
        let agents: Vec<AgentId> = state.shown.iter().filter_map(stale).collect();
        for agent in agents {
            self.tell(&mut state, &agent);
        }
    }

    fn tell(&self, state: &mut State, agent: &AgentId) {
        let (status, active) = agent_state(&state.registry, agent);
        state.shown.insert(agent.clone(), (status, state.registry.changes_of_agent(agent)));
        self.0.hub.publish(&Notice::Agent { agent: agent.clone(), status, active });
    }
}

pub(super) fn agent_state(registry: &Registry, agent: &AgentId) -> (ComputeStatus, Vec<RunId>) {
    (registry.compute_status(agent), registry.of_agent(agent).cloned().collect())
}
