//! Replace the configured agents and the models of a running engine in one step.
//!
//! The new agents are built first, outside of every lock. Then one locked step replaces the existing agents. This
//! includes agents created at run time, whose model clients would otherwise call providers that are no longer
//! configured. Runs keep the agents that they have. The ids of new agents are reserved in that step, and the agents are
//! then added like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_kernel::agent_tree::AgentTree;
use quell_llm::Models;
use quell_protocol::AgentId;

use super::{
    Agent, AgentConfig, AgentConfigError, AgentFactory, AgentRegistry, AgentRegistryError, AgentSnapshot, build_agents,
    choose_default_agent,
};

/// Agents that are ready to replace the existing ones.
#[derive(Debug)]
pub struct AgentReloadPlan {
    /// The agents that existed when the plan was made.
    snapshot: Arc<AgentSnapshot>,
    models: Models,
    default_agent: AgentId,
    configured: AgentSnapshot,
    /// Agents that were created at run time, rebuilt.
    created: AgentSnapshot,
}

#[derive(Debug, Default)]
pub struct AgentReloadChanges {
    /// New agents, reserved and still to be added.
    pub added: Vec<Arc<Agent>>,
    /// Agents that are no longer configured. They are removed when they have no runs.
    pub unconfigured: BTreeSet<AgentId>,
    /// Agents that were created at run time and are now replaced by a configured one.
    pub shadowed: BTreeSet<AgentId>,
}

/// The plan is stale, or an agent is being created or deleted at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("agents are being created or deleted at this moment")]
pub struct StaleReloadPlan;

impl AgentRegistry {
    /// Builds the agents of another configuration and of other models. Changes nothing.
    ///
    /// # Errors
    /// [`AgentRegistryError`]: no agent, or the first that cannot be built, possibly one that was created at run time.
    pub fn plan_reload(
        &self,
        models: Models,
        agents: &BTreeMap<AgentId, AgentConfig>,
    ) -> Result<AgentReloadPlan, AgentRegistryError> {
        let default_agent = choose_default_agent(agents)?;
        let factory = AgentFactory { models, ..self.factory().clone() };
        let configured = build_agents(&factory, agents)?;
        let (snapshot, created_before) = {
            let state = self.lock_state();
            let is_configured = |id: &AgentId| {
                state.configured.contains(id) || state.unconfigured.contains(id) || agents.contains_key(id)
            };
            let created = state.snapshot.values().filter(|agent| !is_configured(&agent.id)).cloned();
            (Arc::clone(&state.snapshot), created.collect::<Vec<_>>())
        };
        let mut created = AgentSnapshot::new();
        for agent in created_before {
            created.insert(agent.id.clone(), factory.build(&agent.id, agent.config.clone())?);
        }
        check_tree(&snapshot, [&configured, &created])?;
        Ok(AgentReloadPlan { snapshot, models: factory.models, default_agent, configured, created })
    }

    /// Replaces the existing agents and models by those of a plan.
    ///
    /// # Errors
    /// [`StaleReloadPlan`]; nothing has changed then.
    pub fn apply_reload(&self, plan: &AgentReloadPlan) -> Result<AgentReloadChanges, StaleReloadPlan> {
        let mut state = self.lock_state();
        let is_idle = state.reserved.is_empty() && state.being_removed.is_empty();
        if !is_idle || !Arc::ptr_eq(&state.snapshot, &plan.snapshot) {
            return Err(StaleReloadPlan);
        }
        self.factory().models.replace_providers(&plan.models);
        let mut changes = AgentReloadChanges::default();
        let mut agents = AgentSnapshot::clone(&state.snapshot);
        for (id, agent) in plan.configured.iter().chain(&plan.created) {
            if let Some(before) = agents.get_mut(id) {
                *before = Arc::clone(agent);
            } else {
                changes.added.push(Arc::clone(agent));
                state.reserved.insert(id.clone(), agent.config.parent.clone());
            }
        }
        let before = std::mem::take(&mut state.configured);
        let was_created =
            |id: &&AgentId| agents.contains_key(*id) && !before.contains(*id) && !state.unconfigured.contains(*id);
        changes.shadowed = plan.configured.keys().filter(was_created).cloned().collect();
        state.configured = plan.configured.keys().cloned().collect();
        state.unconfigured.extend(before);
        state.unconfigured.retain(|id| agents.contains_key(id) && !plan.configured.contains_key(id));
        state.unbuildable.retain(|id, _| !plan.configured.contains_key(id));
        changes.unconfigured = state.unconfigured.clone();
        state.replace_agents(agents);
        Ok(changes)
    }

    /// Makes the default agent of a plan the default, after all its agents were added.
    pub fn set_default_agent(&self, plan: &AgentReloadPlan) {
        self.lock_state().default_agent = plan.default_agent.clone();
    }

    /// Agents that are to be removed when they have no runs.
    pub fn unconfigured(&self) -> BTreeSet<AgentId> {
        self.lock_state().unconfigured.clone()
    }
}

/// Checks the resulting tree: agents created at run time may be too deep below the newly configured ones.
fn check_tree(current: &AgentSnapshot, replacements: [&AgentSnapshot; 2]) -> Result<(), AgentConfigError> {
    let all = current.iter().chain(replacements.into_iter().flatten());
    let parents: BTreeMap<&AgentId, Option<&AgentId>> =
        all.map(|(id, agent)| (id, agent.config.parent.as_ref())).collect();
    let tree = AgentTree::new(parents);
    let bad = replacements
        .into_iter()
        .flat_map(AgentSnapshot::keys)
        .find_map(|id| Some((id, tree.check_ancestors(id).err()?)));
    bad.map_or(Ok(()), |(id, bad)| Err(AgentConfigError { agent: id.clone(), problem: bad.to_string() }))
}
