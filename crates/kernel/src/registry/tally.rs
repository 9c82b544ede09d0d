//! What each agent's runs are doing, counted as they change, so that a thousand runs can say so a thousand times.

use std::collections::{BTreeMap, HashMap};

use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId};

use super::{Entry, Phase};
use crate::run::RunState;

/// The runs of one agent that are not over.
#[derive(Debug, Default)]
struct Tally {
    waiting: usize,
    processing: usize,
    stopping: usize,
    /// By their place in the order of acceptance.
    active: BTreeMap<u64, RunId>,
    /// Rises whenever a run comes or goes.
    changes: u64,
}

impl Tally {
    fn count(&mut self, doing: ComputeStatus) -> Option<&mut usize> {
        match doing {
            ComputeStatus::Idle => None,
            ComputeStatus::WaitingLlm => Some(&mut self.waiting),
            ComputeStatus::Processing => Some(&mut self.processing),
            ComputeStatus::Stopping => Some(&mut self.stopping),
        }
    }
}

/// All agents that ever had a run.
#[derive(Debug, Default)]
pub(super) struct Tallies(HashMap<AgentId, Tally>);

impl Tallies {
    /// Counts a new run.
    pub(super) fn add(&mut self, entry: &Entry) {
        let tally = self.0.entry(entry.run.agent.clone()).or_default();
        if tally.active.insert(entry.mark, entry.run.id.clone()).is_none() {
            tally.changes += 1;
        }
        if let Some(count) = tally.count(doing(entry)) {
            *count += 1;
        }
    }

    /// Counts a run from doing `before` to what it does now; one that is over is none of its agent's active runs any more.
    pub(super) fn change(&mut self, before: ComputeStatus, entry: &Entry) {
        let Some(tally) = self.0.get_mut(&entry.run.agent) else { return };
        if let Some(count) = tally.count(before) {
            *count -= 1;
        }
        if let Some(count) = tally.count(doing(entry)) {
            *count += 1;
        }
        if entry.state.is_ended() && tally.active.remove(&entry.mark).is_some() {
            tally.changes += 1;
        }
    }

    /// Counts a run no longer.
    pub(super) fn remove(&mut self, entry: &Entry) {
        let Some(tally) = self.0.get_mut(&entry.run.agent) else { return };
        if let Some(count) = tally.count(doing(entry)) {
            *count -= 1;
        }
        if tally.active.remove(&entry.mark).is_some() {
            tally.changes += 1;
        }
    }

    /// Forgets an agent that has no active run.
    pub(super) fn forget(&mut self, agent: &AgentId) {
        if self.0.get(agent).is_some_and(|tally| tally.active.is_empty()) {
            self.0.remove(agent);
        }
    }

    /// Row B3: waiting if any run waits, else processing, else stopping.
    pub(super) fn status(&self, agent: &AgentId) -> ComputeStatus {
        match self.0.get(agent) {
            Some(tally) if tally.waiting > 0 => ComputeStatus::WaitingLlm,
            Some(tally) if tally.processing > 0 => ComputeStatus::Processing,
            Some(tally) if tally.stopping > 0 => ComputeStatus::Stopping,
            Some(_) | None => ComputeStatus::Idle,
        }
    }

    /// In order of acceptance.
    pub(super) fn active(&self, agent: &AgentId) -> impl Iterator<Item = &RunId> {
        self.0.get(agent).into_iter().flat_map(|tally| tally.active.values())
    }

    /// A number that is another one whenever the agent's active runs are other ones.
    pub(super) fn changes(&self, agent: &AgentId) -> u64 {
        self.0.get(agent).map_or(0, |tally| tally.changes)
    }
}

/// What one run makes its agent do; a queued one and one that is over make it do nothing.
pub(super) fn doing(entry: &Entry) -> ComputeStatus {
    match (&entry.state, entry.phase) {
        (RunState::Queued | RunState::Ended { .. }, _) => ComputeStatus::Idle,
        (RunState::Running, Phase::Waiting) => ComputeStatus::WaitingLlm,
        (RunState::Running, Phase::Processing) => ComputeStatus::Processing,
        (RunState::Ending { .. }, _) => ComputeStatus::Stopping,
    }
}
