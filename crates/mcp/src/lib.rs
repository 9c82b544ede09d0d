//! MCP client: a pool of server instances, one per session or shared by all, started on demand and closed when idle.
//!
//! A stop cancels the call and keeps the connection. A server that goes on with the call is restarted, and the receipt
//! of the run says so, in an amendment if the run is over already. The ledger of a run holds the starts and calls that
//! it waits for. The ledger of a server holds its process; each server has a scope and a task of its own. This module
//! does not know agents or the registry.

mod browse;
mod call;
mod client;
mod config;
mod connect;
mod connect_problem;
mod http_connection;
mod instance;
mod late_calls;
mod line_limit;
mod message_monitor;
mod oauth;
mod ordered_transport;
mod probe;
mod program;
mod questions;
mod result;
mod roots;
mod server;
mod server_directory;
mod server_process;
mod server_transport;
mod server_use;
mod sign_in;
mod supervisor;
mod tool_names;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quell_kernel::StopTimeouts;
use quell_net::AddressPolicy;
use quell_process::{SandboxSpec, Wardens};
use quell_protocol::{Leftover, Principal, ResourceKind, RunId, SessionKey};
use quell_scope::StopLevel;
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};
use secrecy::SecretString;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

pub use browse::{BrowseStops, McpBrowseAnswer, McpBrowseError, McpBrowseRequest, browse};
pub use client::{McpCallContext, McpClient, McpClientOptions, ServerTool};
pub use config::{McpConfig, McpConfigError};
use instance::{InstanceLease, InstanceOwner, InstanceShutdown, InstanceState, McpConnection, ServerInstance};
use late_calls::LateCallListener;
pub use late_calls::LateCallUpdate;
use oauth::{TokenFile, TokenRefresher};
pub use probe::{McpServerHealth, probe};
pub use program::{ServerProgram, ServerStop};
pub use questions::{QuestionAnswer, QuestionAsker};
pub use result::ToolAnswer;
use server::McpServer;
pub use sign_in::{McpSignIn, sign_out, start_sign_in};
pub use tool_names::server_of_tool;

/// All MCP servers of an engine. Clones share one pool.
#[derive(Debug, Clone)]
pub struct Mcp(Arc<ServerPool>);

#[derive(Debug, Clone)]
pub struct McpSettings {
    /// The `[mcp.X]` sections, by name.
    pub servers: BTreeMap<String, McpConfig>,
    pub wardens: Wardens,
    /// The environment variables of server processes.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory below which the tokens of sign-ins are kept.
    pub data_dir: PathBuf,
    /// The parent of the directories in which server processes start. No agent may write there.
    pub directories: PathBuf,
    /// The times of the stop ladder.
    pub times: StopTimeouts,
    pub clock: Clock,
}

/// The ended programs that are remembered.
const MAX_ENDED_PROGRAMS: usize = 16;

struct ServerPool {
    servers: BTreeMap<String, Arc<McpServer>>,
    wardens: Wardens,
    environment: Vec<(OsString, OsString)>,
    directories: PathBuf,
    times: StopTimeouts,
    clock: Clock,
    /// The supervisor tasks of the servers.
    tasks: Scope,
    state: Mutex<ServerPoolState>,
    /// Called when more becomes known of a cancelled call after its run has ended.
    late_calls: Arc<LateCallListener>,
    /// Called with each session whose programs have changed.
    program_callback: OnceLock<ProgramCallback>,
    /// The number of instances that have not ended.
    live_instances: watch::Sender<usize>,
    /// Refreshes the tokens of sign-ins.
    refresher: TokenRefresher,
    /// The number of stops of everything, which end the requests of people.
    browse_stops: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct ServerPoolState {
    instances: HashMap<InstanceKey, Vec<Arc<ServerInstance>>>,
    closed: bool,
    last_number: u64,
    /// The programs that ended last, so that people see how they ended.
    ended_programs: VecDeque<Arc<ServerInstance>>,
    /// Leftovers of ended servers, by name, each with the run that had started the server.
    leftovers: Vec<(RunId, String)>,
}

/// The server name of a session's own endpoint.
pub const SESSION_ENDPOINT_NAME: &str = "mcp";

/// A server by URL that one session brings along.
#[derive(Debug, Clone)]
pub struct SessionEndpoint(Arc<McpServer>);

/// Servers that have been told to close.
#[derive(Debug)]
pub struct ClosingServers(Vec<Arc<ServerInstance>>);

impl ClosingServers {
    /// Waits until all of them have ended. Returns their leftovers, by name.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn wait_ended(&self) -> Vec<String> {
        let mut left = Vec::new();
        for instance in &self.0 {
            // waits: in the clean-up of a session, which has a time limit; no run waits here.
            left.extend(instance.wait_ended().await.leftovers.iter().cloned());
        }
        left
    }

