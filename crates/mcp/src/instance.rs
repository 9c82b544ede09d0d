//! The state of one server instance: starting, ready or ended; its leases and its shutdown level.
//!
//! The task that drives it is in [`super::supervisor`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quell_process::{CommandNetwork, SandboxSpec};
use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use quell_scope::Release;
use rmcp::RoleClient;
use rmcp::service::Peer;
use tokio::sync::watch;
use tokio::time::timeout;

use super::message_monitor::MessageMonitor;
use super::server::{McpServer, OfferedTools};

/// One instance of a server, for one session or shared by all.
#[derive(Debug)]
pub(super) struct ServerInstance {
    pub(super) server: Arc<McpServer>,
    pub(super) owner: InstanceOwner,
    state: watch::Sender<InstanceState>,
    lease_count: watch::Sender<usize>,
    shutdown: watch::Sender<InstanceShutdown>,
}

#[derive(Debug, Clone)]
pub(super) struct InstanceOwner {
    /// None for an instance that all sessions share.
    pub(super) session: Option<SessionKey>,
    /// The run that needed it first, who that run worked for, and its agent.
    pub(super) run: RunId,
    pub(super) principal: Principal,
    pub(super) agent: AgentId,
    /// The workdir of the agent that needed it first.
    pub(super) workdir: PathBuf,
    /// The sandbox of the agent that needed it first.
    pub(super) sandbox: Option<Arc<SandboxSpec>>,
    pub(super) network: Option<Arc<dyn CommandNetwork>>,
}

#[derive(Debug, Clone)]
pub(super) enum InstanceState {
    Starting,
    Ready(Arc<McpConnection>),
    /// No process is alive, except for the leftovers.
    Ended(Arc<InstanceEnd>),
}

#[derive(Debug)]
pub(super) struct McpConnection {
    pub(super) peer: Peer<RoleClient>,
    pub(super) monitor: Arc<MessageMonitor>,
    tools: watch::Sender<ListedTools>,
}

/// The tools that a server listed last.
#[derive(Debug)]
struct ListedTools {
    tools: OfferedTools,
    /// The number of changes that the list includes.
    changes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct InstanceEnd {
    /// For people and models: a clause that begins with "it".
    pub(super) cause: String,
    /// The strongest means that was needed.
    pub(super) how: Release,
    /// Processes that could not be ended, by name.
    pub(super) leftovers: Vec<String>,
    /// The end of the standard error output.
    pub(super) stderr_tail: String,
    /// What a person can do about a failed start, if that is known.
    pub(super) remedy: Option<String>,
}

impl Default for InstanceEnd {
    /// An end of which nothing is known.
    fn default() -> Self {
        Self {
            cause: String::new(),
            how: Release::Failed,
            leftovers: Vec::new(),
            stderr_tail: String::new(),
            remedy: None,
        }
    }
}

/// The shutdown request to the supervisor; it only rises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InstanceShutdown {
    KeepRunning,
    /// Take no new users; close when the last one has left.
    Drain,
    /// End now, for this cause.
    EndNow(Arc<str>),
    /// End now, with SIGKILL.
    Kill,
}

impl InstanceShutdown {
    fn severity(&self) -> u8 {
        match self {
            Self::KeepRunning => 0,
            Self::Drain => 1,
            Self::EndNow(_) => 2,
            Self::Kill => 3,
        }
    }

    /// True when the supervisor waits for no user any more.
    pub(super) fn is_immediate(&self) -> bool {
        self.severity() >= 2
    }
}

impl McpConnection {
    pub(super) fn new(peer: Peer<RoleClient>, monitor: Arc<MessageMonitor>, tools: OfferedTools) -> Self {
        Self { peer, monitor, tools: watch::Sender::new(ListedTools { tools, changes: 0 }) }
    }

    pub(super) fn tools(&self) -> OfferedTools {
        Arc::clone(&self.tools.borrow().tools)
    }

    /// Sets the list that includes this many changes. Returns the list before.
    pub(super) fn set_tools(&self, tools: OfferedTools, changes: u64) -> OfferedTools {
        self.tools.send_replace(ListedTools { tools, changes }).tools
    }

    /// Keeps the list: what this many changes have brought cannot be listed.
    pub(super) fn keep_tools(&self, changes: u64) {
        self.tools.send_modify(|listed| listed.changes = changes);
    }

    /// Waits until the list includes the changes that the server has announced, or `limit` has passed.
    pub(super) async fn wait_listed(&self, limit: Duration) {
        let announced = *self.monitor.tool_list_changes.borrow();
        let mut listed = self.tools.subscribe();
        // After the time limit the older list is offered.
        // waits: raced by the run, in `offered_tools`.
        let _ = timeout(limit, listed.wait_for(|listed| listed.changes >= announced)).await;
    }
}

impl ServerInstance {
    /// An instance that is about to be started.
    pub(super) fn new(server: Arc<McpServer>, owner: InstanceOwner) -> Self {
        let (state, shutdown) =
            (watch::Sender::new(InstanceState::Starting), watch::Sender::new(InstanceShutdown::KeepRunning));
        Self { server, owner, state, lease_count: watch::Sender::new(0), shutdown }
    }

