//! What agents do on the other nodes, as these tell. Clients hear of an agent as a whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_kernel::lease::Epoch;
use quell_protocol::api::ComputeStatus;
use quell_protocol::{AgentId, RunId};

use super::{Engine, EngineNotice};

/// The status of an agent, and its runs that are not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentActivity {
    pub status: ComputeStatus,
    pub active: Vec<RunId>,
}

impl AgentActivity {
    fn add(&mut self, other: &Self) {
        self.status = self.status.busier(other.status);
        self.active.extend_from_slice(&other.active);
    }
}

/// Only agents that have runs are kept.
#[derive(Default)]
pub(super) struct PeerAgents(Mutex<HashMap<AgentId, BTreeMap<Epoch, AgentActivity>>>);

impl PeerAgents {
    fn note(&self, peer: Epoch, agent: &AgentId, activity: AgentActivity) {
        let mut agents = self.lock();
        if activity.status != ComputeStatus::Idle {
            agents.entry(agent.clone()).or_default().insert(peer, activity);
        } else if let Some(nodes) = agents.get_mut(agent) {
            nodes.remove(&peer);
            if nodes.is_empty() {
                agents.remove(agent);
            }
        }
    }

    /// Forgets all other nodes. Returns the agents that had runs on those.
    pub(super) fn retain(&self, is_member: impl Fn(Epoch) -> bool) -> Vec<AgentId> {
        let mut agents = self.lock();
        let mut changed = Vec::new();
        agents.retain(|agent, nodes| {
            let before = nodes.len();
            nodes.retain(|epoch, _| is_member(*epoch));
            if nodes.len() < before {
                changed.push(agent.clone());
            }
            !nodes.is_empty()
        });
        changed
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AgentId, BTreeMap<Epoch, AgentActivity>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Adds what an agent does on other nodes to what it does on this one.
    pub fn with_peer_activity(&self, agent: &AgentId, mut activity: AgentActivity) -> AgentActivity {
        if let Some(node) = &self.inner().node
            && let Some(nodes) = node.peer_agents.lock().get(agent)
        {
            nodes.values().for_each(|other| activity.add(other));
        }
        activity
    }

    /// Notes what an agent does on another node, and tells the clients of this one.
    pub(super) fn note_peer_activity(&self, peer: Epoch, agent: &AgentId, activity: AgentActivity) {
        if let Some(node) = &self.inner().node {
            node.peer_agents.note(peer, agent, activity);
            self.inner().runs.publish_agent_again(agent);
        }
    }

    /// Tells the clients of this node about agents that may have had runs on nodes which are gone.
    pub(super) fn forget_peer_activity(&self, is_member: impl Fn(Epoch) -> bool) {
        let Some(node) = &self.inner().node else { return };
        for agent in node.peer_agents.retain(is_member) {
            self.inner().runs.publish_agent_again(&agent);
        }
    }

    /// What all agents do on this node, also those that do nothing: what another node knows of them may be old.
    pub(super) fn agent_notices(&self) -> Vec<EngineNotice> {
        let notice = |agent: &AgentId| {
            let (status, active) = self.inner().runs.agent_state(agent);
            EngineNotice::Agent { agent: agent.clone(), status, active }
        };
        self.inner().services.agents.snapshot().keys().map(notice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(status: ComputeStatus, runs: &[&str]) -> AgentActivity {
        AgentActivity { status, active: runs.iter().map(|run| RunId::parse(*run).unwrap()).collect() }
    }

    #[test]
    fn the_runs_of_a_node_that_is_gone_do_not_count() {
        let (agents, main) = (PeerAgents::default(), AgentId::parse("main").unwrap());
        agents.note(1, &main, activity(ComputeStatus::WaitingLlm, &["a"]));
        agents.note(2, &main, activity(ComputeStatus::Stopping, &["b"]));
        assert_eq!(agents.retain(|epoch| epoch == 2), std::slice::from_ref(&main));
        assert_eq!(agents.lock()[&main], BTreeMap::from([(2, activity(ComputeStatus::Stopping, &["b"]))]));
        agents.note(2, &main, activity(ComputeStatus::Idle, &[]));
        assert!(agents.lock().is_empty());
    }

    #[test]
    fn the_busier_node_tells_the_status() {
        let mut sum = activity(ComputeStatus::Stopping, &["a"]);
        sum.add(&activity(ComputeStatus::WaitingLlm, &["b"]));
        sum.add(&activity(ComputeStatus::Processing, &["c"]));
        assert_eq!(sum, activity(ComputeStatus::WaitingLlm, &["a", "b", "c"]));
    }
}
