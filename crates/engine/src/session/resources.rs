//! What a live session owns: agent instances, model clients, MCP endpoint, skills, and stages of the embedding program.
//! A session without overrides owns nothing of this and needs hardly any memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_llm::{ModelHandle, ProviderOverride};
use quell_mcp::SessionEndpoint;
use quell_net::AddressPolicy;
use quell_protocol::hook::SessionFacts;
use quell_protocol::{AgentId, SessionKey};

use super::overrides::SessionOverrides;
use super::prompt_files::PromptFileCache;
use crate::agent::{Agent, AgentConfig, AgentFactory};
use crate::hooks::StageUndo;

#[derive(Debug)]
pub(super) struct SessionResources {
    pub(super) facts: SessionFacts,
    /// Which addresses its endpoints may have by the configuration.
    address_policy: AddressPolicy,
    pub(super) overrides: Option<SessionOverrides>,
    pub(super) endpoint: Option<SessionEndpoint>,
    pub(super) prompt_files: Arc<PromptFileCache>,
    model_clients: Arc<SessionModels>,
    instances: Mutex<Vec<AgentInstance>>,
    stages: Arc<Mutex<Vec<BegunStage>>>,
    /// Idle timeout of the agent of its last run.
    idle_timeout: Mutex<Duration>,
}

#[derive(Debug)]
struct AgentInstance {
    /// The agent from which the instance was built.
    base: Arc<Agent>,
    instance: Arc<Agent>,
}

/// The session's model clients by name: handles on the shared HTTP clients (row C5 in `docs/design/requirements.md`).
#[derive(Debug, Default)]
struct SessionModels {
    provider_override: ProviderOverride,
    resolved: Mutex<ResolvedModels>,
}

/// Cached clients of one generation of the configured providers.
#[derive(Debug, Default)]
struct ResolvedModels {
    generation: u64,
    by_name: HashMap<String, ModelHandle>,
}

#[derive(Debug)]
pub(super) struct BegunStage {
    pub(super) name: String,
    pub(super) undo: Box<dyn StageUndo>,
}

impl SessionResources {
    pub(super) fn new(
        facts: SessionFacts,
        address_policy: AddressPolicy,
        overrides: Option<SessionOverrides>,
        endpoint: Option<SessionEndpoint>,
        idle_timeout: Duration,
    ) -> Self {
        let provider_override = overrides.as_ref().map(|own| own.provider_override(address_policy)).unwrap_or_default();
        let model_clients = Arc::new(SessionModels { provider_override, resolved: Mutex::default() });
        let (prompt_files, instances, stages) = (Arc::default(), Mutex::default(), Arc::default());
        Self {
            facts,
            address_policy,
            overrides,
            endpoint,
            prompt_files,
            model_clients,
            instances,
            stages,
            idle_timeout: Mutex::new(idle_timeout),
        }
    }

    /// The resources with other overrides. Keeps the stages and the skills, and also the model clients if provider and
    /// key stay the same.
    pub(super) fn with_overrides(
        &self,
        facts: SessionFacts,
        overrides: SessionOverrides,
        endpoint: Option<SessionEndpoint>,
    ) -> Self {
        let is_same_provider = self.overrides.as_ref().is_some_and(|before| before.has_same_provider(&overrides));
        let changed = Self::new(facts, self.address_policy, Some(overrides), endpoint, self.idle_timeout());
        Self {
            model_clients: if is_same_provider { Arc::clone(&self.model_clients) } else { changed.model_clients },
            stages: Arc::clone(&self.stages),
            prompt_files: Arc::clone(&self.prompt_files),
            ..changed
        }
    }

    pub(super) fn key(&self) -> &SessionKey {
        &self.facts.key
    }

