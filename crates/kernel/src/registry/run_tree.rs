//! Limits of sub-runs, ancestry and subtree, and agents barred after a person stopped them.

use std::collections::HashSet;

use quell_protocol::{AgentId, RunId};

use super::{NewRun, RunRegistry};
use crate::admission::SubRunError;
use crate::run::RunState;

/// Limits of the queue of a session, of a run tree, and of the clients of model APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// Maximum number of queued messages of a session.
    pub max_queued: usize,
    /// Maximum depth of sub-runs: 0 forbids sub-runs, 1 allows sub-runs that start none themselves.
    pub max_depth: usize,
    /// Maximum number of sub-runs of one run that are not ended.
    pub max_children: usize,
    /// Maximum number of runs that clients of model APIs have started with one token and that are not ended.
    pub max_client_runs: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { max_queued: 20, max_depth: 3, max_children: 8, max_client_runs: 64 }
    }
}

impl RunRegistry {
    /// Checks whether the parent that a run names may start it.
    pub(super) fn check_sub_run(&self, run: &NewRun) -> Result<(), SubRunError> {
        let Some(parent) = &run.parent else { return Ok(()) };
        if self.get(parent).is_none_or(|entry| entry.state != RunState::Running) {
            return Err(SubRunError::ParentOver);
        }
        let ancestry = self.ancestry(parent);
        if ancestry.len() > self.limits.max_depth {
            return Err(SubRunError::TooDeep { limit: self.limits.max_depth });
        }
        let children = self.children.get(parent).into_iter().flatten();
        if children.filter(|child| self.is_alive(child)).count() >= self.limits.max_children {
            return Err(SubRunError::TooMany { limit: self.limits.max_children });
        }
        if ancestry.iter().any(|id| self.get(id).is_some_and(|entry| entry.barred_agents.contains(&run.agent))) {
            return Err(SubRunError::StoppedByPerson { agent: run.agent.clone() });
        }
        Ok(())
    }

    /// Bars the agents of runs that a person stopped. If an ancestor of a stopped run goes on, no run of its tree may
    /// start that agent again. Otherwise the model could undo the stop.
    pub(super) fn bar_stopped_agents(&mut self, roots: &[RunId], covered: &[RunId]) {
        let covered: HashSet<&RunId> = covered.iter().collect();
        let has_active_ancestor = |id: &&RunId| {
            let mut ancestors = self.ancestry(id).into_iter().skip(1);
            ancestors.any(|ancestor| !covered.contains(&ancestor) && self.is_alive(&ancestor))
        };
        let stopped: Vec<(RunId, AgentId)> = roots
            .iter()
            .filter(has_active_ancestor)
            .filter_map(|id| Some((self.ancestry(id).pop()?, self.get(id)?.run.agent.clone())))
            .collect();
        for (top, agent) in stopped {
            if let Some(entry) = self.runs.get_mut(&top) {
                entry.barred_agents.insert(agent);
            }
        }
    }

    /// A run and all its ancestors, from the run up to the root of its tree.
    fn ancestry(&self, id: &RunId) -> Vec<RunId> {
        let parent = |id: &RunId| self.get(id)?.run.parent.clone();
        std::iter::successors(Some(id.clone()), parent).collect()
    }

    pub(super) fn is_alive(&self, id: &RunId) -> bool {
        self.get(id).is_some_and(|entry| !entry.state.is_ended())
    }

    /// A run and all its descendants, parents before children.
    pub fn subtree(&self, root: &RunId) -> Vec<RunId> {
        let mut found = vec![root.clone()];
        let mut next = 0;
        while let Some(id) = found.get(next) {
            let children = self.children.get(id).cloned().unwrap_or_default();
            found.extend(children);
            next += 1;
        }
        found
    }
}
