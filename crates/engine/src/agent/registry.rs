//! The agents that exist now, with reservation of new ids and two-step removal, behind one lock.
//!
//! A run keeps the agent that it started with, so agents may be added and removed while runs are active. Each function
//! here is one locked step. Adding and removing take two steps with the database in between: the id of a new agent is
//! reserved first, so that nobody else takes it or removes its parent; an agent that goes is marked first. This module
//! knows no runs.

mod factory;
mod reload;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use quell_kernel::agent_tree::{AgentTree, AgentTreeError};
use quell_protocol::AgentId;

use super::tools::delegation_tool_specs;
use super::{Agent, AgentConfig};
pub use factory::{AgentConfigError, AgentFactory, check_sandbox, expand_home};
use quell_kernel::ToolSpec;
pub use reload::{AgentReloadChanges, AgentReloadPlan, StaleReloadPlan};

/// The ids that no agent can have: `/api/agents/tree` is the tree of all, and plain model calls run as
/// [`MODEL_CALLS`].
pub const RESERVED: [&str; 2] = ["tree", MODEL_CALLS_ID];

const MODEL_CALLS_ID: &str = "model-calls";

/// Stands as the agent of plain model calls. There is no such agent.
pub static MODEL_CALLS: LazyLock<AgentId> = LazyLock::new(|| {
    let Ok(id) = AgentId::parse(MODEL_CALLS_ID) else { unreachable!("a valid agent id") };
    id
});

/// All agents by id, as they were at one moment.
pub type AgentSnapshot = BTreeMap<AgentId, Arc<Agent>>;

/// The agents of one engine. Clones share one registry.
#[derive(Debug, Clone)]
pub struct AgentRegistry(Arc<AgentRegistryInner>);

#[derive(Debug)]
struct AgentRegistryInner {
    factory: AgentFactory,
    state: Mutex<AgentRegistryState>,
}

#[derive(Debug)]
struct AgentRegistryState {
    snapshot: Arc<AgentSnapshot>,
    /// The agent of a run that names none.
    default_agent: AgentId,
    /// Agents of the configuration. They can only be removed by a reload.
    configured: BTreeSet<AgentId>,
    /// Agents that an earlier configuration named. They are removed when they have no runs.
    unconfigured: BTreeSet<AgentId>,
    /// Cached delegation tools by agent. Dropped when an agent is added or removed.
    delegation_tools: BTreeMap<AgentId, Arc<[ToolSpec]>>,
    /// Reserved ids, with the parents of the agents to be added.
    reserved: BTreeMap<AgentId, Option<AgentId>>,
    /// Marked for removal. They are still in the snapshot while their runs are being stopped.
    being_removed: BTreeSet<AgentId>,
    /// In the database, but they cannot be built; with their parents.
    unbuildable: BTreeMap<AgentId, Option<AgentId>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddAgentError {
    /// An agent with this id exists, or is being created.
    #[error("there is an agent {0:?} already; choose another id, or delete that one first")]
    IdTaken(AgentId),
    /// An agent with this id is in the database, although it could not be built at the last start.
    #[error(
        "the agent {0:?} is in the database, but could not be built when the daemon started (its log says why); delete it \
         first, or correct the configuration and start the daemon again"
    )]
    Unbuildable(AgentId),
    /// Its place in the tree of agents is not valid.
    #[error("agent {0:?}: {1}")]
    InvalidParent(AgentId, AgentTreeError),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoveAgentError {
    #[error("there is no agent {0:?}; `quell agents` lists them")]
    Unknown(AgentId),
    /// It or an agent below it is in the configuration.
    #[error("the agent {0:?} is configured; remove [agents.{0}] from quell.toml and start the daemon again")]
    Configured(AgentId),
    /// It or an agent below it is being created or deleted.
    #[error("the agent {0:?} is being created or deleted at this moment; try again")]
    ChangeInProgress(AgentId),
}

