//! Load the configuration from a file or the environment, and build the settings of the engine from it.
//!
//! Unknown keys and bad values are errors with line and column.

mod cluster;
mod demo_provider;
mod environment;
mod error_location;
mod file_stamp;
mod routing;
mod secret_command;
mod store;
#[cfg(test)]
mod tests;
mod validation;
mod variable_names;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use quell_channels::config::{ChannelConfig, MessageSettings};
use quell_channels::create_network;
use quell_channels::settings::FlowSettings;
use quell_engine::EngineConfig;
use quell_engine::agent::{AgentConfig, AgentFactory, Limits, reserved_place_problem};
use quell_engine::engine::{ApprovalSettings, Retention, SessionSettings};
use quell_engine::hooks::HookSettings;
use quell_engine::memory::MemorySettings;
use quell_engine::schedules::ScheduleSettings;
use quell_kernel::StopTimeouts;
use quell_llm::ProviderConfig;
use quell_mcp::McpConfig;
use quell_process::WardenExe;
use quell_protocol::AgentId;
use quell_server::ServerSettings;
use quell_store::StoreLocation;
use quell_store::postgres::PostgresSettings;
use quell_tools::{FetchSettings, ProtectedPaths, ToolSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use cluster::ClusterSection;
pub(crate) use environment::{data_dir, default_config_dir, postgres_password, work_dir};
pub(crate) use file_stamp::FileStamp;
use routing::RoutingSection;
use store::StoreSection;

/// The configuration file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The HTTP and WebSocket server.
    pub(crate) server: ServerSettings,
    /// The database.
    pub(crate) store: StoreSection,
    /// Several daemons on one database; absent for a daemon that has it for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<ClusterSection>,
    /// Timeouts of a stop.
    pub(crate) stop: StopSection,
    /// Limits of runs, requests and outputs.
    pub(crate) limits: Limits,
    /// Who may answer for the calls of an agent.
    pub(crate) approvals: ApprovalSettings,
    /// Lifetime and clean-up of sessions.
    pub(crate) sessions: SessionSettings,
    /// Automatic saving and recall of notes.
    pub(crate) memory: MemorySettings,
    /// The time zone and the limits of schedules.
    pub(crate) schedules: ScheduleSettings,
    /// Deletion of old sessions and audit entries.
    pub(crate) retention: Retention,
    /// Settings of the tools.
    pub(crate) tools: ToolSection,
    /// MCP servers by name.
    pub(crate) mcp: BTreeMap<String, McpConfig>,
    /// Lifecycle hooks.
    pub(crate) hooks: HookSettings,
    /// Model providers by name.
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// Agents by id; `main`, else the first one, is the default.
    #[schemars(with = "BTreeMap<String, AgentConfig>")]
    pub(crate) agents: BTreeMap<AgentId, AgentConfig>,
    /// How messages of chat networks are answered.
    pub(crate) messages: MessageSettings,
    /// Choice of the model for a message of a chat network.
    pub(crate) routing: RoutingSection,
    /// Chat networks by name.
    pub(crate) channels: BTreeMap<String, ChannelConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StopSection {
    /// Milliseconds from SIGTERM to SIGKILL.
    pub(crate) term_ms: u64,
    /// Milliseconds from a gentle stop to a forced one; more than `term_ms` + 500.
    pub(crate) grace_ms: u64,
    /// Milliseconds from a forced stop until the rest is given up as leftovers.
    pub(crate) hard_ms: u64,
}

impl Default for StopSection {
    fn default() -> Self {
        let times = StopTimeouts::default();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { term_ms: ms(times.term), grace_ms: ms(times.grace), hard_ms: ms(times.hard) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolSection {
    /// Allows the file tools to leave the agents' workdirs.
    pub(crate) unconfined: bool,
    /// Allows `fetch_url` to reach private and loopback addresses.
    pub(crate) fetch_private: bool,
}

#[derive(Debug)]
pub(crate) struct LoadedConfig {
    pub(crate) config: Config,
    /// `None`: environment variables and defaults.
    pub(crate) file: Option<ConfigFile>,
}

#[derive(Debug, Clone)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// The stamp from before the file was read.
    pub(crate) stamp: Option<FileStamp>,
}

/// Loads the configuration from the given file, else $QUELL_CONFIG, else the XDG config directory, else from the
/// environment.
pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<LoadedConfig> {
    match file.map(Path::to_owned).or_else(environment::config_file) {
        Some(path) => load_file(path),
        None => {
            let mut config = Config::default();
            environment::apply_environment(&mut config)?;
            Ok(LoadedConfig { config, file: None })
        }
    }
}

pub(crate) fn load_file(path: PathBuf) -> anyhow::Result<LoadedConfig> {
    // Taken before the read, so that a change during the read is noticed.
    let stamp = FileStamp::of(&path);
    let mut config = read_config(&path)?;
    environment::apply_environment(&mut config)?;
    Ok(LoadedConfig { config, file: Some(ConfigFile { path, stamp }) })
}

/// Returns the place of the database. For subcommands that need nothing else: does not read any keys or passwords, which
/// they may lack the right to.
pub(crate) fn store_location(file: Option<&Path>) -> anyhow::Result<StoreLocation> {
    let config = match file.map(Path::to_owned).or_else(environment::config_file) {
        Some(path) => read_config(&path)?,
        None => Config::default(),
    };
    Ok(config.store.location())
}

fn read_config(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the configuration file {} cannot be read", path.display()))?;
    parse_config(path, &text)
}

/// Formats a problem that is found only after parsing, with its place in the file.
pub(crate) fn locate_problem(path: &Path, key: &str, problem: &str) -> String {
    // A file that cannot be read any more gives a message without a line.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    error_location::key_error(path, &text, key, problem)
}

pub(crate) fn parse_config(path: &Path, text: &str) -> anyhow::Result<Config> {
    let mut config: Config = toml::from_str(text).map_err(|error| error_location::toml_error(path, text, &error))?;
    environment::expand_paths(&mut config);
    let problems = validation::find_problems(&config);
    let Some(problem) = problems.first() else { return Ok(config) };
    bail!("{}", error_location::key_error(path, text, &problem.key, &problem.text))
}

impl Config {
    /// Where the database is, and how this daemon joins those that share it.
    fn store_location(&self) -> StoreLocation {
        let cluster = self.cluster.as_ref().and_then(ClusterSection::settings);
        match self.store.location() {
            StoreLocation::Postgres(settings) => StoreLocation::Postgres(PostgresSettings { cluster, ..settings }),
            sqlite @ StoreLocation::Sqlite { .. } => sqlite,
        }
    }
}

impl LoadedConfig {
    /// One line for people about agents, providers and channels.
    pub(crate) fn summary(&self) -> String {
        let join = |names: Vec<String>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let agents = self.config.agents.iter().map(|(id, agent)| format!("{id} ({})", agent.model)).collect();
        let providers = self.config.providers.keys().cloned().collect();
        let mut summary = format!("agents {}; providers {}", join(agents), join(providers));
        if !self.config.channels.is_empty() {
            summary.push_str(&format!("; channels {}", join(self.config.channels.keys().cloned().collect())));
        }
        summary
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Checks what a start would refuse. This needs the tokens of channels, which the file does not contain. So it is
    /// not part of loading: `quell config show` must work without the variables.
    pub(crate) fn check_start(&self, data_dir: &Path) -> anyhow::Result<()> {
        self.check_store()?;
        self.check_cluster()?;
        self.check_channels()?;
        self.check_workdirs(data_dir)
    }

    /// Checks that a password is there if one is named.
    fn check_store(&self) -> anyhow::Result<()> {
        match (self.config.store.missing_password(), self.path()) {
            (None, _) => Ok(()),
            (Some((key, problem)), Some(path)) => bail!(locate_problem(path, &format!("store.{key}"), &problem)),
            (Some((key, problem)), None) => bail!("store.{key}: {problem}"),
        }
    }

    /// Checks that the secret of the cluster is usable.
    fn check_cluster(&self) -> anyhow::Result<()> {
        let Some(cluster) = &self.config.cluster else { return Ok(()) };
        match (cluster.node_settings(), self.path()) {
            (Ok(_), _) => Ok(()),
            (Err((key, problem)), Some(path)) => bail!(locate_problem(path, &format!("cluster.{key}"), &problem)),
            (Err((key, problem)), None) => bail!("cluster.{key}: {problem}"),
        }
    }

    /// Checks that a network can be created for each channel, without connecting.
    fn check_channels(&self) -> anyhow::Result<()> {
        let mut channels = self.config.channels.iter();
        let Some(bad) = channels.find_map(|(name, channel)| create_network(name, channel).err()) else { return Ok(()) };
        match self.path() {
            Some(path) => bail!(locate_problem(path, &format!("channels.{}.{}", bad.channel, bad.key), &bad.problem)),
            None => bail!("{bad}"),
        }
    }

    /// Checks that no agent's workdir contains or lies in Quell's own files or keys.
    fn check_workdirs(&self, data_dir: &Path) -> anyhow::Result<()> {
        let (work_dir, protected) = (work_dir(data_dir), self.protected(data_dir));
        for (id, agent) in &self.config.agents {
            let workdir = AgentFactory::workdir_of(&work_dir, id, agent);
            let problem = protected.workdir_problem(&workdir).or_else(|| reserved_place_problem(&work_dir, &workdir));
            match (problem, self.path()) {
                (None, _) => {}
                (Some(problem), Some(path)) => bail!(locate_problem(path, &format!("agents.{id}.workdir"), &problem)),
                (Some(problem), None) => bail!("agent {id}: {problem}"),
            }
        }
        Ok(())
    }

    pub(crate) fn token_file(&self, data_dir: &Path) -> PathBuf {
        self.config.server.token_file.clone().unwrap_or_else(|| data_dir.join("token"))
    }

    pub(crate) fn stop_times(&self) -> StopTimeouts {
        let (ms, stop) = (Duration::from_millis, &self.config.stop);
        StopTimeouts { term: ms(stop.term_ms), grace: ms(stop.grace_ms), hard: ms(stop.hard_ms) }
    }

    /// One line for each MCP server whose program, or a file that it is started with, lies where an agent writes.
    pub(crate) fn writable_server_warnings(&self, data_dir: &Path) -> Vec<String> {
        self.config.mcp.keys().filter_map(|name| self.writable_start_of(name, data_dir)).collect()
    }

    /// The line of [`Self::writable_server_warnings`] for one server.
    pub(crate) fn writable_start_of(&self, server: &str, data_dir: &Path) -> Option<String> {
        let work_dir = work_dir(data_dir);
        let agents = self.config.agents.iter();
        let workdirs = agents.map(|(id, agent)| AgentFactory::workdir_of(&work_dir, id, agent));
        let places: Vec<PathBuf> =
            workdirs.chain(self.config.agents.values().flat_map(|agent| agent.writable.clone())).collect();
        let what = self.config.mcp.get(server)?.agent_writable_start(&places)?;
        Some(format!("MCP server {server}: {what}: what it puts there runs with the server's key"))
    }

    /// Lists what agents may not reach: the data directory, the configuration file in use, the directory of the default
    /// one, and the files that contain keys.
    pub(crate) fn protected(&self, data_dir: &Path) -> ProtectedPaths {
        let own = [self.path().map(Path::to_owned), Some(self.token_file(data_dir))];
        let Config { providers, channels, hooks, store, cluster, .. } = &self.config;
        let keys = providers.values().filter_map(|provider| provider.api_key_file.clone());
        let tokens = channels.values().filter_map(|channel| channel.token_file.clone());
        let keys = keys.chain(tokens).chain(hooks.secret_file.clone()).chain(store.password_file.clone());
        let of_cluster = cluster
            .iter()
            .flat_map(|cluster| [&cluster.secret_file, &cluster.nats_password_file, &cluster.nats_credentials_file]);
        let keys = keys.chain(of_cluster.flatten().cloned());
        let files = own.into_iter().flatten().chain(keys).collect();
        let directories = [data_dir.to_owned()].into_iter().chain(environment::default_config_dir()).collect();
        ProtectedPaths { directories, files }
    }

    /// A warning about a `quell.toml` in the current directory that is not used.
    pub(crate) fn unread_file_warning(&self) -> Option<String> {
        let here = Path::new("quell.toml");
        let is_read = self.path().is_some_and(|path| path.canonicalize().ok() == here.canonicalize().ok());
        (here.is_file() && !is_read).then(|| {
            "the quell.toml in this directory is not read, because nobody named it; to use it: quell serve --config ./quell.toml"
                .to_owned()
        })
    }

    pub(crate) fn engine_config(&self, data_dir: PathBuf) -> EngineConfig {
        let config = &self.config;
        let protected = self.protected(&data_dir);
        let fetch = FetchSettings { allow_private: config.tools.fetch_private, ..FetchSettings::default() };
        EngineConfig {
            token_file: self.token_file(&data_dir),
            work_dir: work_dir(&data_dir),
            store: config.store_location(),
            cluster: config.cluster.as_ref().and_then(|cluster| cluster.node_settings().ok()).unwrap_or_default(),
            stop_timeouts: self.stop_times(),
            limits: config.limits.clone(),
            approvals: config.approvals,
            sessions: config.sessions,
            memory: config.memory.clone(),
            schedules: config.schedules.clone(),
            retention: config.retention.clone(),
            agents: config.agents.clone(),
            providers: config.providers.clone(),
            mcp: config.mcp.clone(),
            hooks: config.hooks.clone(),
            tools: ToolSettings { unconfined: config.tools.unconfined, fetch, protected },
            environment: quell_process::base_environment(std::env::vars_os()),
            ..EngineConfig::new(data_dir, WardenExe::ThisProcess)
        }
    }

    pub(crate) fn flow_settings(&self) -> FlowSettings {
        let Config { channels, messages, routing, .. } = &self.config;
        FlowSettings { channels: channels.clone(), messages: *messages, routing: routing.rules() }
    }
}