    pub(super) fn state(&self) -> InstanceState {
        self.state.borrow().clone()
    }

    pub(super) fn set_state(&self, state: InstanceState) {
        self.state.send_replace(state);
    }

    /// Waits until it is ready or has ended.
    pub(super) async fn wait_started(&self) -> Result<Arc<McpConnection>, Arc<InstanceEnd>> {
        let mut state = self.state.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        // waits: beside the stop of the run, in `run_start_wait`.
        let started =
            state.wait_for(|state| !matches!(state, InstanceState::Starting)).await.map(|state| state.clone());
        match started {
            Ok(InstanceState::Ready(connection)) => Ok(connection),
            Ok(InstanceState::Ended(end)) => Err(end),
            Ok(InstanceState::Starting) | Err(_) => Err(Arc::default()),
        }
    }

    /// Waits until it has ended.
    pub(super) async fn wait_ended(&self) -> Arc<InstanceEnd> {
        let mut state = self.state.subscribe();
        // waits: for the supervisor, which the stop ladder bounds; callers that can hurry it do so beside this.
        let ended_state =
            state.wait_for(|state| matches!(state, InstanceState::Ended(_))).await.map(|state| state.clone());
        match ended_state {
            Ok(InstanceState::Ended(over)) => over,
            _ => Arc::default(),
        }
    }

    /// Raises the shutdown level, without waiting.
    pub(super) fn request_shutdown(&self, requested: InstanceShutdown) {
        self.shutdown.send_if_modified(|current| {
            let is_stronger = current.severity() < requested.severity();
            if is_stronger {
                *current = requested;
            }
            is_stronger
        });
    }

    pub(super) fn watch_shutdown(&self) -> watch::Receiver<InstanceShutdown> {
        self.shutdown.subscribe()
    }

    pub(super) fn shutdown_level(&self) -> InstanceShutdown {
        self.shutdown.borrow().clone()
    }

    /// Waits until it is told to end now. Returns the cause.
    pub(super) async fn wait_immediate_end(&self) -> Arc<str> {
        let mut shutdown_changes = self.watch_shutdown();
        // waits: beside the stop of the run, in `await_answer`.
        let level = shutdown_changes.wait_for(InstanceShutdown::is_immediate).await.map(|order| order.clone());
        match level {
            Ok(InstanceShutdown::EndNow(cause)) => cause,
            _ => Arc::from("it was ended by force"),
        }
    }

    /// Waits until it takes no new users.
    pub(super) async fn wait_closing(&self) {
        let mut shutdown_changes = self.watch_shutdown();
        // The sender lives in `self`, so waiting cannot fail.
        // waits: as one arm of several, in `browse`.
        let _ = shutdown_changes.wait_for(|order| *order != InstanceShutdown::KeepRunning).await;
    }

    /// The directory that a program is offered as its root. A shared one works for agents with different workdirs.
    pub(super) fn root(&self) -> Option<&Path> {
        let is_own_program = self.owner.session.is_some() && self.server.config.command.is_some();
        is_own_program.then_some(&self.owner.workdir)
    }

    /// True while a new lease may be given out.
    pub(super) fn accepts_leases(&self) -> bool {
        *self.shutdown.borrow() == InstanceShutdown::KeepRunning
            && !matches!(*self.state.borrow(), InstanceState::Ended(_))
    }

    pub(super) fn leases(&self) -> usize {
        *self.lease_count.borrow()
    }

    pub(super) fn watch_leases(&self) -> watch::Receiver<usize> {
        self.lease_count.subscribe()
    }

    /// True while a waiter needs the start.
    pub(super) fn is_start_wanted(&self) -> bool {
        self.leases() > 0 && *self.shutdown.borrow() == InstanceShutdown::KeepRunning
    }

    /// Waits until no waiter needs the start.
    pub(super) async fn wait_start_unwanted(&self) {
        let (mut lease_changes, mut shutdown_changes) = (self.watch_leases(), self.watch_shutdown());
        // Both arms wait for conditions.
        // waits: beside the start, in the supervisor.
        tokio::select! {
            _ = lease_changes.wait_for(|count| *count == 0) => {}
            _ = shutdown_changes.wait_for(|order| *order != InstanceShutdown::KeepRunning) => {}
        }
    }
}

/// A lease on an instance. An instance with leases is not closed as idle.
#[derive(Debug)]
pub(super) struct InstanceLease(Arc<ServerInstance>);

impl InstanceLease {
    /// Call it under the lock of the pool, under which an instance is found to be unused.
    pub(super) fn acquire(instance: &Arc<ServerInstance>) -> Self {
        instance.lease_count.send_modify(|count| *count += 1);
        Self(Arc::clone(instance))
    }

    pub(super) fn instance(&self) -> &Arc<ServerInstance> {
        &self.0
    }
}

impl Drop for InstanceLease {
    fn drop(&mut self) {
        self.0.lease_count.send_modify(|count| *count -= 1);
    }
}
