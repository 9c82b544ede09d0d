//! Create, delete, show and stop agents at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_kernel::daily_spend::{cost_of, total_tokens};
use quell_kernel::registry::{AgentRunFilter, StopRequest, StopScope};
use quell_protocol::agents::{AgentNode, AgentView, AgentsDeleted, NewAgent, Spend};
use quell_protocol::api::{AgentAbortAnswer, AgentRow};
use quell_protocol::audit::Action;
use quell_protocol::{AgentId, ErrorCode, RunId};
use quell_store::{Store, StoreError, StoredAgent};
use serde_json::{Map, Value};

use super::{AuditAction, Caller, Engine, StopResult};
use crate::agent::{
    AddAgentError, Agent, AgentConfig, AgentConfigError, AgentRegistry, RESERVED, RemoveAgentError, RestorableAgent,
    build_agent_tree,
};
use crate::schedules::ScheduleStopOrigin;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentRemoval {
    /// Fails if it or an agent below it has runs that are not over.
    IfIdle,
    /// Its runs and those of all agents below it are stopped first.
    Force(StopRequest),
}

/// Why an agent was not created or not deleted. Nothing has changed then, except that a forced deletion may have
/// stopped runs.
#[derive(Debug, thiserror::Error)]
pub enum AgentChangeError {
    /// The id has a meaning of its own in the API.
    #[error("{0:?} cannot be the id of an agent, because it has a meaning of its own; choose another")]
    Reserved(AgentId),
    /// The configuration is invalid, or the agent cannot be built from it.
    #[error(transparent)]
    InvalidAgent(#[from] AgentConfigError),
    #[error(transparent)]
    CannotAdd(#[from] AddAgentError),
    #[error(transparent)]
    CannotRemove(#[from] RemoveAgentError),
    /// It or an agent below it has runs that are not over.
    #[error("the agent {agent:?} or one below it has runs that are not over: {}; stop them first, or delete it with ?force", join_run_ids(.runs))]
    Busy { agent: AgentId, runs: Vec<RunId> },
    #[error("the daemon is shutting down; ask again after its restart")]
    Closed,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AgentChangeError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Reserved(_) | Self::InvalidAgent(_) | Self::CannotAdd(AddAgentError::InvalidParent(..)) => {
                ErrorCode::InvalidRequest
            }
            Self::CannotAdd(AddAgentError::IdTaken(_) | AddAgentError::Unbuildable(_)) => ErrorCode::Conflict,
            Self::CannotRemove(RemoveAgentError::Unknown(_)) => ErrorCode::AgentNotFound,
            Self::CannotRemove(RemoveAgentError::Configured(_) | RemoveAgentError::ChangeInProgress(_)) => {
                ErrorCode::Conflict
            }
            Self::Busy { .. } => ErrorCode::AgentBusy,
            Self::Closed | Self::Store(StoreError::Closed) => ErrorCode::ShuttingDown,
            Self::Store(_) => ErrorCode::StoreUnavailable,
        }
    }
}

impl Engine {
    /// Creates an agent. When this returns, the agent is durable and takes runs.
    ///
    /// # Errors
    /// [`AgentChangeError`]; nothing was created then, or the agent existed before.
    ///
    /// # Cancel safety
    /// Safe: once its id is reserved, the creation goes on in a task of the engine.
    pub async fn create_agent(&self, caller: &Caller, request: NewAgent) -> Result<AgentRow, AgentChangeError> {
        if RESERVED.contains(&request.id.as_str()) {
            return Err(AgentChangeError::Reserved(request.id));
        }
        let config =
            parse_agent_config(&request).map_err(|problem| AgentConfigError { agent: request.id.clone(), problem })?;
        let (id, engine, requester) = (request.id.clone(), self.clone(), caller.clone());
        self.run_agent_change(async move { engine.add_agent(&requester, &request.id, config).await }).await?;
        self.find_agent(&id).ok_or(AgentChangeError::CannotRemove(RemoveAgentError::Unknown(id)))
    }