    /// The instance of an agent with this session's overrides.
    ///
    /// # Errors
    /// Which setting of the session or the agent is invalid.
    pub(super) fn agent_instance(&self, base: &Arc<Agent>, factory: &AgentFactory) -> Result<Arc<Agent>, String> {
        let Some(overrides) = &self.overrides else { return Ok(Arc::clone(base)) };
        overrides.check_workdir(base)?;
        let cached = self
            .lock_instances()
            .iter()
            .find(|known| Arc::ptr_eq(&known.base, base))
            .map(|it| Arc::clone(&it.instance));
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let config = overrides.apply_to(&base.config)?;
        let model = self.model_clients.resolve_client(config.model.first(), factory)?;
        let mut agent = factory.rebuild(base, config, model).map_err(|bad| bad.problem)?;
        if overrides.has_own_endpoints() {
            agent = Arc::new(Agent { own_model: true, ..Agent::clone(&agent) });
        }
        let mut instances = self.lock_instances();
        // Instances of a replaced agent are no longer used.
        instances.retain(|other| other.base.id != base.id);
        instances.push(AgentInstance { base: Arc::clone(base), instance: Arc::clone(&agent) });
        Ok(agent)
    }

    /// The instance of an agent for one message, with another model if the routing rules chose one. A session that
    /// has its own model keeps that.
    ///
    /// # Errors
    /// Which setting of the session, the agent or the model is invalid.
    pub(super) fn routed_agent(
        &self,
        base: &Arc<Agent>,
        factory: &AgentFactory,
        model: Option<&str>,
    ) -> Result<Arc<Agent>, String> {
        let agent = self.agent_instance(base, factory)?;
        let Some(model) = model.filter(|model| !self.has_own_model() && agent.config.model.first() != *model) else {
            return Ok(agent);
        };
        let config = AgentConfig { model: model.into(), ..agent.config.clone() };
        let model = factory.models.resolve(model).map_err(|unknown| unknown.to_string())?;
        factory.rebuild(&agent, config, model).map_err(|bad| bad.problem)
    }

    /// True if the session has a model of its own instead of that of its agent.
    pub(super) fn has_own_model(&self) -> bool {
        self.overrides.as_ref().is_some_and(SessionOverrides::has_own_model)
    }

    pub(super) fn agent_id(&self) -> &AgentId {
        &self.facts.agent
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        *self.idle_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_idle_timeout(&self, idle_timeout: Duration) {
        *self.idle_timeout.lock().unwrap_or_else(PoisonError::into_inner) = idle_timeout;
    }

    pub(super) fn add_stage(&self, stage: BegunStage) {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner).push(stage);
    }

    /// Takes the stages, to be undone in reverse order.
    pub(super) fn take_stages(&self) -> Vec<BegunStage> {
        std::mem::take(&mut self.stages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops its agents, their skills, and its model clients.
    pub(super) fn drop_agents(&self) {
        self.lock_instances().clear();
        self.prompt_files.clear();
        self.model_clients.lock_resolved().by_name.clear();
    }

    fn lock_instances(&self) -> MutexGuard<'_, Vec<AgentInstance>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionModels {
    fn resolve_client(&self, name: &str, factory: &AgentFactory) -> Result<ModelHandle, String> {
        if self.provider_override.is_empty() {
            return factory.models.resolve(name).map_err(|unknown| unknown.to_string());
        }
        let generation = factory.models.generation();
        if let Some(cached) = self.lock_resolved().for_generation(generation).get(name).cloned() {
            return Ok(cached);
        }
        let model =
            factory.models.resolve_with_override(name, &self.provider_override).map_err(|bad| bad.to_string())?;
        self.lock_resolved().for_generation(generation).insert(name.to_owned(), model.clone());
        Ok(model)
    }

    fn lock_resolved(&self) -> MutexGuard<'_, ResolvedModels> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvedModels {
    /// The clients of this generation of providers; those of an earlier one are dropped.
    fn for_generation(&mut self, generation: u64) -> &mut HashMap<String, ModelHandle> {
        if self.generation != generation {
            *self = Self { generation, by_name: HashMap::new() };
        }
        &mut self.by_name
    }
}
