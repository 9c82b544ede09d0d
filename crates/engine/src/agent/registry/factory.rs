//! Validate an agent configuration and build the agent from it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_kernel::ToolSpec;
use quell_kernel::permissions::SandboxRights;
use quell_llm::{ModelHandle, Models};
use quell_process::CommandUser;
use quell_protocol::AgentId;
use quell_protocol::sandbox::SandboxMode;
use quell_tools::{AgentFacts, Toolbox};

use super::super::sandbox::{SandboxSite, directory_name, reserved_place_problem};
use super::super::tools::tool_specs;
use super::super::{Agent, AgentConfig, check_tool_names, thinking_unsupported, web_search_unsupported};

#[derive(Debug, Clone)]
pub struct AgentFactory {
    /// The models that agents may name.
    pub models: Models,
    pub toolbox: Arc<Toolbox>,
    pub mcp_servers: BTreeSet<String>,
    /// The directories of all agents.
    pub sandbox_site: Arc<SandboxSite>,
}

/// Replaces a leading `~/` by the home directory, if there is one.
pub fn expand_home(path: &Path, home_dir: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home_dir) {
        (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.to_owned(),
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent {agent:?}: {problem}")]
pub struct AgentConfigError {
    pub agent: AgentId,
    /// What is wrong, as words that follow its name.
    pub problem: String,
}

impl AgentFactory {
    pub fn workdir_of(work_dir: &Path, id: &AgentId, config: &AgentConfig) -> PathBuf {
        config.workdir.clone().unwrap_or_else(|| work_dir.join(directory_name(id)))
    }

    /// The former default workdir of an agent below the data directory, if it has any entries.
    pub fn legacy_workdir(data_dir: &Path, id: &AgentId) -> Option<PathBuf> {
        let legacy_dir = data_dir.join("work").join(directory_name(id));
        let has_entries = std::fs::read_dir(&legacy_dir).is_ok_and(|mut entries| entries.next().is_some());
        has_entries.then_some(legacy_dir)
    }

    /// Builds an agent with the model that its configuration names, and creates its workdir. Does not check the parent:
    /// that is done with the tree of agents.
    pub fn build(&self, id: &AgentId, config: AgentConfig) -> Result<Arc<Agent>, AgentConfigError> {
        let model = self.models.resolve(config.model.first());
        let model = model.map_err(|error| AgentConfigError { agent: id.clone(), problem: error.to_string() })?;
        // Only for the agent itself: a session that chooses another model goes without.
        if config.web_search && !model.supports_web_search() {
            let problem = format!("web_search: {}", web_search_unsupported());
            return Err(AgentConfigError { agent: id.clone(), problem });
        }
        self.build_with_model(id, config, model)
    }

    pub fn build_with_model(
        &self,
        id: &AgentId,
        config: AgentConfig,
        model: ModelHandle,
    ) -> Result<Arc<Agent>, AgentConfigError> {
        let tools = self.tool_specs(&config);
        self.assemble_agent(id, config, model, tools)
    }

    /// Builds an agent with another configuration and another model. Shares the tool descriptions if they stay the
    /// same.
    pub fn rebuild(
        &self,
        base: &Agent,
        config: AgentConfig,
        model: ModelHandle,
    ) -> Result<Arc<Agent>, AgentConfigError> {
        let tool_settings =
            |config: &AgentConfig| (config.tools.clone(), config.shell_timeout_s, self.tool_rights(config));
        let same = tool_settings(&config) == tool_settings(&base.config);
        let tools = if same { Arc::clone(&base.tool_specs) } else { self.tool_specs(&config) };
        let built = self.assemble_agent(&base.id, config, model, tools)?;
        let own_model = base.own_model;
        Ok(if own_model { Arc::new(Agent { own_model, ..Agent::clone(&built) }) } else { built })
    }

    fn assemble_agent(
        &self,
        id: &AgentId,
        config: AgentConfig,
        model: ModelHandle,
        tools: Arc<[ToolSpec]>,
    ) -> Result<Arc<Agent>, AgentConfigError> {
        let invalid = |problem: String| AgentConfigError { agent: id.clone(), problem };
        check_tool_names(&config.tools, self.mcp_servers.iter()).map_err(|error| invalid(error.to_string()))?;
        let approval_tools: Vec<String> = config.approvals.keys().cloned().collect();
        check_tool_names(&approval_tools, self.mcp_servers.iter())
            .map_err(|error| invalid(format!("approvals: {error}")))?;
        if let Some(server) = config.mcp.iter().flatten().find(|server| !self.mcp_servers.contains(*server)) {
            return Err(invalid(format!("its MCP server {server:?} is not configured")));
        }
        if let Some(problem) = config.thinking_problem() {
            let key = if config.thinking_tokens.is_some() { "thinking_tokens" } else { "thinking" };
            return Err(invalid(format!("{key} {problem}")));
        }
        if let Some(problem) = config.skills_problem() {
            return Err(invalid(format!("skills: {problem}")));
        }
        if let Some(problem) = config.quorum_problem() {
            return Err(invalid(format!("approval_quorum: {problem}")));
        }
        if let Some((key, problem)) = config.daily_limit().problem() {
            return Err(invalid(format!("{key} {problem}")));
        }
        if config.thinking_mode().is_some() && !model.supports_thinking() {
            return Err(invalid(format!("thinking: {}", thinking_unsupported())));
        }
        let fallbacks: Result<Arc<[ModelHandle]>, _> =
            config.model.fallbacks().iter().map(|name| self.models.resolve(name)).collect();
        let fallbacks = fallbacks.map_err(|unknown| invalid(unknown.to_string()))?;
        let (model, fallbacks) = with_chain_retries(model, &fallbacks);
        let workdir_path =
            expand_home(&Self::workdir_of(self.sandbox_site.work_dir(), id, &config), self.sandbox_site.home_dir());
        let reserved = |place: &Path| reserved_place_problem(self.sandbox_site.work_dir(), place);
        let problem = self.toolbox.protected_paths().workdir_problem(&workdir_path).or_else(|| reserved(&workdir_path));
        if let Some(problem) = problem {
            return Err(invalid(problem));
        }
        // Absolute, because messages name files by it: `[IMAGE:/...]`.
        let sandbox = self.sandbox_rights(&config).map_err(|(key, problem)| invalid(format!("{key} {problem}")))?;
        let user = sandbox.user.map(CommandUser::new).transpose();
        let user = user.map_err(|problem| invalid(format!("run_as: {problem}")))?;
        let not_made = |error| invalid(format!("its workdir {} cannot be made: {error}", workdir_path.display()));
        let whole = std::path::absolute(&workdir_path).map_err(not_made)?;
        match user {
            Some(user) => user.create_directory(&whole).map_err(|problem| invalid(format!("run_as: {problem}")))?,
            None => std::fs::create_dir_all(&whole).map_err(not_made)?,
        }
        let workdir = real_path(&whole);
        self.sandbox_site.create_home(id, user).map_err(invalid)?;
        let mut system = config.prompt.clone();
        if let Some(language) = &config.language {
            system.push_str(&format!("\n\nAnswer in the language {language} unless asked for another."));
        }
        Ok(Arc::new(Agent {
            id: id.clone(),
            tool_specs: tools,
            config,
            model,
            fallbacks,
            system_prompt: system,
            workdir,
            sandbox,
            own_model: false,
        }))
    }
}

fn sandbox_mode(config: &AgentConfig, is_unconfined: bool) -> SandboxMode {
    config.sandbox.unwrap_or(if is_unconfined { SandboxMode::Off } else { SandboxMode::Workspace })
}

/// Checks the settings of an agent's sandbox, without looking at files. `is_unconfined` is that of `[tools]`, `home` the
/// directory that a leading `~/` means.
///
/// # Errors
/// The wrong key, and what is wrong with it.
pub fn check_sandbox(
    config: &AgentConfig,
    is_unconfined: bool,
    home: Option<&Path>,
) -> Result<(), (&'static str, String)> {
    let mode = sandbox_mode(config, is_unconfined);
    if is_unconfined && mode != SandboxMode::Off {
        let problem = format!(
            "= \"{}\" contradicts `unconfined = true` in [tools]; take that out, and set sandbox = \"off\" for the agents that need all files",
            mode.as_str()
        );
        return Err(("sandbox", problem));
    }
    let expanded = |paths: &[PathBuf]| paths.iter().map(|path| expand_home(path, home)).collect();
    let expanded = AgentConfig {
        writable: expanded(&config.writable),
        readable: expanded(&config.readable),
        hidden: expanded(&config.hidden),
        ..config.clone()
    };
    if let Some(problem) = expanded.sandbox_problem(mode) {
        return Err(problem);
    }
    if is_unconfined && config.run_as.is_some() {
        let problem = "contradicts `unconfined = true` in [tools]: file tools work as the user of the daemon; leave one of them out";
        return Err(("run_as", problem.to_owned()));
    }
    Ok(())
}

impl AgentFactory {
    /// What the descriptions of its tools say about the sandbox.
    fn tool_rights(&self, config: &AgentConfig) -> SandboxRights {
        let (network, may_escalate) = (config.network.clone(), config.escalate);
        SandboxRights { network, may_escalate, ..SandboxRights::new(self.sandbox_mode(config)) }
    }

    fn sandbox_mode(&self, config: &AgentConfig) -> SandboxMode {
        sandbox_mode(config, self.toolbox.is_unconfined())
    }

    /// The descriptions of an agent's own tools. The delegation tools are not among them: it has no delegates yet.
    fn tool_specs(&self, config: &AgentConfig) -> Arc<[ToolSpec]> {
        let sandbox = self.tool_rights(config);
        let facts = AgentFacts {
            shell_timeout_s: config.shell_timeout_s,
            sandbox: Some(sandbox.mode),
            may_escalate: sandbox.may_leave(),
            ..AgentFacts::default()
        };
        tool_specs(&config.tools, &facts).into()
    }

    /// The sandbox of an agent, or the wrong key and its problem.
    fn sandbox_rights(&self, config: &AgentConfig) -> Result<SandboxRights, (&'static str, String)> {
        let home = self.sandbox_site.home_dir();
        check_sandbox(config, self.toolbox.is_unconfined(), home)?;
        let mode = self.sandbox_mode(config);
        // Now, and not when a command starts: by then an agent may have put a link there.
        let fixed = |paths: &[PathBuf]| paths.iter().map(|path| real_path(&expand_home(path, home))).collect();
        let config = AgentConfig {
            writable: fixed(&config.writable),
            readable: fixed(&config.readable),
            hidden: config.hidden.iter().map(|path| expand_home(path, home)).collect(),
            ..config.clone()
        };
        let reserved =
            config.writable.iter().find_map(|place| reserved_place_problem(self.sandbox_site.work_dir(), place));
        if let Some(problem) = reserved {
            return Err(("writable", problem));
        }
        for (key, paths) in [("writable", &config.writable), ("readable", &config.readable)] {
            let protected = self.toolbox.protected_paths();
            if let Some(path) = paths.iter().find(|path| protected.contains(path)) {
                let problem = format!(
                    "names {}, where Quell keeps its data, configuration or keys; no agent reaches them",
                    path.display()
                );
                return Err((key, problem));
            }
        }
        let limits = config.resource_limits();
        let AgentConfig { writable, readable, hidden, run_as: user, network, nested_namespaces, .. } = config;
        let rights = SandboxRights {
            is_required: config.sandbox_require,
            may_escalate: config.escalate,
            ..SandboxRights::new(mode)
        };
        Ok(SandboxRights { writable, readable, hidden, user, network, nested_namespaces, limits, ..rights })
    }
}

/// How often a model is tried again when another one can take over.
const RETRIES_BEFORE_FALLBACK: u32 = 1;

/// The models of a chain: all but the last one are given up early.
fn with_chain_retries(first: ModelHandle, fallbacks: &[ModelHandle]) -> (ModelHandle, Arc<[ModelHandle]>) {
    let Some((last, others)) = fallbacks.split_last() else { return (first, Arc::default()) };
    let fewer = |model: &ModelHandle| model.clone().with_fewer_retries(RETRIES_BEFORE_FALLBACK);
    (fewer(&first), others.iter().map(fewer).chain([last.clone()]).collect())
}

/// The path without symbolic links, as far as it exists.
fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
