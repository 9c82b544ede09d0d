//! Counters of each agent's runs by compute status. Each change of a run updates them, so a query scans no runs.

use std::collections::{BTreeMap, HashMap};

use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId};

use super::{RegistryEntry, RunPhase};
use crate::run::RunState;

/// The runs of one agent that are not ended.
#[derive(Debug, Default)]
struct AgentRunCounters {
    waiting: usize,
    processing: usize,
    stopping: usize,
    /// Keyed by the sequence number of acceptance.
    active: BTreeMap<u64, RunId>,
    /// Rises whenever `active` changes.
    change_count: u64,
}

impl AgentRunCounters {
    fn counter_mut(&mut self, status: ComputeStatus) -> Option<&mut usize> {
        match status {
            ComputeStatus::Idle => None,
            ComputeStatus::WaitingLlm => Some(&mut self.waiting),
            ComputeStatus::Processing => Some(&mut self.processing),
            ComputeStatus::Stopping => Some(&mut self.stopping),
        }
    }
}

/// Counters of all agents that ever had a run and are not forgotten.
#[derive(Debug, Default)]
pub(super) struct RunCounters(HashMap<AgentId, AgentRunCounters>);

impl RunCounters {
    pub(super) fn add(&mut self, entry: &RegistryEntry) {
        let counters = self.0.entry(entry.run.agent.clone()).or_default();
        if counters.active.insert(entry.accept_seq, entry.run.id.clone()).is_none() {
            counters.change_count += 1;
        }
        if let Some(count) = counters.counter_mut(compute_status_of(entry)) {
            *count += 1;
        }
    }

    /// Moves a run from the counter of status `before` to that of its present one. An ended run leaves the active runs.
    pub(super) fn update(&mut self, before: ComputeStatus, entry: &RegistryEntry) {
        let Some(counters) = self.0.get_mut(&entry.run.agent) else { return };
        if let Some(count) = counters.counter_mut(before) {
            *count -= 1;
        }
        if let Some(count) = counters.counter_mut(compute_status_of(entry)) {
            *count += 1;
        }
        if entry.state.is_ended() && counters.active.remove(&entry.accept_seq).is_some() {
            counters.change_count += 1;
        }
    }

    pub(super) fn remove(&mut self, entry: &RegistryEntry) {
        let Some(counters) = self.0.get_mut(&entry.run.agent) else { return };
        if let Some(count) = counters.counter_mut(compute_status_of(entry)) {
            *count -= 1;
        }
        if counters.active.remove(&entry.accept_seq).is_some() {
            counters.change_count += 1;
        }
    }

    /// Forgets an agent that has no active run.
    pub(super) fn remove_agent(&mut self, agent: &AgentId) {
        if self.0.get(agent).is_some_and(|counters| counters.active.is_empty()) {
            self.0.remove(agent);
        }
    }

    /// Waiting if any run waits for the model, else processing, else stopping, else idle.
    pub(super) fn status(&self, agent: &AgentId) -> ComputeStatus {
        match self.0.get(agent) {
            Some(counters) if counters.waiting > 0 => ComputeStatus::WaitingLlm,
            Some(counters) if counters.processing > 0 => ComputeStatus::Processing,
            Some(counters) if counters.stopping > 0 => ComputeStatus::Stopping,
            Some(_) | None => ComputeStatus::Idle,
        }
    }

    /// In order of acceptance.
    pub(super) fn active_runs(&self, agent: &AgentId) -> impl Iterator<Item = &RunId> {
        self.0.get(agent).into_iter().flat_map(|counters| counters.active.values())
    }

    /// Counter that changes whenever the agent's active runs change.
    pub(super) fn change_count(&self, agent: &AgentId) -> u64 {
        self.0.get(agent).map_or(0, |counters| counters.change_count)
    }
}

/// Compute status of one run; idle for a queued or ended one.
pub(super) fn compute_status_of(entry: &RegistryEntry) -> ComputeStatus {
    match (&entry.state, entry.phase) {
        (RunState::Queued | RunState::Ended { .. }, _) => ComputeStatus::Idle,
        (RunState::Running, RunPhase::Waiting) => ComputeStatus::WaitingLlm,
        (RunState::Running, RunPhase::Processing) => ComputeStatus::Processing,
        (RunState::Ending { .. }, _) => ComputeStatus::Stopping,
    }
}
