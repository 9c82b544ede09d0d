//! What a live session has: its own instances of agents, its model clients, its MCP endpoint, the skills that were read for it,
//! and the stages that a program around the engine added to its making. A session that says nothing itself has nothing of its
//! own and costs next to nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_protocol::hook::SessionFacts;
use quell_protocol::{AgentId, SessionKey};

use super::own::Own;
use super::skills::Shelves;
use crate::address::AddressPolicy;
use crate::agent::{Agent, AgentConfig, Materials};
use crate::hooks::Undo;
use crate::llm::{Model, OwnAccess};
use crate::mcp::Endpoint;

/// What one live session has.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) facts: SessionFacts,
    /// Where the configuration lets its endpoints be.
    reach: AddressPolicy,
    pub(super) own: Option<Own>,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) shelves: Arc<Shelves>,
    models: Arc<OwnModels>,
    instances: Mutex<Vec<Instance>>,
    stages: Arc<Mutex<Vec<Begun>>>,
    /// How long it may be idle; the agent of its last run says so.
    idle: Mutex<Duration>,
}

/// An agent as this session works with it.
#[derive(Debug)]
struct Instance {
    /// The agent that it was made of.
    base: Arc<Agent>,
    own: Arc<Agent>,
}

/// The session's model clients by name: handles on the shared HTTP clients (row C5).
#[derive(Debug, Default)]
struct OwnModels {
    access: OwnAccess,
    resolved: Mutex<Resolved>,
}

/// Clients, as long as the providers that they call are those of the configuration.
#[derive(Debug, Default)]
struct Resolved {
    generation: u64,
    by_name: HashMap<String, Model>,
}

/// A stage that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) name: String,
    pub(super) undo: Box<dyn Undo>,
}

impl Body {
    /// What a session has that says this itself.
    pub(super) fn new(
        (facts, reach): (SessionFacts, AddressPolicy),
        own: Option<Own>,
        endpoint: Option<Endpoint>,
        idle: Duration,
    ) -> Self {
        let access = own.as_ref().map(|own| own.access(reach)).unwrap_or_default();
        let models = Arc::new(OwnModels { access, resolved: Mutex::default() });
        let (shelves, instances, stages) = (Arc::default(), Mutex::default(), Arc::default());
        Self { facts, reach, own, endpoint, shelves, models, instances, stages, idle: Mutex::new(idle) }
    }

    /// What the session has from now on that says this itself from now on. The stages go over to it, the skills as they were
    /// read, and the model clients if they reach the same provider with the same key.
    pub(super) fn changed(&self, facts: SessionFacts, own: Own, endpoint: Option<Endpoint>) -> Self {
        let calls_the_same = self.own.as_ref().is_some_and(|before| before.calls_as(&own));
        let changed = Self::new((facts, self.reach), Some(own), endpoint, self.idle());
        Self {
            models: if calls_the_same { Arc::clone(&self.models) } else { changed.models },
            stages: Arc::clone(&self.stages),
            shelves: Arc::clone(&self.shelves),
            ..changed
        }
    }

    pub(super) fn key(&self) -> &SessionKey {
        &self.facts.key
    }

    /// An agent as this session works with it.
    ///
    /// # Errors
    /// What is wrong with the session's settings, or the agent's.
    pub(super) fn agent(&self, base: &Arc<Agent>, materials: &Materials) -> Result<Arc<Agent>, String> {
        let Some(own) = &self.own else { return Ok(Arc::clone(base)) };
        let known = self.instances().iter().find(|known| Arc::ptr_eq(&known.base, base)).map(|it| Arc::clone(&it.own));
        if let Some(known) = known {
            return Ok(known);
        }
        let config = own.over(&base.config)?;
        let model = self.models.client(&config.model, materials)?;
        let mut agent = materials.build_over(base, config, model).map_err(|bad| bad.problem)?;
        if own.brings_endpoints() {
            agent = Arc::new(Agent { own_model: true, ..Agent::clone(&agent) });
        }
        let mut instances = self.instances();
        // One that was made of an agent that has been replaced since is of no use any more.
        instances.retain(|other| other.base.id != base.id);
        instances.push(Instance { base: Arc::clone(base), own: Arc::clone(&agent) });
        Ok(agent)
    }

    /// An agent as this session works with it for one message, which another model may answer: a session that chose its model
    /// itself keeps that.
    ///
    /// # Errors
    /// What is wrong with the session's settings, the agent's, or that model.
    pub(super) fn routed(
        &self,
        base: &Arc<Agent>,
        materials: &Materials,
        model: Option<&str>,
    ) -> Result<Arc<Agent>, String> {
        let agent = self.agent(base, materials)?;
        let chosen = self.own.as_ref().is_some_and(Own::chose_a_model);
        let Some(model) = model.filter(|model| !chosen && agent.config.model != **model) else { return Ok(agent) };
        let config = AgentConfig { model: model.to_owned(), ..agent.config.clone() };
        let model = materials.models.resolve(model).map_err(|unknown| unknown.to_string())?;
        materials.build_over(&agent, config, model).map_err(|bad| bad.problem)
    }

    /// The agent that it was set up with.
    pub(super) fn set_up_for(&self) -> &AgentId {
        &self.facts.agent
    }

    pub(super) fn idle(&self) -> Duration {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_idle(&self, idle: Duration) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = idle;
    }

    pub(super) fn add_stage(&self, begun: Begun) {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner).push(begun);
    }

    /// Gives its stages away, to be taken back in the reverse order.
    pub(super) fn take_stages(&self) -> Vec<Begun> {
        std::mem::take(&mut self.stages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Drops its agents with what it tells them of their skills, and its model clients.
    pub(super) fn drop_agents(&self) {
        self.instances().clear();
        self.shelves.forget();
        self.models.resolved().by_name.clear();
    }

    fn instances(&self) -> MutexGuard<'_, Vec<Instance>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnModels {
    fn client(&self, name: &str, materials: &Materials) -> Result<Model, String> {
        if self.access.is_empty() {
            return materials.models.resolve(name).map_err(|unknown| unknown.to_string());
        }
        let generation = materials.models.generation();
        if let Some(known) = self.resolved().of(generation).get(name).cloned() {
            return Ok(known);
        }
        let model = materials.models.resolve_with(name, &self.access).map_err(|bad| bad.to_string())?;
        self.resolved().of(generation).insert(name.to_owned(), model.clone());
        Ok(model)
    }

    fn resolved(&self) -> MutexGuard<'_, Resolved> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resolved {
    /// The clients of these providers; those of others are gone.
    fn of(&mut self, generation: u64) -> &mut HashMap<String, Model> {
        if self.generation != generation {
            *self = Self { generation, by_name: HashMap::new() };
        }
        &mut self.by_name
    }
}
