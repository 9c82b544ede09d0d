//! What an engine is started with, and why it may not start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use quell_kernel::StopTimes;
use quell_kernel::expiry::ExpiryLimits;
use quell_protocol::AgentId;

use super::Retention;
use crate::agent::{AgentConfig, BadSociety, Limits};
use crate::clock::Clock;
use crate::hooks::{BadHook, HookSettings, LifecycleHook};
use crate::llm::{BadProvider, ProviderConfig};
use crate::mcp::{BadServer, McpConfig};
use crate::memory::MemorySettings;
use crate::proc::WardenExe;
use crate::scope::Probe;
use crate::session::SessionSettings;
use crate::store::StoreError;
use crate::tools::ToolSettings;

/// Everything an engine needs to know. It reads no environment and no other file.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The engine's time.
    pub clock: Clock,
    /// Where the database and the token are. No workdir may lie in it, or hold it.
    pub data_dir: PathBuf,
    /// Below it are the workdirs of agents that name none.
    pub work_dir: PathBuf,
    /// The database file, relative to the data directory.
    pub store_file: String,
    /// The admin token's file; made at the first start.
    pub token_file: PathBuf,
    /// Times of the stop ladder.
    pub stop: StopTimes,
    /// Row A5.
    pub expiry: ExpiryLimits,
    /// Limits.
    pub limits: Limits,
    /// How long sessions live unused, and how they are cleaned up.
    pub sessions: SessionSettings,
    /// What is thrown away.
    pub retention: Retention,
    /// Agents.
    pub agents: BTreeMap<AgentId, AgentConfig>,
    /// Model providers.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// MCP servers.
    pub mcp: BTreeMap<String, McpConfig>,
    /// Commands and webhooks at lifecycle events.
    pub hooks: HookSettings,
    /// Lifecycle hooks of the program that embeds the engine.
    pub lifecycle: Vec<Arc<dyn LifecycleHook>>,
    /// What is remembered and recalled unasked.
    pub memory: MemorySettings,
    /// Settings of the tools.
    pub tools: ToolSettings,
    /// The environment that processes get.
    pub environment: Vec<(OsString, OsString)>,
    /// The soft limit of open files that processes get, where this process has raised its own.
    pub open_files: Option<u64>,
    /// The executable that wardens are started from.
    pub warden: WardenExe,
    /// Called at every point a run reaches; for tests.
    pub probe: Probe,
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A provider.
    #[error(transparent)]
    Provider(#[from] BadProvider),
    /// An MCP server.
    #[error(transparent)]
    Mcp(#[from] BadServer),
    /// A hook.
    #[error(transparent)]
    Hook(#[from] BadHook),
    /// The agents.
    #[error(transparent)]
    Society(#[from] BadSociety),
    /// Processes cannot be started.
    #[error("wardens cannot be started: {0}")]
    Wardens(std::io::Error),
    /// Tokens cannot be set up.
    #[error(transparent)]
    Access(#[from] crate::access::AccessError),
}
