//! The configuration: one file, or the environment alone. Unknown keys and bad values are errors with line and column.

mod check;
mod demo;
mod environment;
mod place;
mod routing;
mod stamp;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use quell_engine::EngineConfig;
use quell_engine::agent::{AgentConfig, Limits, Materials};
use quell_engine::clock::Clock;
use quell_engine::dispatch::{Retention, SessionSettings};
use quell_engine::hooks::HookSettings;
use quell_engine::llm::ProviderConfig;
use quell_engine::mcp::McpConfig;
use quell_engine::memory::MemorySettings;
use quell_engine::proc::WardenExe;
use quell_engine::scope::Probe;
use quell_engine::tools::{FetchSettings, Protected, ToolSettings};
use quell_kernel::StopTimes;
use quell_kernel::expiry::ExpiryLimits;
use quell_protocol::AgentId;
use quell_surfaces::DoorSettings;
use quell_surfaces::channels::config::{ChannelConfig, MessageSettings};
use quell_surfaces::channels::network;
use quell_surfaces::channels::settings::FlowSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use environment::{data_dir, work_dir};
use routing::RoutingSection;
pub(crate) use stamp::Stamp;

/// The file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The doors.
    pub(crate) server: Server,
    /// The database.
    pub(crate) store: StoreSection,
    /// Times of the stop ladder.
    pub(crate) stop: StopSection,
    /// Limits.
    pub(crate) limits: Limits,
    /// Sessions.
    pub(crate) sessions: SessionSettings,
    /// What is remembered and recalled unasked.
    pub(crate) memory: MemorySettings,
    /// What is thrown away.
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
    /// Which model a message of a chat network is for.
    pub(crate) routing: RoutingSection,
    /// Chat networks by name.
    pub(crate) channels: BTreeMap<String, ChannelConfig>,
}

/// `[server]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Server {
    /// Where to listen.
    #[schemars(with = "String")]
    pub(crate) listen: SocketAddr,
    /// The admin token's file; `token` in the data directory without it.
    pub(crate) token_file: Option<PathBuf>,
    /// Web origins besides its own that may talk to the daemon.
    pub(crate) allowed_origins: Vec<String>,
    /// Names besides its own by which the daemon may be addressed.
    pub(crate) allowed_hosts: Vec<String>,
    /// Streams (SSE and WebSocket) open at the same time.
    pub(crate) max_connections: usize,
    /// Connections of one peer address that have shown no valid token yet; beyond that the oldest is closed.
    pub(crate) max_unauthenticated_per_peer: usize,
}

impl Default for Server {
    fn default() -> Self {
        let doors = DoorSettings::default();
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7171)),
            token_file: None,
            allowed_origins: doors.allowed_origins,
            allowed_hosts: doors.allowed_hosts,
            max_connections: doors.max_connections,
            max_unauthenticated_per_peer: doors.max_unauthenticated_per_peer,
        }
    }
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// `sqlite:FILE`, relative to the data directory.
    pub(crate) url: String,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self { url: "sqlite:quell.db".to_owned() }
    }
}

/// `[stop]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StopSection {
    /// From SIGTERM to SIGKILL.
    pub(crate) term_ms: u64,
    /// From a gentle stop to force; more than `term_ms` + 500.
    pub(crate) grace_ms: u64,
    /// From force to giving up and naming what is left.
    pub(crate) hard_ms: u64,
}

impl Default for StopSection {
    fn default() -> Self {
        let times = StopTimes::default();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { term_ms: ms(times.term), grace_ms: ms(times.grace), hard_ms: ms(times.hard) }
    }
}

/// `[tools]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolSection {
    /// Lets the file tools leave the agents' workdirs.
    pub(crate) unconfined: bool,
    /// Lets `fetch_url` reach private and loopback addresses.
    pub(crate) fetch_private: bool,
}

/// Where the configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file.
    File {
        /// Where it is.
        path: PathBuf,
        /// As it was when it was read.
        stamp: Option<Stamp>,
    },
    /// No file: environment and defaults.
    Environment,
}

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) source: Source,
}

