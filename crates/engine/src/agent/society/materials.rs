//! What agents are built from, and the building of one: a pure question of its configuration and of what exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_protocol::AgentId;

use super::super::remember::memory_specs;
use super::super::{Agent, AgentConfig, NO_THINKING, check_tools};
use crate::llm::{Model, Models, ToolSpec};
use crate::tools::Toolbox;

/// What agents are built from.
#[derive(Debug, Clone)]
pub struct Materials {
    /// The models that they may name.
    pub models: Models,
    /// The tools that they may name.
    pub toolbox: Arc<Toolbox>,
    /// The names of the configured MCP servers.
    pub servers: BTreeSet<String>,
    /// Below it are the workdirs of agents that name none.
    pub work_dir: PathBuf,
    /// What `~/` at the beginning of a workdir stands for.
    pub home: Option<PathBuf>,
}

/// A path whose leading `~/` is the home directory, where there is one.
#[must_use]
pub fn expand_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.to_owned(),
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
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

impl Materials {
    /// Where the tools of an agent work.
    #[must_use]
    pub fn workdir(work_dir: &Path, id: &AgentId, config: &AgentConfig) -> PathBuf {
        config.workdir.clone().unwrap_or_else(|| work_dir.join(folder_of(id)))
    }

    /// Where an agent that names no workdir worked when those were below the data directory, if something is left there.
    #[must_use]
    pub fn earlier_workdir(data_dir: &Path, id: &AgentId) -> Option<PathBuf> {
        let earlier = data_dir.join("work").join(folder_of(id));
        let has_entries = std::fs::read_dir(&earlier).is_ok_and(|mut entries| entries.next().is_some());
        has_entries.then_some(earlier)
    }

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
        let tools = self.tools_of(&config);
        self.assemble(id, config, model, tools)
    }

    /// Builds an agent as it is with another configuration and another model. The descriptions of its tools are shared.
    ///
    /// # Errors
    /// [`BadAgent`] says what is wrong with the configuration.
    pub fn build_over(&self, base: &Agent, config: AgentConfig, model: Model) -> Result<Arc<Agent>, BadAgent> {
        let of = |config: &AgentConfig| (config.tools.clone(), config.shell_timeout_s);
        let same = of(&config) == of(&base.config);
        let tools = if same { Arc::clone(&base.tools) } else { self.tools_of(&config) };
        let built = self.assemble(&base.id, config, model, tools)?;
        let own_model = base.own_model;
        Ok(if own_model { Arc::new(Agent { own_model, ..Agent::clone(&built) }) } else { built })
    }

    fn tools_of(&self, config: &AgentConfig) -> Arc<[ToolSpec]> {
        let own = self.toolbox.specs_of_agent(&config.tools, config.shell_timeout_s);
        own.into_iter().chain(memory_specs(&config.tools)).collect()
    }

    fn assemble(
        &self,
        id: &AgentId,
        config: AgentConfig,
        model: Model,
        tools: Arc<[ToolSpec]>,
    ) -> Result<Arc<Agent>, BadAgent> {
        let wrong = |problem: String| BadAgent { agent: id.clone(), problem };
        check_tools(&config.tools, self.servers.iter()).map_err(|error| wrong(error.to_string()))?;
        let named: Vec<String> = config.approvals.keys().cloned().collect();
        check_tools(&named, self.servers.iter()).map_err(|error| wrong(format!("approvals: {error}")))?;
        if let Some(server) = config.mcp.iter().flatten().find(|server| !self.servers.contains(*server)) {
            return Err(wrong(format!("its MCP server {server:?} is not configured")));
        }
        if let Some(problem) = config.thinking_problem() {
            let key = if config.thinking_tokens.is_some() { "thinking_tokens" } else { "thinking" };
            return Err(wrong(format!("{key} {problem}")));
        }
        if let Some(problem) = config.skills_problem() {
            return Err(wrong(format!("skills: {problem}")));
        }
        if let Some((key, problem)) = config.daily_limit().problem() {
            return Err(wrong(format!("{key} {problem}")));
        }
        if config.thinking_mode().is_some() && !model.may_think() {
            return Err(wrong(format!("thinking: {NO_THINKING}")));
        }
        let named = expand_home(&Self::workdir(&self.work_dir, id, &config), self.home.as_deref());
        if let Some(problem) = self.toolbox.protected().problem_of(&named) {
            return Err(wrong(problem));
        }
        // Whole, since messages name files by it: `[IMAGE:/...]`.
        let workdir = std::path::absolute(&named).and_then(|whole| std::fs::create_dir_all(&whole).map(|()| whole));
        let workdir =
            workdir.map_err(|error| wrong(format!("its workdir {} cannot be made: {error}", named.display())))?;
        let mut system = config.prompt.clone();
        if let Some(language) = &config.language {
            system.push_str(&format!("\n\nAnswer in the language {language} unless asked for another."));
        }
        Ok(Arc::new(Agent { id: id.clone(), tools, config, model, system, workdir, own_model: false }))
    }
}

/// The folder of an agent's files, below those of all.
fn folder_of(id: &AgentId) -> String {
    id.as_str().replace(['/', '\\', '.'], "_")
}
