//! Runs that runs start: who may start one, who stands below whom, and what a person's stop forbids for the rest of a turn.

use std::collections::HashSet;

use quell_protocol::{AgentId, RunId};

use super::{NewRun, Registry};
use crate::run::RunState;

/// How many runs may wait, and how far a tree of runs may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Messages that may wait in one session.
    pub queued: usize,
    /// Sub-runs below each other: 0 forbids sub-runs, 1 lets a message's run start some that start none.
    pub depth: usize,
    /// Sub-runs of one run that are not over.
    pub children: usize,
}

/// Why a run may not start another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBorn {
    /// The run that asked for a sub-run is not at work any more.
    #[error("the run that asked for it is over")]
    ParentOver,
    /// The tree of runs is as deep as it may be.
    #[error("sub-runs may stand {limit} deep, and this one would stand deeper; do the work yourself")]
    TooDeep {
        /// How deep it may be.
        limit: usize,
    },
    /// The run has as many sub-runs as it may.
    #[error("{limit} sub-runs are at work already, which is the limit; wait for one of them to end")]
    TooMany {
        /// How many it may have.
        limit: usize,
    },
    /// A person stopped a sub-run of this agent in this turn.
    #[error("a person stopped the agent {agent:?} in this turn; do not start it again, go on without it or say so")]
    StoppedByPerson {
        /// The agent.
        agent: AgentId,
    },
}

impl Default for Bounds {
    fn default() -> Self {
        Self { queued: 20, depth: 3, children: 8 }
    }
}

impl Registry {
    /// Whether a run may be started by the run that it names as its parent.
    pub(super) fn may_be_born(&self, run: &NewRun) -> Result<(), NotBorn> {
        let Some(parent) = &run.parent else { return Ok(()) };
        if self.get(parent).is_none_or(|entry| entry.state != RunState::Running) {
            return Err(NotBorn::ParentOver);
        }
        let line = self.ancestry(parent);
        if line.len() > self.bounds.depth {
            return Err(NotBorn::TooDeep { limit: self.bounds.depth });
        }
        let children = self.children.get(parent).into_iter().flatten();
        if children.filter(|child| self.is_alive(child)).count() >= self.bounds.children {
            return Err(NotBorn::TooMany { limit: self.bounds.children });
        }
        if line.iter().any(|id| self.get(id).is_some_and(|entry| entry.barred.contains(&run.agent))) {
            return Err(NotBorn::StoppedByPerson { agent: run.agent.clone() });
        }
        Ok(())
    }

    /// A person stopped these runs. Where one above them goes on, nobody of its tree starts that agent again: the
    /// model would only undo the stop.
    pub(super) fn bar(&mut self, roots: &[RunId], covered: &[RunId]) {
        let covered: HashSet<&RunId> = covered.iter().collect();
        let child_of_another = |id: &&RunId| {
            let mut above = self.ancestry(id).into_iter().skip(1);
            above.any(|ancestor| !covered.contains(&ancestor) && self.is_alive(&ancestor))
        };
        let stopped: Vec<(RunId, AgentId)> = roots
            .iter()
            .filter(child_of_another)
            .filter_map(|id| Some((self.ancestry(id).pop()?, self.get(id)?.run.agent.clone())))
            .collect();
        for (top, agent) in stopped {
            if let Some(entry) = self.runs.get_mut(&top) {
                entry.barred.insert(agent);
            }
        }
    }

    /// A run, its parent, that one's parent, and so on to the one that no run started.
    fn ancestry(&self, id: &RunId) -> Vec<RunId> {
        let parent = |id: &RunId| self.get(id)?.run.parent.clone();
        std::iter::successors(Some(id.clone()), parent).collect()
    }

    pub(super) fn is_alive(&self, id: &RunId) -> bool {
        self.get(id).is_some_and(|entry| !entry.state.is_ended())
    }

    /// A run and all its descendants, parents before children.
    #[must_use]
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
