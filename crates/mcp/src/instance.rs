//! The state of one server instance: starting, ready or ended; its program, its users and leases, its shutdown level.
//!
//! The task that drives it is in [`super::supervisor`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quell_kernel::Moment;
use quell_process::{CommandNetwork, CommandProcesses, LiveProcess, SandboxSpec};
use quell_protocol::receipt::ProcessFacts;
use quell_protocol::{AgentId, Principal, RunId, SessionKey};
use quell_scope::{Ledger, Release};
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
    /// Unique during the life of the daemon.
    pub(super) number: u64,
    pub(super) started: Moment,
    /// Set when the process of a program is started.
    pub(super) program: OnceLock<InstanceProgram>,
    state: watch::Sender<InstanceState>,
    /// The number of leases of each run.
    leases: watch::Sender<BTreeMap<RunId, usize>>,
    /// The number of runs that have used it and are neither over nor stopped.
    active_runs: watch::Sender<usize>,
    users: Mutex<InstanceUsers>,
    shutdown: watch::Sender<InstanceShutdown>,
}

/// What is known of the process of a program.
#[derive(Debug)]
pub(super) struct InstanceProgram {
    pub(super) processes: CommandProcesses,
    /// Its first row is the process.
    pub(super) ledger: Ledger,
}

impl InstanceProgram {
    pub(super) fn facts(&self) -> Option<ProcessFacts> {
        self.ledger.rows().into_iter().next()?.process
    }
}

/// Who has used an instance.
#[derive(Debug, Default)]
struct InstanceUsers {
    /// The last run of each session.
    sessions: BTreeMap<SessionKey, ServerUser>,
    /// The processes that are older than what a stopped run may have left, which could not be told while others were
    /// calling.
    older_processes: Option<Vec<LiveProcess>>,
    /// A stop has ended it: whoever is stopped waits for its end.
    is_stopped: bool,
    /// Its session is gone, and nobody is shown how it ended.
    is_forgotten: bool,
}

/// The run of a session that used a server last.
#[derive(Debug, Clone)]
pub(super) struct ServerUser {
    pub(super) run: RunId,
    pub(super) principal: Principal,
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
    /// None until its supervisor is done.
    pub(super) at: Option<Moment>,
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
            at: None,
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
    pub(super) fn new(server: Arc<McpServer>, owner: InstanceOwner, number: u64, started: Moment) -> Self {
        Self {
            server,
            owner,
            number,
            started,
            program: OnceLock::new(),
            state: watch::Sender::new(InstanceState::Starting),
            leases: watch::Sender::default(),
            active_runs: watch::Sender::new(0),
            users: Mutex::default(),
            shutdown: watch::Sender::new(InstanceShutdown::KeepRunning),
        }
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

    /// Raises the shutdown level, without waiting. Returns true for the first request.
    pub(super) fn request_shutdown(&self, requested: InstanceShutdown) -> bool {
        let mut is_first = false;
        self.shutdown.send_if_modified(|current| {
            let is_stronger = current.severity() < requested.severity();
            if is_stronger {
                is_first = *current == InstanceShutdown::KeepRunning;
                *current = requested;
            }
            is_stronger
        });
        is_first
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
        let is_own_program = self.owner.session.is_some() && self.is_program();
        is_own_program.then_some(&self.owner.workdir)
    }

    /// True if the server is a program that is started here.
    pub(super) fn is_program(&self) -> bool {
        self.server.config.command.is_some()
    }

    /// True while a new lease may be given out.
    pub(super) fn accepts_leases(&self) -> bool {
        *self.shutdown.borrow() == InstanceShutdown::KeepRunning
            && !matches!(*self.state.borrow(), InstanceState::Ended(_))
    }

    pub(super) fn leases(&self) -> usize {
        self.leases.borrow().values().sum()
    }

    pub(super) fn watch_leases(&self) -> watch::Receiver<BTreeMap<RunId, usize>> {
        self.leases.subscribe()
    }

    /// Waits until a run has no lease.
    pub(super) async fn wait_left_by(&self, run: &RunId) {
        let mut lease_changes = self.watch_leases();
        // The sender lives in `self`, so waiting cannot fail.
        // waits: as one arm of several, in `server_use`.
        let _ = lease_changes.wait_for(|leases| !leases.contains_key(run)).await;
    }

    /// Records that a run has begun to use it.
    pub(super) fn note_user(&self, session: SessionKey, user: ServerUser) {
        self.lock_users().sessions.insert(session, user);
        self.active_runs.send_modify(|count| *count += 1);
    }

    /// Records that such a run is stopped or over.
    pub(super) fn note_user_gone(&self) {
        self.active_runs.send_modify(|count| *count = count.saturating_sub(1));
    }

    /// Waits until no run uses it that is neither over nor stopped.
    pub(super) async fn wait_unused_by_active_runs(&self) {
        let mut active_runs = self.active_runs.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        // waits: as one arm of several, in `server_use`.
        let _ = active_runs.wait_for(|count| *count == 0).await;
    }

    /// Leaves it to the next run that leaves to end what a stopped run has left. `older` were there before that run.
    pub(super) fn defer_cleanup(&self, older: Vec<LiveProcess>) {
        self.lock_users().older_processes.get_or_insert(older);
    }

    /// Takes over the cleanup that a stopped run has left: the processes that are older than what it may have left.
    pub(super) fn take_deferred_cleanup(&self) -> Option<Vec<LiveProcess>> {
        self.lock_users().older_processes.take()
    }

    pub(super) fn mark_stopped(&self) {
        self.lock_users().is_stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock_users().is_stopped
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.lock_users().is_forgotten
    }

    /// Each session that has used it, with its last run.
    pub(super) fn sessions(&self) -> BTreeMap<SessionKey, ServerUser> {
        self.lock_users().sessions.clone()
    }

    /// Forgets a session that is gone.
    pub(super) fn forget_session(&self, session: &SessionKey) {
        let mut users = self.lock_users();
        users.sessions.remove(session);
        users.is_forgotten |= self.owner.session.as_ref() == Some(session);
    }

    fn lock_users(&self) -> MutexGuard<'_, InstanceUsers> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
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
            _ = lease_changes.wait_for(BTreeMap::is_empty) => {}
            _ = shutdown_changes.wait_for(|order| *order != InstanceShutdown::KeepRunning) => {}
        }
    }
}

/// A lease on an instance. An instance with leases is not closed as idle.
#[derive(Debug)]
pub(super) struct InstanceLease {
    instance: Arc<ServerInstance>,
    run: RunId,
}

impl InstanceLease {
    /// Call it under the lock of the pool, under which an instance is found to be unused.
    pub(super) fn acquire(instance: &Arc<ServerInstance>, run: &RunId) -> Self {
        instance.leases.send_modify(|leases| *leases.entry(run.clone()).or_default() += 1);
        Self { instance: Arc::clone(instance), run: run.clone() }
    }

    pub(super) fn instance(&self) -> &Arc<ServerInstance> {
        &self.instance
    }
}

impl Drop for InstanceLease {
    fn drop(&mut self) {
        self.instance.leases.send_modify(|leases| {
            if let Some(count) = leases.get_mut(&self.run) {
                *count -= 1;
            }
            leases.retain(|_, count| *count > 0);
        });
    }
}
