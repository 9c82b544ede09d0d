//! Configuration of an engine, and the errors of its start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell_bus::{ClusterSecret, NatsSettings};
use quell_kernel::StopTimeouts;
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::lease::LeaseTiming;
use quell_llm::{ProviderConfig, ProviderConfigError};
use quell_mcp::{McpConfig, McpConfigError};
use quell_process::WardenExe;
use quell_protocol::{AgentId, NodeName};
use quell_scope::PointProbe;
use quell_scope::clock::Clock;
use quell_store::{StoreError, StoreLocation};
use quell_tools::ToolSettings;

use super::Retention;
use crate::agent::{AgentConfig, AgentRegistryError, Limits};
use crate::approvals::ApprovalSettings;
use crate::hooks::{HookConfigError, HookSettings, LifecycleHook};
use crate::memory::MemorySettings;
use crate::schedules::ScheduleSettings;
use crate::session::SessionSettings;

/// How a node takes part in its cluster, besides what its store knows.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// The time after which a silent node counts as dead.
    pub lease: Duration,
    /// Signs what nodes tell each other, and encrypts the keys of sessions. A node needs one.
    pub secret: Option<ClusterSecret>,
    /// The message bus; without it everything goes through the database.
    pub nats: Option<NatsSettings>,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self { lease: Duration::from_secs(10), secret: None, nats: None }
    }
}

impl NodeSettings {
    pub(super) fn timing(&self) -> LeaseTiming {
        LeaseTiming::new(self.lease)
    }
}

/// Everything an engine needs to know. It reads no environment variable and no other file.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub clock: Clock,
    /// Holds the database and the token. No workdir may be inside it, or contain it.
    pub data_dir: PathBuf,
    /// Parent of the workdirs of agents that configure none.
    pub work_dir: PathBuf,
    pub store: StoreLocation,
    /// How this daemon is a node, if the store says that it is one.
    pub cluster: NodeSettings,
    /// The admin token's file; created at the first start.
    pub token_file: PathBuf,
    pub stop_timeouts: StopTimeouts,
    /// Bounds of a run's expiry (row A5 in `docs/design/requirements.md`).
    pub expiry: ExpiryLimits,
    pub limits: Limits,
    /// Who may answer for the calls of an agent.
    pub approvals: ApprovalSettings,
    /// Idle time of sessions, and how they are cleaned up.
    pub sessions: SessionSettings,
    /// When old data is deleted.
    pub retention: Retention,
    pub agents: BTreeMap<AgentId, AgentConfig>,
    pub providers: BTreeMap<String, ProviderConfig>,
    pub mcp: BTreeMap<String, McpConfig>,
    /// Commands and webhooks at lifecycle events.
    pub hooks: HookSettings,
    /// Lifecycle hooks of the program that embeds the engine.
    pub lifecycle_hooks: Vec<Arc<dyn LifecycleHook>>,
    /// Which notes are saved and recalled automatically.
    pub memory: MemorySettings,
    /// The time zone and the limits of schedules.
    pub schedules: ScheduleSettings,
    pub tools: ToolSettings,
    pub environment: Vec<(OsString, OsString)>,
    /// The soft limit of open files for started processes, if this process has raised its own.
    pub open_files_limit: Option<u64>,
    /// The executable that wardens are started from.
    pub warden_exe: WardenExe,
    /// Called at every point that a run reaches; for tests.
    pub probe: PointProbe,
}

impl EngineConfig {
    /// The defaults in this data directory, with the workdirs beside it: no agents, no providers, no environment.
    pub fn new(data_dir: PathBuf, warden_exe: WardenExe) -> Self {
        Self {
            clock: Clock::start(),
            work_dir: data_dir.with_file_name("work"),
            token_file: data_dir.join("token"),
            data_dir,
            store: StoreLocation::Sqlite { file: "quell.db".to_owned() },
            cluster: NodeSettings::default(),
            stop_timeouts: StopTimeouts::default(),
            expiry: ExpiryLimits::default(),
            limits: Limits::default(),
            approvals: ApprovalSettings::default(),
            sessions: SessionSettings::default(),
            retention: Retention::default(),
            agents: BTreeMap::new(),
            providers: BTreeMap::new(),
            mcp: BTreeMap::new(),
            hooks: HookSettings::default(),
            lifecycle_hooks: Vec::new(),
            memory: MemorySettings::default(),
            schedules: ScheduleSettings::default(),
            tools: ToolSettings::default(),
            environment: Vec::new(),
            open_files_limit: None,
            warden_exe,
            probe: PointProbe::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Provider(#[from] ProviderConfigError),
    #[error(transparent)]
    Mcp(#[from] McpConfigError),
    #[error(transparent)]
    Hook(#[from] HookConfigError),
    #[error(transparent)]
    Agents(#[from] AgentRegistryError),
    #[error("a node of a cluster needs the secret of the cluster; set secret_file in [cluster]")]
    NoClusterSecret,
    #[error(
        "the node {0} has another secret of the cluster, so it would not hear this one; write the same secret into the file that secret_file in [cluster] names"
    )]
    OtherClusterSecret(NodeName),
    #[error(transparent)]
    MessageBus(#[from] quell_bus::NatsConnectError),
    #[error("wardens cannot be started: {0}")]
    Wardens(std::io::Error),
    #[error(transparent)]
    Access(#[from] crate::access::AccessError),
}