    /// Ends them with SIGKILL, without waiting.
    pub fn kill_all(&self) {
        for instance in &self.0 {
            instance.request_shutdown(InstanceShutdown::Kill);
        }
    }
}

type ProgramCallback = Box<dyn Fn(&SessionKey) + Send + Sync>;

impl fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerPool({} servers)", self.servers.len())
    }
}

/// The name of a server, and its session; none for a shared server.
type InstanceKey = (String, Option<SessionKey>);

impl Mcp {
    /// Whether any configured server is a program that is started here.
    pub fn starts_programs(&self) -> bool {
        self.0.servers.values().any(|server| server.config.command.is_some())
    }

    /// Checks the configured servers. Nothing is started and nothing is sent.
    ///
    /// # Errors
    /// [`McpConfigError`] says which section is wrong and how to correct it.
    pub fn new(settings: McpSettings) -> Result<Self, McpConfigError> {
        let mut servers = BTreeMap::new();
        for (name, config) in settings.servers {
            let mut server = McpServer::new(&name, config, settings.times)?;
            server.token_file = server.config.oauth.then(|| TokenFile::of_server(&settings.data_dir, &name));
            servers.insert(name, Arc::new(server));
        }
        let tasks = Scope::new(settings.clock, PointProbe::default());
        Ok(Self(Arc::new(ServerPool {
            refresher: TokenRefresher::new(tasks.clone()),
            servers,
            wardens: settings.wardens,
            environment: settings.environment,
            directories: settings.directories,
            times: settings.times,
            clock: settings.clock,
            tasks,
            state: Mutex::default(),
            late_calls: Arc::default(),
            program_callback: OnceLock::new(),
            live_instances: watch::Sender::new(0),
            browse_stops: watch::Sender::new(0),
        })))
    }

    /// Sets the callback for late updates on cancelled calls whose runs have ended. It must not block.
    pub fn set_late_call_callback(&self, callback: impl Fn(LateCallUpdate) + Send + Sync + 'static) {
        self.0.late_calls.set_callback(callback);
    }

    /// Sets the callback for programs that start or end; it gets a session that has them and must not block. Only the first
    /// call counts.
    pub fn set_program_callback(&self, callback: impl Fn(&SessionKey) + Send + Sync + 'static) {
        // An engine sets it once.
        let _ = self.0.program_callback.set(Box::new(callback));
    }

    /// The client for one run, with the servers that its agent may use.
    #[must_use]
    pub fn client_for_run(&self, options: McpClientOptions) -> McpClient {
        McpClient::new(Arc::clone(&self.0), options)
    }

    /// Creates an endpoint that one session brings along. Nothing is sent.
    ///
    /// # Errors
    /// [`McpConfigError`] says what is wrong with it.
    pub fn endpoint(
        &self,
        url: &str,
        api_key: Option<SecretString>,
        address_policy: AddressPolicy,
    ) -> Result<SessionEndpoint, McpConfigError> {
        let config =
            McpConfig { url: Some(url.to_owned()), api_key, addresses: address_policy, ..McpConfig::default() };
        Ok(SessionEndpoint(Arc::new(McpServer::new(SESSION_ENDPOINT_NAME, config, self.0.times)?)))
    }

    /// Tells a session's own servers to close, each after its last call, without waiting. The
    /// result can be awaited until all are closed.
    pub fn close_session(&self, session: &SessionKey) -> ClosingServers {
        let mut instances: Vec<_> = self.0.lock_state().instances.values().flatten().cloned().collect();
        instances.retain(|instance| instance.owner.session.as_ref() == Some(session));
        for instance in &instances {
            instance.request_shutdown(InstanceShutdown::Drain);
        }
        ClosingServers(instances)
    }

    /// Lists the programs of a session that is gone no more.
    pub fn forget_session(&self, session: &SessionKey) {
        let mut state = self.0.lock_state();
        for instance in state.instances.values().flatten().chain(&state.ended_programs) {
            instance.forget_session(session);
        }
        state.ended_programs.retain(|ended| !ended.is_forgotten());
    }

    /// The stops of everything from now on, for requests of people. Watch them before you check for a hold.
    #[must_use]
    pub fn watch_browse_stops(&self) -> BrowseStops {
        BrowseStops::new(self.0.browse_stops.subscribe())
    }

