//! The agents that exist now, behind one lock, and what it takes to build one more.
//!
//! A run keeps the agent that it started with, so agents may come and go while runs are at work. Each step here is one locked
//! step. Coming and going take two of them with the database in between: an agent that comes is claimed first, so that nobody
//! else takes its id or its parent away, and one that goes is marked. Nothing in this file knows of runs.

mod materials;
mod refit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::society::{BadParent, Tree};
use quell_protocol::AgentId;

use super::delegate::delegation_specs;
use super::{Agent, AgentConfig};
use crate::llm::ToolSpec;
pub use materials::{BadAgent, Materials, expand_home};
pub use refit::{Changes, Plan, Stale};

/// The id that no agent can have: `/api/agents/tree` is the tree of all.
pub const RESERVED: &str = "tree";

/// All agents by id, as they were at one moment.
pub type Roll = BTreeMap<AgentId, Arc<Agent>>;

/// The agents of one engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct Society(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    materials: Materials,
    members: Mutex<Members>,
}

#[derive(Debug)]
struct Members {
    roll: Arc<Roll>,
    /// The agent that runs when none is named.
    default: AgentId,
    /// Agents of the configuration. They leave with it alone.
    configured: BTreeSet<AgentId>,
    /// Agents that the configuration named before and names no more. They go when they have no runs.
    vanished: BTreeSet<AgentId>,
    /// By agent, the tools that name those it may give work to: made when they are first asked for after one came or went.
    delegation: BTreeMap<AgentId, Arc<[ToolSpec]>>,
    /// Claimed and not taken in yet, with their parents.
    coming: BTreeMap<AgentId, Option<AgentId>>,
    /// Marked and not let go yet. They are still on the roll: their runs are being stopped.
    going: BTreeSet<AgentId>,
    /// Kept in the database although they cannot be built, with their parents.
    lost: BTreeMap<AgentId, Option<AgentId>>,
}

/// Why an agent does not come in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// One of that id exists, or is just being made.
    #[error("there is an agent {0:?} already; choose another id, or delete that one first")]
    Taken(AgentId),
    /// One of that id was made before and is kept, although it could not be built at the last start.
    #[error(
        "an agent {0:?} is kept that could not be built when the daemon started (its log says why); delete it first, or mend \
         the configuration and start the daemon again"
    )]
    Lost(AgentId),
    /// Its parent does not stand.
    #[error("agent {0:?}: {1}")]
    Parent(AgentId, BadParent),
}

/// Why an agent stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stays {
    /// There is no such agent.
    #[error("there is no agent {0:?}; `quell agents` lists them")]
    Unknown(AgentId),
    /// The configuration names it, or one below it.
    #[error("the agent {0:?} is configured; remove [agents.{0}] from quell.toml and start the daemon again")]
    Configured(AgentId),
    /// Somebody makes or deletes it, or one below it, at this moment.
    #[error("the agent {0:?} is being made or deleted at this moment; ask again")]
    Moving(AgentId),
}

/// An agent that was made at run time, as it was kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Its id.
    pub id: AgentId,
    /// Its configuration, or why that cannot be read.
    pub config: Result<AgentConfig, String>,
}

/// Why there is no society.
#[derive(Debug, thiserror::Error)]
pub enum BadSociety {
    /// No agent at all.
    #[error("no agent is configured; add [agents.main] with a model")]
    Empty,
    /// One of them cannot be built.
    #[error(transparent)]
    Agent(#[from] BadAgent),
}

impl Society {
    /// The configured agents; `main`, else the first one, is the default.
    ///
    /// # Errors
    /// [`BadSociety`]: no agent, or the first that cannot be built.
    pub fn new(materials: Materials, configured: &BTreeMap<AgentId, AgentConfig>) -> Result<Self, BadSociety> {
        let default = default_of(configured)?;
        let roll = built(&materials, configured)?;
        let members = Members {
            delegation: BTreeMap::new(),
            roll: Arc::new(roll),
            default,
            configured: configured.keys().cloned().collect(),
            vanished: BTreeSet::new(),
            coming: BTreeMap::new(),
            going: BTreeSet::new(),
            lost: BTreeMap::new(),
        };
        Ok(Self(Arc::new(Inner { materials, members: Mutex::new(members) })))
    }

