//! Replace providers and agents of a running engine (row D5 in `docs/design/requirements.md`). Active runs keep theirs;
//! later runs get the new ones.

use std::collections::BTreeMap;

use quell_llm::{ProviderConfig, ProviderConfigError};
use quell_protocol::AgentId;

use super::Engine;
use crate::agent::{AgentConfig, AgentRegistry, AgentRegistryError, AgentReloadChanges, StaleReloadPlan};

/// How often a stale plan is made again before the caller has to retry.
const MAX_PLAN_ATTEMPTS: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadSummary {
    pub added: Vec<AgentId>,
    /// Agents that are no longer configured, but still have runs, or agents below them that were created at run time.
    /// They are removed later.
    pub pending_removal: Vec<AgentId>,
    /// Agents that were created at run time and are now replaced by a configured one.
    pub shadowed: Vec<AgentId>,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Provider(#[from] ProviderConfigError),
    #[error(transparent)]
    Agents(#[from] AgentRegistryError),
    /// The agents changed at the same time; the caller may retry.
    #[error(transparent)]
    Conflict(#[from] StaleReloadPlan),
}

impl Engine {
    /// Replaces the configured providers and agents. Agents that were created at run time stay, with the new providers.
    /// An agent that is no longer configured is removed as soon as it has no runs, at once or by the maintenance task.
    /// Until then it works as before and takes messages.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub fn reload(
        &self,
        providers: &BTreeMap<String, ProviderConfig>,
        agents: &BTreeMap<AgentId, AgentConfig>,
    ) -> Result<ReloadSummary, ReloadError> {
        let registry = &self.inner().services.agents;
        let models = self.inner().models.with_providers(providers.clone())?;
        let mut attempts = 0;
        let (plan, changes) = loop {
            let plan = registry.plan_reload(models.clone(), agents)?;
            attempts += 1;
            match registry.apply_reload(&plan) {
                Ok(changes) => break (plan, changes),
                Err(stale) if attempts == MAX_PLAN_ATTEMPTS => return Err(stale.into()),
                Err(StaleReloadPlan) => {}
            }
        };
        let AgentReloadChanges { added: newcomers, shadowed, .. } = changes;
        let added = newcomers.iter().map(|agent| agent.id.clone()).collect();
        for agent in newcomers {
            self.inner().runs.add_agent(agent);
        }
        registry.set_default_agent(&plan);
        self.remove_unconfigured_agents();
        let leaving = registry.unconfigured().into_iter().collect();
        Ok(ReloadSummary { added, pending_removal: leaving, shadowed: shadowed.into_iter().collect() })
    }

    /// Removes agents that are no longer configured, if they and all agents below them have no runs.
    pub(super) fn remove_unconfigured_agents(&self) {
        let registry: &AgentRegistry = &self.inner().services.agents;
        let runs = &self.inner().runs;
        let unconfigured = registry.unconfigured();
        for id in &unconfigured {
            // It was removed with an agent above it, or another caller is deleting it.
            let Ok(marked) = registry.mark_for_removal(id) else { continue };
            if !marked.is_subset(&unconfigured) || runs.unenroll(&marked).is_err() {
                registry.cancel_removal(&marked);
                continue;
            }
            runs.remove_agents(&marked);
            tracing::info!(agents = ?marked, "agents that are no longer configured were removed");
        }
    }
}