/// An agent that was created at run time, from the database.
#[derive(Debug, Clone, PartialEq)]
pub struct RestorableAgent {
    pub id: AgentId,
    /// The error says why it cannot be read.
    pub config: Result<AgentConfig, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentRegistryError {
    #[error("no agent is configured; add [agents.main] with a model")]
    NoAgents,
    #[error(transparent)]
    InvalidAgent(#[from] AgentConfigError),
}

impl AgentRegistry {
    /// Creates the registry with the configured agents. `main`, or else the first one, is the default.
    pub fn new(factory: AgentFactory, configured: &BTreeMap<AgentId, AgentConfig>) -> Result<Self, AgentRegistryError> {
        let default_agent = choose_default_agent(configured)?;
        let agents = build_agents(&factory, configured)?;
        let state = AgentRegistryState {
            delegation_tools: BTreeMap::new(),
            snapshot: Arc::new(agents),
            default_agent,
            configured: configured.keys().cloned().collect(),
            unconfigured: BTreeSet::new(),
            reserved: BTreeMap::new(),
            being_removed: BTreeSet::new(),
            unbuildable: BTreeMap::new(),
        };
        Ok(Self(Arc::new(AgentRegistryInner { factory, state: Mutex::new(state) })))
    }

    /// The workdirs of all agents but this one.
    pub fn other_workdirs(&self, id: &AgentId) -> Vec<PathBuf> {
        let state = self.lock_state();
        state.snapshot.iter().filter(|(other, _)| *other != id).map(|(_, agent)| agent.workdir.clone()).collect()
    }

    /// Restores the agents that were created at run time, parents before children. An agent that cannot be built is
    /// skipped, with all below it. A configured agent with the same id takes precedence. Returns the skipped ones with
    /// the reasons.
    #[must_use]
    pub fn restore_agents(&self, stored: Vec<RestorableAgent>) -> Vec<AgentConfigError> {
        let mut state = self.lock_state();
        let (shadowed, stored): (Vec<RestorableAgent>, Vec<RestorableAgent>) =
            stored.into_iter().partition(|agent| state.configured.contains(&agent.id));
        let problem_text = "an agent of the configuration has the same id and is used; this one stays in the database";
        let mut rejected: Vec<AgentConfigError> = shadowed
            .into_iter()
            .map(|agent| AgentConfigError { agent: agent.id, problem: problem_text.to_owned() })
            .collect();
        let parent_of = |agent: &RestorableAgent| agent.config.as_ref().ok().and_then(|config| config.parent.clone());
        let parents: BTreeMap<AgentId, Option<AgentId>> =
            stored.iter().map(|agent| (agent.id.clone(), parent_of(agent))).collect();
        let mut pending: BTreeMap<AgentId, Result<AgentConfig, String>> =
            stored.into_iter().map(|agent| (agent.id, agent.config)).collect();
        let mut agents = AgentSnapshot::clone(&state.snapshot);
        for id in sort_parents_first(&parents) {
            let Some(config) = pending.remove(&id) else { continue };
            let problem = config.and_then(|config| {
                if let Some(parent) = config.parent.as_ref().filter(|parent| !agents.contains_key(*parent)) {
                    return Err(AgentTreeError::Unknown(parent.clone()).to_string());
                }
                let agent = self.0.factory.build(&id, config).map_err(|bad| bad.problem)?;
                agents.insert(id.clone(), agent);
                Ok(())
            });
            if let Err(problem) = problem {
                state.unbuildable.insert(id.clone(), parents.get(&id).cloned().flatten());
                rejected.push(AgentConfigError { agent: id, problem });
            }
        }
        state.replace_agents(agents);
        rejected
    }

    pub fn get(&self, id: &AgentId) -> Option<Arc<Agent>> {
        self.lock_state().snapshot.get(id).cloned()
    }

    /// The agent of a run that names none. It always exists.
    pub fn default_agent(&self) -> AgentId {
        self.lock_state().default_agent.clone()
    }

    /// The agents that were created at run time.
    pub fn created(&self) -> Vec<AgentId> {
        let state = self.lock_state();
        let is_created = |id: &&AgentId| !state.configured.contains(*id) && !state.unconfigured.contains(*id);
        state.snapshot.keys().filter(is_created).cloned().collect()
    }

    pub fn snapshot(&self) -> Arc<AgentSnapshot> {
        Arc::clone(&self.lock_state().snapshot)
    }

    /// An existing agent and all below it; empty if there is no such agent.
    pub fn subtree(&self, root: &AgentId) -> BTreeSet<AgentId> {
        let snapshot = self.snapshot();
        build_agent_tree(&snapshot).subtree(root).into_iter().cloned().collect()
    }

    /// The delegation tools of an agent, with the agents to which it may delegate now.
    pub fn delegation_tools(&self, agent: &Agent) -> Arc<[ToolSpec]> {
        let mut state = self.lock_state();
        let snapshot = Arc::clone(&state.snapshot);
        let is_current = snapshot.get(&agent.id).is_some_and(|now| now.config.delegates == agent.config.delegates);
        if !is_current {
            // Its configuration was changed since the run began.
            return delegation_tool_specs(&snapshot, agent);
        }
        let cached =
            state.delegation_tools.entry(agent.id.clone()).or_insert_with(|| delegation_tool_specs(&snapshot, agent));
        Arc::clone(cached)
    }

    pub fn factory(&self) -> &AgentFactory {
        &self.0.factory
    }

    /// Reserves the id of a new agent, and its place below its parent. [`AgentRegistry::add_reserved`] adds the agent,
    /// or [`AgentRegistry::release_reservation`] gives the reservation up.
    ///
    /// # Errors
    /// [`AddAgentError`]; nothing has changed then.
    pub fn reserve(&self, id: &AgentId, parent: Option<&AgentId>) -> Result<(), AddAgentError> {
        let mut state = self.lock_state();
        if state.unbuildable.contains_key(id) {
            return Err(AddAgentError::Unbuildable(id.clone()));
        }
        if state.snapshot.contains_key(id) || state.reserved.contains_key(id) {
            return Err(AddAgentError::IdTaken(id.clone()));
        }
        let present = state.snapshot.values().filter(|other| !state.being_removed.contains(&other.id));
        let parents = present.map(|other| (&other.id, other.config.parent.as_ref()));
        AgentTree::new(parents.chain([(id, parent)]))
            .check_ancestors(id)
            .map_err(|bad| AddAgentError::InvalidParent(id.clone(), bad))?;
        state.reserved.insert(id.clone(), parent.cloned());
        Ok(())
    }

    pub fn add_reserved(&self, agent: Arc<Agent>) {
        let mut state = self.lock_state();
        state.reserved.remove(&agent.id);
        let mut agents = AgentSnapshot::clone(&state.snapshot);
        agents.insert(agent.id.clone(), agent);
        state.replace_agents(agents);
    }

    pub fn release_reservation(&self, id: &AgentId) {
        self.lock_state().reserved.remove(id);
    }

    /// Marks an agent and all agents below it for removal, including those that could not be built, and returns them.
    /// No agent can be added below them until [`AgentRegistry::remove_marked`] or [`AgentRegistry::cancel_removal`].
    ///
    /// # Errors
    /// [`RemoveAgentError`]; nothing has changed then.
    pub fn mark_for_removal(&self, root: &AgentId) -> Result<BTreeSet<AgentId>, RemoveAgentError> {
        let mut state = self.lock_state();
        let not_built = state.unbuildable.iter().chain(&state.reserved).map(|(id, parent)| (id, parent.as_ref()));
        let present = state.snapshot.values().map(|agent| (&agent.id, agent.config.parent.as_ref()));
        let marked: BTreeSet<AgentId> =
            AgentTree::new(present.chain(not_built)).subtree(root).into_iter().cloned().collect();
        if marked.is_empty() {
            return Err(RemoveAgentError::Unknown(root.clone()));
        }
        if let Some(id) = marked.iter().find(|id| state.configured.contains(*id)) {
            return Err(RemoveAgentError::Configured(id.clone()));
        }
        let is_changing = |id: &&AgentId| state.reserved.contains_key(*id) || state.being_removed.contains(*id);
        if let Some(id) = marked.iter().find(is_changing) {
            return Err(RemoveAgentError::ChangeInProgress(id.clone()));
        }
        state.being_removed.extend(marked.iter().cloned());
        Ok(marked)
    }

    pub fn cancel_removal(&self, ids: &BTreeSet<AgentId>) {
        self.lock_state().being_removed.retain(|id| !ids.contains(id));
    }

    pub fn remove_marked(&self, ids: &BTreeSet<AgentId>) {
        let mut state = self.lock_state();
        state.being_removed.retain(|id| !ids.contains(id));
        state.unbuildable.retain(|id, _| !ids.contains(id));
        state.unconfigured.retain(|id| !ids.contains(id));
        let mut agents = AgentSnapshot::clone(&state.snapshot);
        agents.retain(|id, _| !ids.contains(id));
        state.replace_agents(agents);
    }

    fn lock_state(&self) -> MutexGuard<'_, AgentRegistryState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentRegistryState {
    /// Replaces all agents, and drops the cached delegation tools.
    fn replace_agents(&mut self, agents: AgentSnapshot) {
        self.delegation_tools.clear();
        self.snapshot = Arc::new(agents);
    }
}

fn choose_default_agent(configured: &BTreeMap<AgentId, AgentConfig>) -> Result<AgentId, AgentRegistryError> {
    let main = configured.keys().find(|id| id.as_str() == "main");
    main.or_else(|| configured.keys().next()).cloned().ok_or(AgentRegistryError::NoAgents)
}

/// Builds the agents of a configuration, and checks that they form trees.
fn build_agents(
    factory: &AgentFactory,
    configured: &BTreeMap<AgentId, AgentConfig>,
) -> Result<AgentSnapshot, AgentConfigError> {
    let tree = AgentTree::new(configured.iter().map(|(id, config)| (id, config.parent.as_ref())));
    let mut agents = AgentSnapshot::new();
    for (id, config) in configured {
        tree.check_ancestors(id).map_err(|bad| AgentConfigError { agent: id.clone(), problem: bad.to_string() })?;
        agents.insert(id.clone(), factory.build(id, config.clone())?);
    }
    Ok(agents)
}

/// The tree of all agents of a snapshot.
pub fn build_agent_tree(snapshot: &AgentSnapshot) -> AgentTree<'_> {
    AgentTree::new(snapshot.values().map(|agent| (&agent.id, agent.config.parent.as_ref())))
}

/// Sorts the agents so that each comes after its parent if that is one of them. Those in a circle come last.
fn sort_parents_first(parents: &BTreeMap<AgentId, Option<AgentId>>) -> Vec<AgentId> {
    let tree = AgentTree::new(parents.iter().map(|(id, parent)| (id, parent.as_ref())));
    let from_roots = tree.roots().flat_map(|root| tree.subtree(root));
    from_roots.chain(parents.keys()).cloned().collect()
}

#[cfg(test)]
mod tests;