    /// Ends the requests for resources and prompts that people wait for, without waiting.
    pub fn stop_browsing(&self) {
        self.0.browse_stops.send_modify(|count| *count += 1);
    }

    /// The programs of servers, oldest first, with those that have ended recently.
    #[must_use]
    pub fn programs(&self) -> Vec<ServerProgram> {
        let state = self.0.lock_state();
        let instances = state.instances.values().flatten().chain(&state.ended_programs);
        let programs = instances.filter(|instance| instance.is_program());
        let mut programs: Vec<_> =
            programs.map(|instance| ServerProgram::new(Arc::clone(instance), self.0.clock)).collect();
        programs.sort_by_key(ServerProgram::number);
        programs
    }

    /// Ends programs and all that they started, without waiting: those of a session, or all, also shared ones, if there is
    /// none; only those of a principal's runs, if there is one. Gently, each ends after the calls that it works on.
    pub fn end_programs(
        &self,
        session: Option<&SessionKey>,
        principal: Option<&Principal>,
        level: StopLevel,
    ) -> ServerStop {
        let mut stop = ServerStop::default();
        for program in self.programs().into_iter().filter(|program| !program.has_ended()) {
            let is_of_session = session.is_none_or(|session| program.owner_session() == Some(session));
            // Others work with a shared one.
            let is_of_principal = principal.is_none_or(|principal| program.is_of(principal));
            if is_of_session && is_of_principal {
                let is_covered = principal.is_none_or(|principal| !program.is_at_work_for_others(principal));
                let is_first = program.send_end(level, principal);
                if is_covered {
                    stop.newly_ended += usize::from(is_first);
                    stop.programs.push(program);
                }
            }
        }
        stop
    }

    /// Starts no more servers, and tells each to close after its last call, without waiting.
    pub fn close(&self) {
        self.0.lock_state().closed = true;
        self.0.request_shutdown(&InstanceShutdown::Drain);
    }

    /// Ends every server with SIGKILL, without waiting.
    pub fn kill(&self) {
        self.0.request_shutdown(&InstanceShutdown::Kill);
    }

    /// The number of servers that have not ended.
    #[must_use]
    pub fn count_live(&self) -> usize {
        *self.0.live_instances.borrow()
    }

    /// Waits until no server is alive: gently until `force_at`, then with SIGKILL until `give_up_at`. Returns what is
    /// left, by name. Call [`Mcp::close`] first.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn wait_closed(&self, force_at: Instant, give_up_at: Instant) -> Vec<(RunId, Leftover)> {
        let mut live_instances = self.0.live_instances.subscribe();
        // waits: at the end of the daemon, until its deadline; no run waits here.
        if timeout_at(force_at, live_instances.wait_for(|count| *count == 0)).await.is_err() {
            self.kill();
            // waits: as above; the leftovers are named below.
            let _ = timeout_at(give_up_at, live_instances.wait_for(|count| *count == 0)).await;
        }
        let mut refreshes = self.0.refresher.watch_pending();
        // waits: at the end of the daemon, so that a replaced refresh token is stored; a late one is logged.
        if timeout_at(give_up_at, refreshes.wait_for(|count| *count == 0)).await.is_err() {
            tracing::warn!("the refresh of a sign-in at an MCP server was cut off; it may have to be signed in again");
        }
        let state = self.0.lock_state();
        let still_alive = state.instances.values().flatten();
        let alive =
            still_alive.map(|instance| (instance.owner.run.clone(), format!("MCP server {}", instance.server.name)));
        let leftovers = alive.chain(state.leftovers.iter().cloned());
        leftovers.map(|(run, name)| (run, Leftover { kind: ResourceKind::Process, name })).collect()
    }
}

/// The user that programs run as with this sandbox. Agents with different users never share one.
fn user_of(sandbox: Option<&Arc<SandboxSpec>>) -> Option<u32> {
    sandbox.and_then(|sandbox| sandbox.user)
}

