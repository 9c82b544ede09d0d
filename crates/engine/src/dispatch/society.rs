//! Agents at run time: made, deleted, drawn as a tree, stopped with all below them.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::registry::{StopAsk, StopScope};
use quell_kernel::spend::{cost, tokens};
use quell_protocol::api::{AgentAbortAnswer, AgentRow};
use quell_protocol::audit::Action;
use quell_protocol::society::{AgentNode, AgentView, AgentsDeleted, NewAgent, Spend};
use quell_protocol::{AgentId, ErrorCode, RunId};
use serde_json::{Map, Value};

use super::{Caller, Deed, Engine, Stop};
use crate::agent::{Agent, AgentConfig, BadAgent, Kept, RESERVED, Society, Stays, Unwelcome, tree_of};
use crate::store::{Store, StoreError, StoredAgent};

/// How an agent is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// Unless it or one below it has runs that are not over.
    IfIdle,
    /// Its runs and those of all below it are stopped first.
    Force(StopAsk),
}

/// Why an agent was not made or not deleted. Nothing has changed then, but that runs may have been stopped by force.
#[derive(Debug, thiserror::Error)]
pub enum SocietyError {
    /// The id is a word of the routes.
    #[error(
        "{RESERVED:?} cannot be the id of an agent, because /api/agents/{RESERVED} is the tree of all; choose another"
    )]
    Reserved,
    /// It cannot be built.
    #[error(transparent)]
    Bad(#[from] BadAgent),
    /// It does not come in.
    #[error(transparent)]
    Unwelcome(#[from] Unwelcome),
    /// It does not go.
    #[error(transparent)]
    Stays(#[from] Stays),
    /// It or one below it has runs that are not over.
    #[error("the agent {agent:?} or one below it has runs that are not over: {}; stop them first, or delete it with ?force", list(.runs))]
    Busy {
        /// The agent that was to be deleted.
        agent: AgentId,
        /// The runs.
        runs: Vec<RunId>,
    },
    /// The engine closes.
    #[error("the daemon is shutting down; ask again after its restart")]
    Closed,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SocietyError {
    /// The code a door answers with.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Reserved | Self::Bad(_) | Self::Unwelcome(Unwelcome::Parent(..)) => ErrorCode::InvalidRequest,
            Self::Unwelcome(Unwelcome::Taken(_) | Unwelcome::Lost(_)) => ErrorCode::Conflict,
            Self::Stays(Stays::Unknown(_)) => ErrorCode::AgentNotFound,
            Self::Stays(Stays::Configured(_) | Stays::Moving(_)) => ErrorCode::Conflict,
            Self::Busy { .. } => ErrorCode::AgentBusy,
            Self::Closed | Self::Store(StoreError::Closed) => ErrorCode::ShuttingDown,
            Self::Store(_) => ErrorCode::StoreUnavailable,
        }
    }
}

impl Engine {
    /// Makes an agent. When this answers, it is durable and takes runs.
    ///
    /// # Errors
    /// [`SocietyError`]; there is no such agent then, or there was one before.
    ///
    /// # Cancel safety
    /// Safe: from the claim of its id on it goes on in a task of the engine.
    pub async fn create_agent(&self, caller: &Caller, new: NewAgent) -> Result<AgentRow, SocietyError> {
        if new.id.as_str() == RESERVED {
            return Err(SocietyError::Reserved);
        }
        let config = config_of(&new).map_err(|problem| BadAgent { agent: new.id.clone(), problem })?;
        let (id, engine, who) = (new.id.clone(), self.clone(), caller.clone());
        self.in_a_task(async move { engine.take_in(&who, &new.id, config).await }).await?;
        self.agent(&id).ok_or(SocietyError::Stays(Stays::Unknown(id)))
    }

    async fn take_in(&self, caller: &Caller, id: &AgentId, config: AgentConfig) -> Result<(), SocietyError> {
        // Before it is built: a refused one leaves no directory behind.
        self.society().claim(id, config.parent.as_ref())?;
        let kept = async {
            let agent = self.society().materials().build(id, config)?;
            self.inner().store.create_agent(self.stored(caller, &agent)).await?;
            Ok::<_, SocietyError>(agent)
        };
        let agent = kept.await.inspect_err(|_| self.society().disclaim(id))?;
        self.inner().runs.take_in(agent);
        tracing::info!(agent = %id, principal = %caller.principal, "agent created");
        self.audit(caller, Deed::to(Action::CreateAgent, "agent", id.as_str()));
        Ok(())
    }

    fn stored(&self, caller: &Caller, agent: &Agent) -> StoredAgent {
        StoredAgent {
            id: agent.id.clone(),
            config: serde_json::to_string(&agent.config).unwrap_or_default(),
            created_at: self.inner().clock.rfc3339(self.inner().clock.now()),
            created_by: caller.principal.clone(),
        }
    }

    /// Deletes an agent that was made at run time, with all below it. From the step on in which their runs are looked for or
    /// stopped, none of them takes another; they are gone when all of those are over.
    ///
    /// # Errors
    /// [`SocietyError`]; all of them stay then, and take runs again.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn delete_agent(
        &self,
        caller: &Caller,
        id: &AgentId,
        removal: Removal,
    ) -> Result<AgentsDeleted, SocietyError> {
        let (engine, who, root) = (self.clone(), caller.clone(), id.clone());
        self.in_a_task(async move { engine.remove(&who, &root, removal).await }).await
    }

    /// Who leaves while it goes on has done it all the same, and the audit list says so.
    fn note_removal(&self, caller: &Caller, root: &AgentId, deleted: &AgentsDeleted) {
        let (agents, runs) = (&deleted.deleted, &deleted.run_ids);
        tracing::info!(agent = %root, principal = %caller.principal, ?agents, ?runs, "agent deleted");
        let names = agents.iter().map(AgentId::as_str).collect::<Vec<_>>().join(", ");
        let detail = format!("deleted: {names}; runs stopped: {}", runs.len());
        self.audit(caller, Deed::to(Action::DeleteAgent, "agent", root.as_str()).with(detail));
    }

    async fn remove(&self, caller: &Caller, root: &AgentId, removal: Removal) -> Result<AgentsDeleted, SocietyError> {
        let runs = &self.inner().runs;
        let going = self.society().mark(root)?;
        let stop = match removal {
            Removal::IfIdle => match runs.dismiss(&going) {
                Ok(()) => Stop::default(),
                Err(busy) => {
                    self.society().retain(&going);
                    return Err(SocietyError::Busy { agent: root.clone(), runs: busy });
                }
            },
            Removal::Force(ask) => runs.dismiss_by_force(&going, &caller.who(), &ask),
        };
        stop.settled().await;
        if let Err(error) = self.inner().store.delete_agents(going.iter().cloned().collect()).await {
            runs.reinstate(&going);
            return Err(error.into());
        }
        runs.let_go(&going);
        let deleted = AgentsDeleted { deleted: going.into_iter().collect(), run_ids: stop.aborted };
        self.note_removal(caller, root, &deleted);
        Ok(deleted)
    }

    /// Does what must not be left half done by a caller who leaves.
    async fn in_a_task<T, F>(&self, work: F) -> Result<T, SocietyError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SocietyError>> + Send + 'static,
    {
        if !self.is_open() {
            return Err(SocietyError::Closed);
        }
        self.seen_through(work).await.ok_or(SocietyError::Closed)?
    }

    /// Stops all runs of an agent and of all agents below it, in any phase, queued ones included, as far as `caller` may; the
    /// tickets are to be waited for before answering, as in [`Engine::abort_agent`].
    #[must_use]
    pub fn abort_agent_tree(&self, caller: &Caller, id: &AgentId, ask: &StopAsk) -> (AgentAbortAnswer, Stop) {
        let stop = self.inner().runs.stop_tree(id, &caller.who(), ask);
        tracing::info!(
            principal = %caller.principal, surface = ?caller.surface, agent = %id, push = ?ask.push,
            stopped = stop.aborted.len(), "abort request of a subtree of agents handled"
        );
        self.note_stop(caller, (&StopScope::Agents { ids: BTreeSet::from([id.clone()]) }, ask), &stop);
        let aborted = stop.did_something();
        let reason = (!aborted).then(|| "idle".to_owned());
        (AgentAbortAnswer { ok: true, agent_id: id.clone(), aborted, run_ids: stop.aborted.clone(), reason }, stop)
    }

    /// One agent with what it has spent today.
    #[must_use]
    pub fn agent_view(&self, id: &AgentId) -> Option<AgentView> {
        let limit = self.society().get(id)?.config.daily_limit();
        let row = self.agent(id)?;
        let today = self.inner().runs.spent(id);
        let spend = Spend {
            day: today.day.to_string(),
            tokens: tokens(today.usage),
            cost: limit.price.map(|price| cost(price, today.usage)),
            daily_tokens: limit.tokens,
            daily_cost: limit.cost,
        };
        Some(AgentView { row, spend })
    }

    /// All agents as the trees that they form.
    #[must_use]
    pub fn agent_tree(&self) -> Vec<AgentNode> {
        let roll = self.society().roll();
        let tree = tree_of(&roll);
        let roots: Vec<&AgentId> = tree.roots().collect();
        let mut drawn: BTreeMap<&AgentId, AgentNode> = BTreeMap::new();
        for root in &roots {
            // From the leaves up, so that each finds its children drawn.
            for id in tree.below(root).into_iter().rev() {
                let Some(agent) = roll.get(id) else { continue };
                let children = tree.children(id).iter().filter_map(|child| drawn.remove(*child)).collect();
                drawn.insert(id, self.node(agent, children));
            }
        }
        roots.into_iter().filter_map(|root| drawn.remove(root)).collect()
    }

    fn node(&self, agent: &Agent, children: Vec<AgentNode>) -> AgentNode {
        let (compute_status, active_runs) = self.inner().runs.agent(&agent.id);
        AgentNode {
            id: agent.id.clone(),
            role: agent.config.role.clone(),
            model: agent.config.model.clone(),
            compute_status,
            active_runs,
            default: agent.id == self.society().default_agent(),
            children,
        }
    }

    fn society(&self) -> &Society {
        &self.inner().workshop.society
    }
}