/// Reads the configuration: the given file, else $QUELL_CONFIG, else the XDG config directory, else none.
pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<Loaded> {
    let found = match file {
        Some(path) => Some(path.to_owned()),
        None => environment::config_file(),
    };
    match found {
        Some(path) => load_file(path),
        None => {
            let mut config = Config::default();
            environment::fill(&mut config)?;
            Ok(Loaded { config, source: Source::Environment })
        }
    }
}

/// Reads the configuration from this file.
pub(crate) fn load_file(path: PathBuf) -> anyhow::Result<Loaded> {
    // Before it is read: what changes meanwhile is a change.
    let stamp = Stamp::of(&path);
    let mut config = read(&path)?;
    environment::fill(&mut config)?;
    Ok(Loaded { config, source: Source::File { path, stamp } })
}

/// The name of the database, for verbs that need nothing else of the configuration: keys that they may not read are not asked for.
pub(crate) fn database(file: Option<&Path>) -> anyhow::Result<String> {
    let config = match file.map(Path::to_owned).or_else(environment::config_file) {
        Some(path) => read(&path)?,
        None => Config::default(),
    };
    Ok(Loaded { config, source: Source::Environment }.store_file())
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the configuration file {} cannot be read", path.display()))?;
    parse(path, &text)
}

/// A problem with a key of a file that only shows when it is put to use.
pub(crate) fn blame(path: &Path, key: &str, problem: &str) -> String {
    // One that cannot be read any more has no lines.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    place::of_key(path, &text, key, problem)
}

/// Parses and checks the text of a file.
pub(crate) fn parse(path: &Path, text: &str) -> anyhow::Result<Config> {
    let mut config: Config = toml::from_str(text).map_err(|error| place::of_toml(path, text, &error))?;
    environment::expand_paths(&mut config);
    let problems = check::problems(&config);
    let Some(problem) = problems.first() else { return Ok(config) };
    bail!("{}", place::of_key(path, text, &problem.key, &problem.text))
}

impl Loaded {
    /// The one line a person wants to see.
    pub(crate) fn summary(&self) -> String {
        let names = |keys: Vec<&str>| if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        let agents = self.config.agents.iter().map(|(id, agent)| format!("{id} ({})", agent.model));
        let agents: Vec<String> = agents.collect();
        let mut summary = format!(
            "agents {}; providers {}",
            names(agents.iter().map(String::as_str).collect()),
            names(self.config.providers.keys().map(String::as_str).collect()),
        );
        if !self.config.channels.is_empty() {
            let channels: Vec<&str> = self.config.channels.keys().map(String::as_str).collect();
            summary.push_str(&format!("; channels {}", channels.join(", ")));
        }
        summary
    }

    /// What only shows with the tokens, which a file does not hold: whether a network can be made of each channel. Nothing is
    /// connected. What only looks at a configuration does without: it may have none of the variables.
    pub(crate) fn check_channels(&self) -> anyhow::Result<()> {
        let mut channels = self.config.channels.iter();
        let Some(bad) = channels.find_map(|(name, channel)| network(name, channel).err()) else { return Ok(()) };
        let key = format!("channels.{}.{}", bad.channel, bad.key);
        match &self.source {
            Source::File { path, .. } => bail!("{}", blame(path, &key, &bad.problem)),
            Source::Environment => bail!("{bad}"),
        }
    }

    /// Whether an agent would work where Quell's own files or keys are; no start takes it so.
    pub(crate) fn check_workdirs(&self, data_dir: &Path) -> anyhow::Result<()> {
        let (work_dir, protected) = (work_dir(data_dir), self.protected(data_dir));
        for (id, agent) in &self.config.agents {
            let Some(problem) = protected.problem_of(&Materials::workdir(&work_dir, id, agent)) else { continue };
            match &self.source {
                Source::File { path, .. } => bail!("{}", blame(path, &format!("agents.{id}.workdir"), &problem)),
                Source::Environment => bail!("agent {id}: {problem}"),
            }
        }
        Ok(())
    }