impl ServerPool {
    /// A lease on an instance of the server, which is started if there is none.
    fn acquire(self: &Arc<Self>, server: &Arc<McpServer>, options: &McpClientOptions) -> Result<InstanceLease, String> {
        let session = (!server.config.shared).then(|| options.session.clone());
        let key = (server.name.clone(), session.clone());
        let mut state = self.lock_state();
        if state.closed {
            return Err("Quell is shutting down".to_owned());
        }
        // A session may have changed its own endpoint while an earlier run still uses the old one.
        if let Some(running) = state.instances.get(&key).into_iter().flatten().find(|instance| {
            instance.accepts_leases()
                && Arc::ptr_eq(&instance.server, server)
                && user_of(instance.owner.sandbox.as_ref()) == user_of(options.sandbox.as_ref())
        }) {
            return Ok(InstanceLease::acquire(running, &options.run));
        }
        if let Some(failure) = server.recent_start_failure() {
            return Err(failure);
        }
        let owner = InstanceOwner {
            session,
            run: options.run.clone(),
            principal: options.principal.clone(),
            agent: options.agent.clone(),
            workdir: options.workdir.clone(),
            sandbox: options.sandbox.clone(),
            network: options.network.clone(),
        };
        state.last_number += 1;
        let instance = ServerInstance::new(Arc::clone(server), owner, state.last_number, self.clock.now());
        let instance = Arc::new(instance);
        let lease = InstanceLease::acquire(&instance, &options.run);
        state.instances.entry(key).or_default().push(Arc::clone(&instance));
        self.live_instances.send_modify(|count| *count += 1);
        drop(state);
        self.tasks.spawn(supervisor::supervise(Arc::clone(self), instance));
        Ok(lease)
    }

    /// Tells an instance to close if it has no leases. Returns whether it did.
    fn close_if_unused(&self, instance: &ServerInstance) -> bool {
        let _state_guard = self.lock_state();
        let unused = instance.leases() == 0;
        if unused {
            instance.request_shutdown(InstanceShutdown::Drain);
        }
        unused
    }

    /// Gives a lease back. If it was the last one, the instance is ended for this cause, unless it is still starting: a
    /// start ends by itself when nobody waits for it.
    fn release_and_end_unused(&self, lease: InstanceLease, cause: &str) {
        let instance = Arc::clone(lease.instance());
        // Under one lock, so that of two users who leave at once one sees that nobody is left.
        let _state_guard = self.lock_state();
        drop(lease);
        if instance.leases() == 0 && !matches!(instance.state(), InstanceState::Starting) {
            instance.request_shutdown(InstanceShutdown::EndNow(cause.into()));
        }
    }

    /// Gives out no new leases on an instance. Returns whether it still has some.
    fn stop_accepting(&self, instance: &ServerInstance) -> bool {
        let _state_guard = self.lock_state();
        instance.request_shutdown(InstanceShutdown::Drain);
        instance.leases() > 0
    }

    /// Removes an ended instance from the pool and records its leftovers.
    fn remove_ended(&self, instance: &Arc<ServerInstance>, leftovers: &[String]) {
        let key = (instance.server.name.clone(), instance.owner.session.clone());
        let mut state = self.lock_state();
        if let Some(instances) = state.instances.get_mut(&key) {
            instances.retain(|other| !Arc::ptr_eq(other, instance));
            if instances.is_empty() {
                state.instances.remove(&key);
            }
        }
        if instance.is_program() && !instance.is_forgotten() {
            state.ended_programs.push_back(Arc::clone(instance));
            let excess = state.ended_programs.len().saturating_sub(MAX_ENDED_PROGRAMS);
            state.ended_programs.drain(..excess);
        }
        state.leftovers.extend(leftovers.iter().map(|name| (instance.owner.run.clone(), name.clone())));
        drop(state);
        self.live_instances.send_modify(|count| *count -= 1);
        let sessions = instance.owner.session.clone().into_iter().chain(instance.sessions().into_keys());
        sessions.collect::<BTreeSet<_>>().iter().for_each(|session| self.publish_program_change(session));
    }

    fn publish_program_change(&self, session: &SessionKey) {
        if let Some(callback) = self.program_callback.get() {
            callback(session);
        }
    }

    /// The tools of a server: those of the session's own instance if it is ready, otherwise the last known ones.
    fn offered_tools(&self, server: &McpServer, options: &McpClientOptions) -> Option<server::OfferedTools> {
        let connection = self.ready_connection(server, options);
        connection.map_or_else(|| server.last_listed_tools(), |connection| Some(connection.tools()))
    }

    /// The connection of the session's own instance, if it is ready.
    fn ready_connection(&self, server: &McpServer, options: &McpClientOptions) -> Option<Arc<McpConnection>> {
        let session = (!server.config.shared).then(|| options.session.clone());
        let state = self.lock_state();
        let instances = state.instances.get(&(server.name.clone(), session));
        instances.into_iter().flatten().find_map(|instance| match instance.state() {
            InstanceState::Ready(connection)
                if instance.accepts_leases() && std::ptr::eq(&*instance.server, server) =>
            {
                Some(connection)
            }
            _ => None,
        })
    }

    fn request_shutdown(&self, level: &InstanceShutdown) {
        for instance in self.lock_state().instances.values().flatten() {
            instance.request_shutdown(level.clone());
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, ServerPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
