//! The agents that exist now, behind one lock, and what it takes to build one more.
//!
//! A run keeps the agent that it started with, so agents may come and go while runs are at work. Who may leave is not decided
//! here: nothing in this file knows of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::society::Tree;
use quell_protocol::AgentId;

use super::delegate::delegation_specs;
use super::remember::memory_specs;
use super::{Agent, AgentConfig, check_tools};
use crate::llm::{Model, Models, ToolSpec};
use crate::tools::Toolbox;

/// The id that no agent can have: `/api/agents/tree` is the tree of all.
pub const RESERVED: &str = "tree";

/// All agents by id, as they were at one moment.
pub type Roll = BTreeMap<AgentId, Arc<Agent>>;

/// The agents of one engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct Society(Arc<Inner>);

/// What agents are built from.
#[derive(Debug, Clone)]
pub struct Materials {
    /// The models that they may name.
    pub models: Models,
    /// The tools that they may name.
    pub toolbox: Arc<Toolbox>,
    /// The names of the configured MCP servers.
    pub servers: BTreeSet<String>,
    /// Where the workdirs of agents are that name none.
    pub data_dir: PathBuf,
}

#[derive(Debug)]
struct Inner {
    materials: Materials,
    default: AgentId,
    members: Mutex<Members>,
}

#[derive(Debug)]
struct Members {
    roll: Arc<Roll>,
    /// The tools that name all agents, made anew whenever one comes or goes.
    delegation: Arc<[ToolSpec]>,
}

impl Members {
    fn new(roll: Roll) -> Self {
        let delegation = delegation_specs(&roll);
        Self { roll: Arc::new(roll), delegation }
    }
}

/// Why an agent cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent {agent:?}: {problem}")]
pub struct BadAgent {
    /// Which.
    pub agent: AgentId,
    /// What is wrong with it, in words that follow its name.
    pub problem: String,
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
        let main = configured.keys().find(|id| id.as_str() == "main");
        let default = main.or_else(|| configured.keys().next()).cloned().ok_or(BadSociety::Empty)?;
        let tree = Tree::new(configured.iter().map(|(id, config)| (id, config.parent.as_ref())));
        let mut roll = Roll::new();
        for (id, config) in configured {
            tree.check(id).map_err(|bad| BadAgent { agent: id.clone(), problem: bad.to_string() })?;
            roll.insert(id.clone(), materials.build(id, config.clone())?);
        }
        Ok(Self(Arc::new(Inner { materials, default, members: Mutex::new(Members::new(roll)) })))
    }

    /// An agent that exists now.
    #[must_use]
    pub fn get(&self, id: &AgentId) -> Option<Arc<Agent>> {
        self.members().roll.get(id).cloned()
    }

    /// The agent that runs when none is named. It never leaves.
    #[must_use]
    pub fn default_agent(&self) -> &AgentId {
        &self.0.default
    }

    /// All agents that exist now.
    #[must_use]
    pub fn roll(&self) -> Arc<Roll> {
        Arc::clone(&self.members().roll)
    }

    /// The tools by which agents reach each other, naming all that exist now.
    #[must_use]
    pub fn delegation(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.members().delegation)
    }

    /// What it builds agents from.
    #[must_use]
    pub fn materials(&self) -> &Materials {
        &self.0.materials
    }

    /// Takes an agent in. False when there is one of that id.
    #[must_use]
    pub fn create(&self, agent: Arc<Agent>) -> bool {
        let mut members = self.members();
        if members.roll.contains_key(&agent.id) {
            return false;
        }
        let mut roll = Roll::clone(&members.roll);
        roll.insert(agent.id.clone(), agent);
        *members = Members::new(roll);
        true
    }

    /// Lets agents go.
    pub fn remove(&self, ids: &BTreeSet<AgentId>) {
        let mut members = self.members();
        let mut roll = Roll::clone(&members.roll);
        roll.retain(|id, _| !ids.contains(id));
        *members = Members::new(roll);
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Materials {
    /// Builds an agent with the model that its configuration names. Its workdir exists then. Whether its parent does is the
    /// tree's business, not the agent's.
    ///
    /// # Errors
    /// [`BadAgent`] says what is wrong with the configuration.
    pub fn build(&self, id: &AgentId, config: AgentConfig) -> Result<Arc<Agent>, BadAgent> {
        let model = self.models.resolve(&config.model);
        let model = model.map_err(|error| BadAgent { agent: id.clone(), problem: error.to_string() })?;
        self.build_with(id, config, model)
    }

    /// Builds an agent with a model that somebody else has resolved.
    ///
    /// # Errors
    /// [`BadAgent`] says what is wrong with the configuration.
    pub fn build_with(&self, id: &AgentId, config: AgentConfig, model: Model) -> Result<Arc<Agent>, BadAgent> {
        let wrong = |problem: String| BadAgent { agent: id.clone(), problem };
        check_tools(&config.tools, self.servers.iter()).map_err(|error| wrong(error.to_string()))?;
        let named: Vec<String> = config.approvals.keys().cloned().collect();
        check_tools(&named, self.servers.iter()).map_err(|error| wrong(format!("approvals: {error}")))?;
        if let Some(server) = config.mcp.iter().flatten().find(|server| !self.servers.contains(*server)) {
            return Err(wrong(format!("its MCP server {server:?} is not configured")));
        }
        let own = || self.data_dir.join("work").join(id.as_str().replace(['/', '\\', '.'], "_"));
        let workdir = config.workdir.clone().unwrap_or_else(own);
        std::fs::create_dir_all(&workdir)
            .map_err(|error| wrong(format!("its workdir {} cannot be made: {error}", workdir.display())))?;
        let mut system = config.prompt.clone();
        if let Some(language) = &config.language {
            system.push_str(&format!("\n\nAnswer in the language {language} unless asked for another."));
        }
        let mut tools = self.toolbox.specs(&config.tools);
        tools.extend(memory_specs(&config.tools));
        Ok(Arc::new(Agent { id: id.clone(), tools, config, model, system, workdir }))
    }
}

#[cfg(test)]
mod tests;