    /// The admin token's file.
    pub(crate) fn token_file(&self, data_dir: &Path) -> PathBuf {
        self.config.server.token_file.clone().unwrap_or_else(|| data_dir.join("token"))
    }

    /// The database, relative to the data directory.
    pub(crate) fn store_file(&self) -> String {
        let url = &self.config.store.url;
        url.strip_prefix("sqlite:").unwrap_or(url).to_owned()
    }

    /// Times of the stop ladder.
    pub(crate) fn stop_times(&self) -> StopTimes {
        let (ms, stop) = (Duration::from_millis, &self.config.stop);
        StopTimes { term: ms(stop.term_ms), grace: ms(stop.grace_ms), hard: ms(stop.hard_ms) }
    }

    /// The files that decide what agents may do: the one that was read, the one that a start without a name reads, and those that
    /// hold keys.
    pub(crate) fn protected(&self, data_dir: &Path) -> Protected {
        let read = match &self.source {
            Source::File { path, .. } => Some(path.clone()),
            Source::Environment => None,
        };
        let own = [read, environment::shared_file(), Some(self.token_file(data_dir))];
        let Config { providers, channels, hooks, .. } = &self.config;
        let keys = providers.values().filter_map(|provider| provider.api_key_file.clone());
        let tokens = channels.values().filter_map(|channel| channel.token_file.clone());
        let keys = keys.chain(tokens).chain(hooks.secret_file.clone());
        let files = own.into_iter().flatten().chain(keys).collect();
        Protected { directories: vec![data_dir.to_owned()], files }
    }

    /// One line about a `quell.toml` where the daemon is started, which is not read.
    pub(crate) fn unread_file(&self) -> Option<String> {
        let here = Path::new("quell.toml");
        let is_read = match &self.source {
            Source::File { path, .. } => path.canonicalize().ok() == here.canonicalize().ok(),
            Source::Environment => false,
        };
        (here.is_file() && !is_read).then(|| {
            "the quell.toml in this directory is not read, because nobody named it; to use it: quell serve --config ./quell.toml"
                .to_owned()
        })
    }

    /// What the engine starts with.
    pub(crate) fn engine(&self, data_dir: PathBuf) -> EngineConfig {
        let config = &self.config;
        let protected = self.protected(&data_dir);
        let fetch = FetchSettings { allow_private: config.tools.fetch_private, ..FetchSettings::default() };
        EngineConfig {
            clock: Clock::start(),
            token_file: self.token_file(&data_dir),
            work_dir: work_dir(&data_dir),
            data_dir,
            store_file: self.store_file(),
            stop: self.stop_times(),
            expiry: ExpiryLimits::default(),
            limits: config.limits.clone(),
            sessions: config.sessions,
            memory: config.memory.clone(),
            retention: config.retention.clone(),
            agents: config.agents.clone(),
            providers: config.providers.clone(),
            mcp: config.mcp.clone(),
            hooks: config.hooks.clone(),
            lifecycle: Vec::new(),
            tools: ToolSettings { unconfined: config.tools.unconfined, fetch, protected },
            environment: quell_engine::proc::base_environment(std::env::vars_os()),
            open_files: None,
            warden: WardenExe::ThisProcess,
            probe: Probe::default(),
        }
    }

    /// What the message flow works by.
    pub(crate) fn flow(&self) -> FlowSettings {
        let Config { channels, messages, routing, .. } = &self.config;
        FlowSettings { channels: channels.clone(), messages: *messages, routing: routing.rules() }
    }

    /// What the doors start with.
    pub(crate) fn doors(&self) -> DoorSettings {
        let server = &self.config.server;
        DoorSettings {
            allowed_origins: server.allowed_origins.clone(),
            allowed_hosts: server.allowed_hosts.clone(),
            max_connections: server.max_connections,
            max_unauthenticated_per_peer: server.max_unauthenticated_per_peer,
        }
    }
}
