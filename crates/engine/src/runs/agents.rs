//! Agents that come and go while runs are at work, and the stop of a whole subtree of them.
//!
//! Each is one step under the registry's lock, and so is the acceptance of a run: it is before such a step and seen by it, or
//! after it and refused. Lock order: registry, then society.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_kernel::registry::{StopAsk, StopScope, Who};
use quell_protocol::{AgentId, RunId};

use super::{Runs, Stop};
use crate::agent::Agent;
use crate::cell::Notice;

impl Runs {
    /// Takes in an agent that was claimed: it exists and takes runs from the same step on, and subscribers learn it.
    pub fn take_in(&self, agent: Arc<Agent>) {
        let id = agent.id.clone();
        let mut state = self.lock();
        self.workshop().society.join(agent);
        state.registry.enroll(id.clone());
        self.hub().publish(&Notice::Society { agent: id, change: "created" });
    }

    /// Marked agents take no more runs, unless one of them has runs that are not over.
    ///
    /// # Errors
    /// Those runs; nothing has changed then.
    pub fn dismiss(&self, agents: &BTreeSet<AgentId>) -> Result<(), Vec<RunId>> {
        self.lock().registry.dismiss(agents)
    }

    /// Marked agents take no more runs, and all that they have is stopped.
    #[must_use]
    pub fn dismiss_by_force(&self, agents: &BTreeSet<AgentId>, who: &Who, ask: &StopAsk) -> Stop {
        let requested = self.now();
        let mut state = self.lock();
        let stopped = state.registry.dismiss_by_force(agents, who, ask, requested);
        let mut stop = self.carry_out(&mut state, stopped, requested);
        self.end_processes(&mut stop, ask.push, |_| false);
        stop
    }

    /// Marked agents stay after all and take runs again.
    pub fn reinstate(&self, agents: &BTreeSet<AgentId>) {
        let mut state = self.lock();
        let society = &self.workshop().society;
        for agent in agents.iter().filter(|agent| society.get(agent).is_some()) {
            state.registry.enroll(agent.clone());
        }
        society.retain(agents);
    }

    /// Lets marked agents go whose runs are over; subscribers learn it.
    pub fn let_go(&self, agents: &BTreeSet<AgentId>) {
        let mut state = self.lock();
        self.workshop().society.let_go(agents);
        state.registry.strike(agents);
        state.shown.retain(|agent, _| !agents.contains(agent));
        for agent in agents {
            self.hub().publish(&Notice::Society { agent: agent.clone(), change: "deleted" });
        }
    }

    /// Stops all runs of an agent and of all agents below it that `who` may stop, queued ones included. Who stands below it is
    /// decided in the same step.
    #[must_use]
    pub fn stop_tree(&self, root: &AgentId, who: &Who, ask: &StopAsk) -> Stop {
        let requested = self.now();
        let mut state = self.lock();
        let scope = StopScope::Agents { ids: self.workshop().society.below(root) };
        let stopped = state.registry.stop(&scope, who, ask, requested);
        let mut stop = self.carry_out(&mut state, stopped, requested);
        self.end_processes(&mut stop, ask.push, |_| false);
        stop
    }
}