    /// Takes in the agents that were made at run time, parents before children. One that cannot be built is lost for now, with
    /// all below it; one that the configuration names gives way to it. Answers those that did not come in, with the reason.
    #[must_use]
    pub fn restore(&self, kept: Vec<Kept>) -> Vec<BadAgent> {
        let mut members = self.members();
        let (shadowed, kept): (Vec<Kept>, Vec<Kept>) =
            kept.into_iter().partition(|agent| members.configured.contains(&agent.id));
        let told = "the configuration has one of that id, which is used; the one that was made at run time is kept";
        let mut absent: Vec<BadAgent> =
            shadowed.into_iter().map(|agent| BadAgent { agent: agent.id, problem: told.to_owned() }).collect();
        let parent = |agent: &Kept| agent.config.as_ref().ok().and_then(|config| config.parent.clone());
        let parents: BTreeMap<AgentId, Option<AgentId>> =
            kept.iter().map(|agent| (agent.id.clone(), parent(agent))).collect();
        let mut waiting: BTreeMap<AgentId, Result<AgentConfig, String>> =
            kept.into_iter().map(|agent| (agent.id, agent.config)).collect();
        let mut roll = Roll::clone(&members.roll);
        for id in parents_first(&parents) {
            let Some(config) = waiting.remove(&id) else { continue };
            let problem = config.and_then(|config| {
                if let Some(parent) = config.parent.as_ref().filter(|parent| !roll.contains_key(*parent)) {
                    return Err(BadParent::Unknown(parent.clone()).to_string());
                }
                let built = self.0.materials.build(&id, config).map_err(|bad| bad.problem)?;
                roll.insert(id.clone(), built);
                Ok(())
            });
            if let Err(problem) = problem {
                members.lost.insert(id.clone(), parents.get(&id).cloned().flatten());
                absent.push(BadAgent { agent: id, problem });
            }
        }
        members.call(roll);
        absent
    }

    /// An agent that exists now.
    #[must_use]
    pub fn get(&self, id: &AgentId) -> Option<Arc<Agent>> {
        self.members().roll.get(id).cloned()
    }

    /// The agent that runs when none is named. It is always there.
    #[must_use]
    pub fn default_agent(&self) -> AgentId {
        self.members().default.clone()
    }

    /// All agents that exist now.
    #[must_use]
    pub fn roll(&self) -> Arc<Roll> {
        Arc::clone(&self.members().roll)
    }

    /// An agent and all below it that exist now; nothing when there is no such agent.
    #[must_use]
    pub fn below(&self, root: &AgentId) -> BTreeSet<AgentId> {
        let roll = self.roll();
        tree_of(&roll).below(root).into_iter().cloned().collect()
    }

    /// The tools by which an agent gives work to agents, naming those that it may give it to now.
    #[must_use]
    pub fn delegation(&self, of: &Agent) -> Arc<[ToolSpec]> {
        let mut members = self.members();
        let roll = Arc::clone(&members.roll);
        let is_that = roll.get(&of.id).is_some_and(|now| now.config.delegates == of.config.delegates);
        if !is_that {
            // It was configured anew since the run began.
            return delegation_specs(&roll, of);
        }
        let known = members.delegation.entry(of.id.clone()).or_insert_with(|| delegation_specs(&roll, of));
        Arc::clone(known)
    }

    /// What it builds agents from.
    #[must_use]
    pub fn materials(&self) -> &Materials {
        &self.0.materials
    }

    /// Claims the id of an agent that is to come, and its place below its parent. [`Society::join`] takes it in, or
    /// [`Society::disclaim`] gives both up.
    ///
    /// # Errors
    /// [`Unwelcome`]; nothing has changed then.
    pub fn claim(&self, id: &AgentId, parent: Option<&AgentId>) -> Result<(), Unwelcome> {
        let mut members = self.members();
        if members.lost.contains_key(id) {
            return Err(Unwelcome::Lost(id.clone()));
        }
        if members.roll.contains_key(id) || members.coming.contains_key(id) {
            return Err(Unwelcome::Taken(id.clone()));
        }
        let there = members.roll.values().filter(|other| !members.going.contains(&other.id));
        let there = there.map(|other| (&other.id, other.config.parent.as_ref()));
        Tree::new(there.chain([(id, parent)])).check(id).map_err(|bad| Unwelcome::Parent(id.clone(), bad))?;
        members.coming.insert(id.clone(), parent.cloned());
        Ok(())
    }

