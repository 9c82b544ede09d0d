//! Which agents accept runs; enrolling and unenrolling.
//!
//! Unenrolling an agent and checking or stopping its runs is one step, so that no run is accepted in between.

use std::collections::BTreeSet;

use quell_protocol::{AgentId, RunId};

use super::{RunRegistry, StopOutcome, StopRequest, StopRequester, StopScope};
use crate::time::Moment;

impl RunRegistry {
    /// Lets an agent accept runs from now on.
    pub fn enroll(&mut self, agent: AgentId) {
        self.enrolled.insert(agent);
    }

    /// Lets these agents accept no more runs, unless one of them has runs that are not ended.
    ///
    /// # Errors
    /// Those runs, by agent and in order of acceptance. Nothing changes then.
    pub fn unenroll(&mut self, agents: &BTreeSet<AgentId>) -> Result<(), Vec<RunId>> {
        let busy: Vec<RunId> = agents.iter().flat_map(|agent| self.runs_of_agent(agent)).cloned().collect();
        if !busy.is_empty() {
            return Err(busy);
        }
        self.enrolled.retain(|agent| !agents.contains(agent));
        Ok(())
    }

    /// Lets these agents accept no more runs, and stops their runs as far as `requester` may. The stop covers every run
    /// accepted before, and no run is accepted after it.
    pub fn unenroll_and_stop(
        &mut self,
        agents: &BTreeSet<AgentId>,
        requester: &StopRequester,
        request: &StopRequest,
        now: Moment,
    ) -> StopOutcome {
        self.enrolled.retain(|agent| !agents.contains(agent));
        self.stop(&StopScope::Agents { ids: agents.clone() }, requester, request, now)
    }

    /// Removes the counters of those agents that are not enrolled and have no active runs.
    pub fn forget_unenrolled(&mut self, agents: &BTreeSet<AgentId>) {
        for agent in agents.iter().filter(|agent| !self.enrolled.contains(*agent)) {
            self.counters.remove_agent(agent);
        }
    }
}