/// Takes in the agents that were made at run time. What cannot come in is said and kept: no start deletes anything.
pub(super) async fn restore(store: &Store, society: &Society) -> Result<(), StoreError> {
    let read = |stored: StoredAgent| Kept {
        config: serde_json::from_str(&stored.config)
            .map_err(|error| format!("its configuration cannot be read: {error}")),
        id: stored.id,
    };
    let kept: Vec<Kept> = store.agents().await?.into_iter().map(read).collect();
    for BadAgent { agent, problem } in society.restore(kept) {
        tracing::warn!(%agent, problem, "an agent that was made at run time is kept and does not come in");
    }
    Ok(())
}

/// What a body says, as it would be read from a file: the same names but for their spelling, the same values, the same defaults.
fn config_of(new: &NewAgent) -> Result<AgentConfig, String> {
    let Ok(Value::Object(said)) = serde_json::to_value(new) else {
        return Err("its configuration cannot be written as JSON".to_owned());
    };
    let named = said.into_iter().filter(|(key, _)| key != "id").map(|(key, value)| (snake(&key), value));
    let keys: Map<String, Value> = named.collect();
    serde_json::from_value(Value::Object(keys)).map_err(|error| error.to_string())
}

fn snake(camel: &str) -> String {
    let spelt = |letter: char| {
        let low = letter.to_ascii_lowercase();
        if letter.is_ascii_uppercase() { vec!['_', low] } else { vec![low] }
    };
    camel.chars().flat_map(spelt).collect()
}

fn list(runs: &[RunId]) -> String {
    /// More would not be read by anybody.
    const NAMED: usize = 20;
    let mut names: Vec<String> = runs.iter().take(NAMED).map(ToString::to_string).collect();
    if runs.len() > NAMED {
        names.push(format!("and {} more", runs.len() - NAMED));
    }
    names.join(", ")
}