    /// Takes in an agent that was claimed.
    pub fn join(&self, agent: Arc<Agent>) {
        let mut members = self.members();
        members.coming.remove(&agent.id);
        let mut roll = Roll::clone(&members.roll);
        roll.insert(agent.id.clone(), agent);
        members.call(roll);
    }

    /// Gives up a claim.
    pub fn disclaim(&self, id: &AgentId) {
        self.members().coming.remove(id);
    }

    /// Marks an agent and all below it as going, those that could not be built included, and answers which. No agent comes in
    /// below them until [`Society::let_go`] or [`Society::retain`].
    ///
    /// # Errors
    /// [`Stays`]; nothing has changed then.
    pub fn mark(&self, root: &AgentId) -> Result<BTreeSet<AgentId>, Stays> {
        let mut members = self.members();
        let absent = members.lost.iter().chain(&members.coming).map(|(id, parent)| (id, parent.as_ref()));
        let there = members.roll.values().map(|agent| (&agent.id, agent.config.parent.as_ref()));
        let marked: BTreeSet<AgentId> = Tree::new(there.chain(absent)).below(root).into_iter().cloned().collect();
        if marked.is_empty() {
            return Err(Stays::Unknown(root.clone()));
        }
        if let Some(id) = marked.iter().find(|id| members.configured.contains(*id)) {
            return Err(Stays::Configured(id.clone()));
        }
        let moves = |id: &&AgentId| members.coming.contains_key(*id) || members.going.contains(*id);
        if let Some(id) = marked.iter().find(moves) {
            return Err(Stays::Moving(id.clone()));
        }
        members.going.extend(marked.iter().cloned());
        Ok(marked)
    }

    /// Takes the marks back.
    pub fn retain(&self, ids: &BTreeSet<AgentId>) {
        self.members().going.retain(|id| !ids.contains(id));
    }

    /// Lets marked agents go.
    pub fn let_go(&self, ids: &BTreeSet<AgentId>) {
        let mut members = self.members();
        members.going.retain(|id| !ids.contains(id));
        members.lost.retain(|id, _| !ids.contains(id));
        members.vanished.retain(|id| !ids.contains(id));
        let mut roll = Roll::clone(&members.roll);
        roll.retain(|id, _| !ids.contains(id));
        members.call(roll);
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// These are the agents from now on.
    fn call(&mut self, roll: Roll) {
        self.delegation.clear();
        self.roll = Arc::new(roll);
    }
}

/// `main`, else the first one.
fn default_of(configured: &BTreeMap<AgentId, AgentConfig>) -> Result<AgentId, BadSociety> {
    let main = configured.keys().find(|id| id.as_str() == "main");
    main.or_else(|| configured.keys().next()).cloned().ok_or(BadSociety::Empty)
}

/// The agents of a configuration, which form trees.
fn built(materials: &Materials, configured: &BTreeMap<AgentId, AgentConfig>) -> Result<Roll, BadAgent> {
    let tree = Tree::new(configured.iter().map(|(id, config)| (id, config.parent.as_ref())));
    let mut roll = Roll::new();
    for (id, config) in configured {
        tree.check(id).map_err(|bad| BadAgent { agent: id.clone(), problem: bad.to_string() })?;
        roll.insert(id.clone(), materials.build(id, config.clone())?);
    }
    Ok(roll)
}

/// The tree of all agents on a roll.
#[must_use]
pub fn tree_of(roll: &Roll) -> Tree<'_> {
    Tree::new(roll.values().map(|agent| (&agent.id, agent.config.parent.as_ref())))
}

/// All of them, each behind its parent where that is one of them. Those in a circle come last.
fn parents_first(parents: &BTreeMap<AgentId, Option<AgentId>>) -> Vec<AgentId> {
    let tree = Tree::new(parents.iter().map(|(id, parent)| (id, parent.as_ref())));
    let from_roots = tree.roots().flat_map(|root| tree.below(root));
    from_roots.chain(parents.keys()).cloned().collect()
}

#[cfg(test)]
mod tests;