    async fn add_agent(&self, caller: &Caller, id: &AgentId, config: AgentConfig) -> Result<(), AgentChangeError> {
        // Before it is built: a refused agent leaves no directory behind.
        self.agent_registry().reserve(id, config.parent.as_ref())?;
        let store_agent = async {
            let agent = self.agent_registry().factory().build(id, config)?;
            self.inner().store.agents().create(self.to_stored_agent(caller, &agent)).await?;
            Ok::<_, AgentChangeError>(agent)
        };
        let agent = store_agent.await.inspect_err(|_| self.agent_registry().release_reservation(id))?;
        self.inner().runs.add_agent(agent);
        tracing::info!(agent = %id, principal = %caller.principal, "agent created");
        self.audit(caller, AuditAction::on_target(Action::CreateAgent, "agent", id.as_str()));
        Ok(())
    }

    fn to_stored_agent(&self, caller: &Caller, agent: &Agent) -> StoredAgent {
        StoredAgent {
            id: agent.id.clone(),
            config: serde_json::to_string(&agent.config).unwrap_or_default(),
            created_at: self.inner().clock.rfc3339(self.inner().clock.now()),
            created_by: caller.principal.clone(),
        }
    }

    /// Deletes an agent that was created at run time, with all agents below it. None of them takes runs from the moment
    /// on when their runs are checked or stopped. They are removed when all these runs are over.
    ///
    /// # Errors
    /// [`AgentChangeError`]; all of them stay then, and take runs again.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn delete_agent(
        &self,
        caller: &Caller,
        id: &AgentId,
        removal: AgentRemoval,
    ) -> Result<AgentsDeleted, AgentChangeError> {
        let (engine, requester, root) = (self.clone(), caller.clone(), id.clone());
        self.run_agent_change(async move { engine.remove_agents(&requester, &root, removal).await }).await
    }

    /// Writes the audit entry here, in the task of the deletion, so that it is written even if the caller leaves.
    fn audit_removal(&self, caller: &Caller, root: &AgentId, deleted: &AgentsDeleted) {
        let (agents, runs) = (&deleted.deleted, &deleted.run_ids);
        tracing::info!(agent = %root, principal = %caller.principal, ?agents, ?runs, "agent deleted");
        let names = agents.iter().map(AgentId::as_str).collect::<Vec<_>>().join(", ");
        let detail = format!("deleted: {names}; runs stopped: {}", runs.len());
        self.audit(caller, AuditAction::on_target(Action::DeleteAgent, "agent", root.as_str()).with_detail(detail));
    }

    async fn remove_agents(
        &self,
        caller: &Caller,
        root: &AgentId,
        removal: AgentRemoval,
    ) -> Result<AgentsDeleted, AgentChangeError> {
        let runs = &self.inner().runs;
        let marked = self.agent_registry().mark_for_removal(root)?;
        let stop_result = match removal {
            AgentRemoval::IfIdle => match runs.unenroll(&marked) {
                Ok(()) => StopResult::default(),
                Err(busy) => {
                    self.agent_registry().cancel_removal(&marked);
                    return Err(AgentChangeError::Busy { agent: root.clone(), runs: busy });
                }
            },
            AgentRemoval::Force(request) => {
                let mut stopped = runs.unenroll_and_stop(&marked, &caller.who(), &request);
                let scope = StopScope::Agents { ids: marked.iter().cloned().collect() };
                self.stop_schedules(&scope, &caller.who(), &request, ScheduleStopOrigin::ThisNode, &mut stopped);
                stopped
            }
        };
        stop_result.schedules.wait_stored().await;
        stop_result.wait_settled().await;
        if let Err(error) = self.inner().store.agents().delete(marked.iter().cloned().collect()).await {
            runs.reenroll(&marked);
            return Err(error.into());
        }
        runs.remove_agents(&marked);
        let deleted = AgentsDeleted { deleted: marked.into_iter().collect(), run_ids: stop_result.aborted };
        self.audit_removal(caller, root, &deleted);
        Ok(deleted)
    }

    /// Runs `change` in a task of the engine, so that a caller that leaves does not interrupt it.
    async fn run_agent_change<T, F>(&self, change: F) -> Result<T, AgentChangeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, AgentChangeError>> + Send + 'static,
    {
        if !self.is_open() {
            return Err(AgentChangeError::Closed);
        }
        self.run_detached(change).await.ok_or(AgentChangeError::Closed)?
    }

    pub fn list_agents(&self) -> Vec<AgentRow> {
        let registry = &self.inner().services.agents;
        let snapshot = registry.snapshot();
        let tree = build_agent_tree(&snapshot);
        let row = |agent: &Arc<Agent>| {
            let (compute_status, active_runs) = self.inner().runs.agent_state(&agent.id);
            AgentRow {
                id: agent.id.clone(),
                model: agent.config.model.first().to_owned(),
                models: agent.config.model.names().map(str::to_owned).collect(),
                parent: agent.config.parent.clone(),
                children: tree.children(&agent.id).iter().map(|id| (*id).clone()).collect(),
                role: agent.config.role.clone(),
                compute_status,
                active_runs,
                default: agent.id == registry.default_agent(),
            }
        };
        snapshot.values().map(row).collect()
    }

