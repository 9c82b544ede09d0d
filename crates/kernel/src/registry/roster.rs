//! Which agents take runs. An agent that is to go takes none from the very step on in which its runs are looked for, so that
//! none slips in between.

use std::collections::BTreeSet;

use quell_protocol::{AgentId, RunId};

use super::{Registry, StopAsk, StopScope, Stopped, Who};
use crate::time::Moment;

impl Registry {
    /// From now on this agent takes runs.
    pub fn enroll(&mut self, agent: AgentId) {
        self.roster.insert(agent);
    }

    /// True when this agent takes runs.
    #[must_use]
    pub fn is_enrolled(&self, agent: &AgentId) -> bool {
        self.roster.contains(agent)
    }

    /// From now on these agents take no runs, unless one of them has runs that are not over.
    ///
    /// # Errors
    /// Those runs, agent by agent and in order of acceptance; nothing has changed then.
    pub fn dismiss(&mut self, agents: &BTreeSet<AgentId>) -> Result<(), Vec<RunId>> {
        let busy: Vec<RunId> = agents.iter().flat_map(|agent| self.of_agent(agent)).cloned().collect();
        if !busy.is_empty() {
            return Err(busy);
        }
        self.roster.retain(|agent| !agents.contains(agent));
        Ok(())
    }

    /// From now on these agents take no runs, and those that they have are stopped as far as `who` may: what was let in
    /// before is covered, and nothing is let in behind it.
    pub fn dismiss_by_force(&mut self, agents: &BTreeSet<AgentId>, who: &Who, ask: &StopAsk, now: Moment) -> Stopped {
        self.roster.retain(|agent| !agents.contains(agent));
        self.stop(&StopScope::Agents { ids: agents.clone() }, who, ask, now)
    }

    /// Forgets what was counted of agents that take no runs and have none that is not over. The others stay as they are.
    pub fn strike(&mut self, agents: &BTreeSet<AgentId>) {
        for agent in agents.iter().filter(|agent| !self.roster.contains(*agent)) {
            self.tallies.forget(agent);
        }
    }
}