    pub fn find_agent(&self, id: &AgentId) -> Option<AgentRow> {
        self.list_agents().into_iter().find(|row| row.id == *id)
    }

    /// Stops the runs of an agent that are in `phase` (row B4 in `docs/design/requirements.md`). The transport waits
    /// for the tickets before it answers (row B5).
    #[must_use]
    pub fn abort_agent(
        &self,
        caller: &Caller,
        id: &AgentId,
        phase: AgentRunFilter,
        request: &StopRequest,
    ) -> (AgentAbortAnswer, StopResult) {
        let stop_result = self.stop(caller, &StopScope::Agent { id: id.clone(), phase }, request);
        (abort_answer(id, &stop_result, "not_waiting_llm"), stop_result)
    }

    /// Stops the runs of an agent and of all agents below it, in any phase, including queued ones, as far as `caller`
    /// may. The tickets are to be waited for before answering, as in [`Engine::abort_agent`].
    #[must_use]
    pub fn abort_agent_tree(
        &self,
        caller: &Caller,
        id: &AgentId,
        request: &StopRequest,
    ) -> (AgentAbortAnswer, StopResult) {
        let mut stop_result = self.inner().runs.stop_agent_tree(id, &caller.who(), request);
        let tree = StopScope::Agents { ids: self.agent_subtree(id) };
        self.stop_schedules(&tree, &caller.who(), request, ScheduleStopOrigin::ThisNode, &mut stop_result);
        stop_result.peers = self.ask_peers_to_stop(&tree, caller.who(), request);
        tracing::info!(
            principal = %caller.principal, surface = ?caller.surface, agent = %id, stop_level = ?request.level,
            stopped = stop_result.aborted.len(), "abort request of a subtree of agents handled"
        );
        self.audit_stop(caller, &StopScope::Agents { ids: BTreeSet::from([id.clone()]) }, request, &stop_result);
        (abort_answer(id, &stop_result, "idle"), stop_result)
    }

    /// An agent and all agents below it.
    fn agent_subtree(&self, id: &AgentId) -> BTreeSet<AgentId> {
        let snapshot = self.agent_registry().snapshot();
        build_agent_tree(&snapshot).subtree(id).into_iter().cloned().collect()
    }

    /// One agent with its usage of today.
    pub fn agent_view(&self, id: &AgentId) -> Option<AgentView> {
        let daily_limit = self.agent_registry().get(id)?.config.daily_limit();
        let row = self.find_agent(id)?;
        let today = self.inner().runs.spent_today(id);
        let spend = Spend {
            day: today.day.to_string(),
            tokens: total_tokens(today.usage),
            cost: daily_limit.price.map(|price| cost_of(price, today.usage)),
            daily_tokens: daily_limit.tokens,
            daily_cost: daily_limit.cost,
        };
        Some(AgentView { row, spend })
    }

    pub fn agent_tree(&self) -> Vec<AgentNode> {
        let snapshot = self.agent_registry().snapshot();
        let tree = build_agent_tree(&snapshot);
        let roots: Vec<&AgentId> = tree.roots().collect();
        let mut nodes: BTreeMap<&AgentId, AgentNode> = BTreeMap::new();
        for root in &roots {
            // From the leaves up, so that the nodes of the children exist first.
            for id in tree.subtree(root).into_iter().rev() {
                let Some(agent) = snapshot.get(id) else { continue };
                let children = tree.children(id).iter().filter_map(|child| nodes.remove(*child)).collect();
                nodes.insert(id, self.build_node(agent, children));
            }
        }
        roots.into_iter().filter_map(|root| nodes.remove(root)).collect()
    }

    fn build_node(&self, agent: &Agent, children: Vec<AgentNode>) -> AgentNode {
        let (compute_status, active_runs) = self.inner().runs.agent_state(&agent.id);
        AgentNode {
            id: agent.id.clone(),
            role: agent.config.role.clone(),
            model: agent.config.model.first().to_owned(),
            models: agent.config.model.names().map(str::to_owned).collect(),
            compute_status,
            active_runs,
            default: agent.id == self.agent_registry().default_agent(),
            children,
        }
    }

    pub(super) fn agent_registry(&self) -> &AgentRegistry {
        &self.inner().services.agents
    }
}

/// `idle_reason` says why there was nothing to stop.
fn abort_answer(id: &AgentId, stop_result: &StopResult, idle_reason: &str) -> AgentAbortAnswer {
    let aborted = stop_result.stopped_anything();
    let reason = (!aborted).then(|| idle_reason.to_owned());
    let run_ids = stop_result.aborted.clone();
    AgentAbortAnswer {
        ok: true,
        agent_id: id.clone(),
        aborted,
        run_ids,
        reason,
        paused_schedules: stop_result.schedules.ids(),
        unreached: Vec::new(),
    }
}

impl Engine {
    /// Takes over the agents that other nodes have created or deleted. One that still has runs here stays until it has none.
    pub(super) async fn reload_created_agents(&self) -> Result<(), StoreError> {
        let registry = self.agent_registry();
        let stored = self.inner().store.agents().list().await?;
        for gone in registry.created().into_iter().filter(|id| stored.iter().all(|agent| agent.id != *id)) {
            // It may have been removed with an agent above it, or be just removed by a caller of this node.
            let Ok(marked) = registry.mark_for_removal(&gone) else { continue };
            match self.inner().runs.unenroll(&marked) {
                Ok(()) => self.inner().runs.remove_agents(&marked),
                Err(_busy) => registry.cancel_removal(&marked),
            }
        }
        let known = registry.snapshot();
        for agent in stored.into_iter().filter(|agent| !known.contains_key(&agent.id)) {
            let config: Result<AgentConfig, _> = serde_json::from_str(&agent.config);
            let built = config.map_err(|error| error.to_string()).and_then(|config| {
                registry.reserve(&agent.id, config.parent.as_ref()).map_err(|error| error.to_string())?;
                let built = registry.factory().build(&agent.id, config);
                built.map_err(|error| error.to_string()).inspect_err(|_| registry.release_reservation(&agent.id))
            });
            match built {
                Ok(agent) => self.inner().runs.add_agent(agent),
                Err(problem) => {
                    tracing::warn!(agent = %agent.id, problem, "an agent of another node cannot be used here")
                }
            }
        }
        Ok(())
    }
}

/// Restores the agents that were created at run time. An invalid one is logged and stays in the database: a start
/// deletes nothing.
pub(super) async fn restore_agents(store: &Store, registry: &AgentRegistry) -> Result<(), StoreError> {
    let parse = |stored: StoredAgent| RestorableAgent {
        config: serde_json::from_str(&stored.config)
            .map_err(|error| format!("its configuration cannot be read: {error}")),
        id: stored.id,
    };
    let stored_agents: Vec<RestorableAgent> = store.agents().list().await?.into_iter().map(parse).collect();
    for AgentConfigError { agent, problem } in registry.restore_agents(stored_agents) {
        tracing::warn!(%agent, problem, "an agent that was created at run time cannot be restored; it stays in the database");
    }
    Ok(())
}

/// Parses a request body like a section of the configuration file: the same keys in snake case, values and defaults.
fn parse_agent_config(request: &NewAgent) -> Result<AgentConfig, String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(request) else {
        return Err("its configuration cannot be written as JSON".to_owned());
    };
    let config_fields =
        fields.into_iter().filter(|(key, _)| key != "id").map(|(key, value)| (to_snake_case(&key), value));
    let keys: Map<String, Value> = config_fields.collect();
    serde_json::from_value(Value::Object(keys)).map_err(|error| error.to_string())
}

fn to_snake_case(camel: &str) -> String {
    let lower_with_underscore = |letter: char| {
        let low = letter.to_ascii_lowercase();
        if letter.is_ascii_uppercase() { vec!['_', low] } else { vec![low] }
    };
    camel.chars().flat_map(lower_with_underscore).collect()
}

fn join_run_ids(runs: &[RunId]) -> String {
    /// A longer list would not be read.
    const MAX_LISTED_RUNS: usize = 20;
    let mut names: Vec<String> = runs.iter().take(MAX_LISTED_RUNS).map(ToString::to_string).collect();
    if runs.len() > MAX_LISTED_RUNS {
        names.push(format!("and {} more", runs.len() - MAX_LISTED_RUNS));
    }
    names.join(", ")
}
