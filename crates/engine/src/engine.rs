//! The facade of the engine: start, submit, stop, query, shut down. All transports call only this.

mod access_audit;
mod agents;
mod approvals;
mod archive;
mod audit;
mod channel_state;
mod client_runs;
mod client_tokens;
mod cluster_view;
mod config;
mod deferred_sealing;
mod drain;
mod duties;
mod event_bridge;
mod history;
mod hold;
mod journal_writer;
mod mcp_browse;
mod membership;
mod notes;
mod peer_agents;
mod peers;
mod placement;
mod processes;
mod push_targets;
mod recovery;
mod reload;
mod remote_run;
mod responses;
mod retention;
mod runs;
mod schedules;
mod session_transfer;
mod session_work;
mod sessions;
mod shutdown;
mod submission;
mod tokens;
mod undo;
mod visibility;
mod voice;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_kernel::RunRegistry;
use quell_kernel::hold_order::HoldOrder;
use quell_kernel::registry::{AdmissionGate, StopRequest, StopRequester, StopScope};
use quell_llm::Models;
use quell_mcp::{Mcp, McpSettings};
use quell_process::Wardens;
use quell_protocol::api::Hold;
use quell_protocol::{HookEvent, Principal, RunId, Surface};
use quell_scope::clock::{Clock, time_zone_name};
use quell_scope::{Point, PointProbe, Scope};
use quell_store::Store;
use quell_tools::Toolbox;
use quell_tools::background::BackgroundWork;
use tokio_util::sync::CancellationToken;

pub use crate::access::{AccessControl, Caller};
use crate::agent::{AgentFactory, AgentRegistry, SandboxSite, Services, mcp_directories};
use crate::approvals::Approvals;
pub use crate::approvals::{AnswerError, ApprovalSettings};
use crate::cluster::Cluster;
pub use crate::cluster::{NodeReport, PeerCall, PeerCallError, PeerStopWait};
use crate::hooks::{HookDeps, HookTrigger, Hooks};
use crate::journal::Journal;
use crate::live_run::RunDefaults;
pub use crate::live_run::{
    ClientAnswer, EngineNotice, Follower, Hub, LiveRun, RunWork, SubscriberOverrun, Subscription,
};
use crate::memory::NoteMemory;
use crate::push::{PushDeps, PushNotifier};
use crate::runs::DaySums;
pub use crate::runs::{RunTable, StopResult, Ticket};
use crate::schedules::{ScheduleStopOrigin, Schedules};
pub use crate::session::{OpenSessionError, OpenSessionOutcome, SessionSettings};
use crate::session::{SessionDeps, Sessions, run_sweeper};
use access_audit::AccessAudit;
pub use agents::{AgentChangeError, AgentRemoval};
pub use archive::{ArchiveError, ArchiveReader, ImportError};
pub use audit::AuditAction;
use audit::{AuditQueue, run_audit_writer};
pub use channel_state::ShutdownGuard;
pub use client_runs::{AGENT_PREFIX, ClientRun, ClientRunError};
pub use client_tokens::CountTokensError;
pub use config::{EngineConfig, NodeSettings, StartError};
use deferred_sealing::UnsealedRuns;
pub use duties::DutyPermit;
pub use history::{HistoryPage, NumberedTurn};
use journal_writer::run_journal_writer;
pub use mcp_browse::McpRequestError;
use membership::Node;
pub use notes::NoteFilter;
pub use peer_agents::AgentActivity;
pub use peers::{PeerMessages, PeerService};
pub use placement::{Placement, PlacementError};
pub use processes::SessionProcess;
pub use quell_llm::{MAX_SPEECH_CHARS, SPEECH_MEDIA_TYPE};
use recovery::Recovery;
pub use reload::{ReloadError, ReloadSummary};
pub use remote_run::RemoteFollower;
pub use retention::Retention;
use retention::run_retention;
pub use runs::RunFollow;
use schedules::run_schedules;
pub use session_transfer::SessionTransferError;
pub use session_work::SessionWorkError;
pub use sessions::SessionError;
pub use submission::{StopTextMode, Submission, SubmitError, SubmitOutcome, build_stop_answer};
pub use undo::UndoError;
pub use voice::VoiceError;

/// How often the maintenance task aborts expired runs and drops what is no longer needed (row A6 in
/// `docs/design/requirements.md`). The exact timers belong to each run.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a session's history stays in memory without being read or written.
const HISTORY_CACHE_TTL: Duration = Duration::from_secs(60);

/// The engine. Clones share one engine.
#[derive(Clone)]
pub struct Engine(Arc<EngineInner>);

struct EngineInner {
    clock: Clock,
    hub: Hub,
    store: Store,
    access: AccessControl,
    models: Models,
    services: Arc<Services>,
    push: PushNotifier,
    runs: RunTable,
    sessions: Sessions,
    /// Part of the names of what MCP servers do for people. Nobody outside can guess it.
    people_key: uuid::Uuid,
    config: EngineConfig,
    audit_queue: AuditQueue,
    access_audit: AccessAudit,
    /// Names of the configured chat channels.
    channel_names: Mutex<BTreeSet<String>>,
    closing: CancellationToken,
    /// A hold that could not be stored yet.
    unwritten_hold: tokio::sync::Mutex<Option<Hold>>,
    hold_order: Mutex<HoldOrder>,
    /// Runs of the last daemon while the database cannot be written; `None` once they are sealed.
    unsealed_runs: Mutex<Option<UnsealedRuns>>,
    /// Result of the last check whether the database takes writes, and when it was made.
    writable_check: tokio::sync::Mutex<Option<(tokio::time::Instant, Result<(), String>)>>,
    /// If this daemon is a node of a cluster.
    node: Option<Node>,
}

impl Engine {
    /// Opens the database, ends the processes and seals the runs that a crash left behind, and then takes runs. If the
    /// database cannot be written, it answers queries and stops, and takes runs later without a restart.
    ///
    /// # Cancel safety
    /// Not cancel safe: a start that is dropped half-way leaves the database open until the process ends.
    pub async fn start(config: EngineConfig) -> Result<Self, StartError> {
        let clock = config.clock;
        let store = config.store.open(&config.data_dir)?;
        let cluster = store.cluster().map(|store| Cluster::new(store, clock, config.cluster.timing()));
        let models = Models::new(config.providers.clone())?;
        let hub = Hub::default();
        let background = BackgroundWork::new(clock, config.limits.background_per_session, {
            let hub = hub.clone();
            move |key| hub.publish(&EngineNotice::session_changed(key.clone(), "process"))
        });
        let services = Arc::new(build_services(&config, &models, clock, background, &store)?);
        let push = PushNotifier::new(PushDeps {
            secret: config.hooks.secret.clone(),
            address_policy: services.toolbox.address_policy(),
            store: store.clone(),
            clock,
        });
        agents::restore_agents(&store, &services.agents).await?;
        let registry = RunRegistry::new(config.stop_timeouts, config.limits.run_limits());
        let runs = RunTable::new(registry, Arc::clone(&services), store.clone(), clock, hub.clone());
        let journal = Journal::default();
        let run_defaults = RunDefaults {
            expiry: config.expiry,
            run_timeout: Duration::from_secs(config.limits.run_timeout_s),
            probe: config.probe.clone(),
            journal: journal.clone(),
        };
        let sessions = Sessions::new(
            runs.clone(),
            SessionDeps {
                run_defaults,
                settings: config.sessions,
                data_dir: &config.data_dir,
                max_in_flight: config.limits.in_flight_runs,
                cluster: cluster.clone(),
                cluster_secret: config.cluster.secret.as_ref(),
            },
        );
        sessions.owners().load(&store).await?;
        let access =
            AccessControl::open(&config.token_file, store.clone(), clock, config.cluster.secret.as_ref()).await?;
        let recovery = Recovery::begin(store.clone(), clock, Arc::clone(&services)).await?;
        let unsealed = deferred_sealing::seal_or_defer(&recovery).await?;
        let (node, node_tasks) = match cluster {
            Some(cluster) => Some(Node::new(cluster, recovery.clone(), &config.cluster).await?).unzip(),
            None => (None, None),
        };
        let is_deferred = unsealed.is_some();
        if !is_deferred {
            let today = clock.day(clock.now());
            runs.load_spend(today, DaySums::load(&store, today.to_string()).await?);
        }
        let (hold, mut hold_order) = (store.runs().hold().await?, HoldOrder::default());
        hold_order.stored_hold(hold.revision);
        if hold.held {
            runs.set_gate(AdmissionGate::Held);
        }
        let access_audit = AccessAudit::load(&store).await?;
        let (audit_queue, closing) = (AuditQueue::default(), CancellationToken::new());
        let (unwritten_hold, writable_check) = (tokio::sync::Mutex::default(), tokio::sync::Mutex::default());
        let inner = EngineInner {
            clock,
            hub,
            store,
            access,
            models,
            services,
            push,
            runs,
            sessions,
            people_key: uuid::Uuid::now_v7(),
            config,
            audit_queue,
            access_audit,
            channel_names: Mutex::default(),
            closing,
            unwritten_hold,
            hold_order: Mutex::new(hold_order),
            unsealed_runs: Mutex::new(unsealed),
            writable_check,
            node,
        };
        let engine = Self(Arc::new(inner));
        engine.join_cluster(node_tasks).await?;
        if is_deferred {
            engine.0.runs.spawn(engine.clone().retry_sealing(recovery));
        }
        engine.0.runs.spawn(run_maintenance(engine.clone()));
        engine.0.runs.spawn(run_sweeper(engine.0.sessions.clone()));
        engine.0.runs.spawn(delete_files_of_earlier_starts(engine.clone()));
        engine.0.runs.spawn(run_journal_writer(engine.clone(), journal));
        engine.audit_remembered_allowances();
        engine.hooks().start().await;
        engine.hooks().notify(HookTrigger::for_daemon(HookEvent::Start));
        engine.0.runs.spawn(run_audit_writer(engine.clone()));
        engine.0.runs.spawn(run_retention(engine.clone()));
        engine.schedules().reload().await?;
        engine.0.runs.spawn(run_schedules(engine.clone()));
        Ok(engine)
    }

    /// Stops what `scope` covers and `caller` may stop.
    ///
    /// Not async: when it returns, the tokens are cancelled, the wardens have the stop and the verdicts stand. Nothing
    /// that happens to the caller afterwards can undo it. The tickets in the result can be waited for.
    #[must_use]
    pub fn stop(&self, caller: &Caller, scope: &StopScope, request: &StopRequest) -> StopResult {
        let mut stop_result = self.stop_work(scope, &caller.who(), request);
        self.stop_schedules(scope, &caller.who(), request, ScheduleStopOrigin::ThisNode, &mut stop_result);
        stop_result.peers = self.ask_peers_to_stop(scope, caller.who(), request);
        self.log_stop(caller, scope, request, &stop_result);
        stop_result
    }

    /// Stops the runs and what else is at work on this node.
    fn stop_work(&self, scope: &StopScope, requester: &StopRequester, request: &StopRequest) -> StopResult {
        // A server that everything is stopped with is told before the runs that use it: none of them keeps it.
        let early = self.stop_all_servers(scope, requester, request.level);
        let mut stop_result = self.0.runs.stop(scope, requester, request);
        self.stop_pending_sessions(scope, requester);
        self.stop_servers(scope, requester, request.level, &mut stop_result);
        stop_result.servers.add(early);
        stop_result
    }

    /// Stops a run that may not be accepted yet, as [`Engine::stop`] does. The caller names the owner of the run. If
    /// `caller` may stop it, it is aborted as soon as it is accepted, in the name of `caller`.
    #[must_use]
    pub fn stop_run_of_owner(
        &self,
        caller: &Caller,
        run: &RunId,
        owner: &Principal,
        request: &StopRequest,
    ) -> StopResult {
        let stop_result = self.0.runs.stop_run_of_owner(run, owner, &caller.who(), request);
        self.log_stop(caller, &StopScope::run(run.clone()), request, &stop_result);
        stop_result
    }

    fn log_stop(&self, caller: &Caller, scope: &StopScope, request: &StopRequest, stop_result: &StopResult) {
        if let (Surface::Tui, StopScope::Session { key, .. }) = (caller.surface, scope) {
            tracing::info!(session = %key, principal = %caller.principal, stop_level = ?request.level, "Esc pressed");
        }
        tracing::info!(
            principal = %caller.principal, surface = ?caller.surface, scope = ?scope, stop_level = ?request.level,
            stopped = stop_result.aborted.len(), processes = stop_result.newly_ended_processes(), tasks = stop_result.background.tasks.len(), "abort request handled"
        );
        self.audit_stop(caller, scope, request, stop_result);
    }

    pub fn access(&self) -> &AccessControl {
        &self.0.access
    }

    /// The engine's monotonic clock: the times in views come from it.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The configuration that the engine was started with. Its providers and agents may have been replaced since.
    pub fn config(&self) -> &EngineConfig {
        &self.0.config
    }

    /// Subscribes to all events and notices from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.0.hub.subscribe()
    }

    /// True while the gate is open or held; false once the engine closes.
    pub fn is_open(&self) -> bool {
        self.0.runs.gate() != AdmissionGate::Closing
    }

    /// Waits until the engine begins to close, so that transports end their streams.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_close(&self) {
        self.0.closing.cancelled().await;
    }

    /// Waits until another daemon has taken over the database, or this node has lost its lease: this daemon can then only
    /// shut down.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_fence(&self) {
        match self.cluster() {
            Some(cluster) => cluster.lost().cancelled().await,
            None => self.0.store.fenced().cancelled().await,
        }
    }

    /// True once [`Engine::wait_for_fence`] returns.
    pub fn is_fenced(&self) -> bool {
        self.cluster().map_or_else(|| self.0.store.fenced(), Cluster::lost).is_cancelled()
    }

    /// False once this node has to end its work, because it could not renew its lease: another one may go on with it.
    pub fn permits_work(&self) -> bool {
        self.cluster().is_none_or(Cluster::permits_work)
    }

    /// The cluster that this daemon is a node of.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.0.node.as_ref().map(Node::cluster)
    }

    pub fn mcp(&self) -> &Mcp {
        &self.0.services.mcp
    }

    pub fn hooks(&self) -> &Hooks {
        &self.0.services.hooks
    }

    /// Starts the clean-up of expired sessions, as the sweeper does every `[sessions] sweep_s`. The clean-up continues
    /// after this returns.
    pub fn sweep_sessions(&self) {
        self.0.sessions.sweep();
    }

    /// Callers that wait while another caller creates or cleans up the session they want.
    pub fn count_session_waiters(&self) -> usize {
        self.0.sessions.count_waiters()
    }

    /// Failed steps of session clean-ups that will be tried again.
    pub fn count_pending_cleanups(&self) -> usize {
        self.0.sessions.count_pending_cleanups()
    }

    pub fn count_live_sessions(&self) -> usize {
        self.0.sessions.count()
    }

    /// Opens the gate for new runs, and starts the waiting ones.
    fn resume_admission(&self) {
        if self.is_open() {
            self.0.runs.set_gate(AdmissionGate::Open);
            self.0.services.schedules.notify_changed();
            for key in self.0.runs.waiting_sessions() {
                self.0.sessions.wake_actor(&key);
            }
        }
    }

    /// Runs `work` in a task of the engine, so that a caller that leaves does not interrupt it: the database and the
    /// memory would differ, or the audit entry would be missing. `None` if the engine closes first.
    async fn run_detached<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.0.runs.spawn(async move {
            // The caller may have left; the work is done all the same.
            let _ = sender.send(work.await);
        });
        receiver.await.ok()
    }

    fn inner(&self) -> &EngineInner {
        &self.0
    }
}

async fn run_maintenance(engine: Engine) {
    let mut ticker = tokio::time::interval(MAINTENANCE_INTERVAL);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => return,
            _ = ticker.tick() => {
                engine.0.runs.sweep();
                engine.0.sessions.drop_unused_histories(HISTORY_CACHE_TTL);
                engine.remove_unconfigured_agents();
            }
        }
    }
}

/// Beside the work of the daemon: agents decide how much there is. The end of the daemon interrupts it.
async fn delete_files_of_earlier_starts(engine: Engine) {
    let scope = Scope::new(engine.0.clock, PointProbe::default());
    let site = Arc::clone(&engine.0.services.sandbox_site);
    let delete = move |stop: &AtomicBool| site.delete_files_put_aside(stop);
    tokio::select! {
        () = engine.0.closing.cancelled() => {}
        deleted = scope.blocking(Point::Blocking, "temporary files of earlier starts", delete) => {
            if let Ok(Err(error)) = deleted {
                tracing::warn!(%error, "temporary files of an earlier start stay until the next one");
            }
        }
    }
    scope.close().await;
}

/// In the data directory: a record of the wardens that started and ended, for the next daemon.
const WARDENS_FILE: &str = "wardens";

/// In the data directory: the temporary files of commands, by session.
const TEMPORARY_DIRECTORY: &str = "tmp";

fn build_services(
    config: &EngineConfig,
    models: &Models,
    clock: Clock,
    background: BackgroundWork,
    store: &Store,
) -> Result<Services, StartError> {
    let mut tools = config.tools.clone();
    tools.protected.directories.push(config.data_dir.clone());
    tools.protected.files.push(config.token_file.clone());
    let home_dir = config.environment.iter().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
    let sandbox_site = Arc::new(SandboxSite::new(
        config.work_dir.clone(),
        config.data_dir.join(TEMPORARY_DIRECTORY),
        home_dir,
        &tools.protected,
    ));
    sandbox_site.put_aside_temporary_files();
    let toolbox = Arc::new(Toolbox::new(tools));
    let factory = AgentFactory {
        models: models.clone(),
        toolbox: Arc::clone(&toolbox),
        mcp_servers: config.mcp.keys().cloned().collect(),
        sandbox_site: Arc::clone(&sandbox_site),
    };
    let registry = AgentRegistry::new(factory, &config.agents)?;
    let wardens = Wardens::with_warden_record(
        config.warden_exe.clone(),
        config.stop_timeouts,
        &config.data_dir.join(WARDENS_FILE),
        config.open_files_limit,
    )
    .map_err(StartError::Wardens)?;
    let mcp = Mcp::new(McpSettings {
        servers: config.mcp.clone(),
        wardens: wardens.clone(),
        environment: config.environment.clone(),
        data_dir: config.data_dir.clone(),
        directories: mcp_directories(&config.work_dir),
        times: config.stop_timeouts,
        clock,
    })?;
    let hooks = Hooks::new(HookDeps {
        settings: config.hooks.clone(),
        lifecycle: config.lifecycle_hooks.clone(),
        wardens: wardens.clone(),
        environment: config.environment.clone(),
        cwd: config.data_dir.clone(),
        store: store.clone(),
        clock,
    })?;
    let tz = config.environment.iter().find(|(name, _)| name == "TZ");
    Ok(Services {
        agents: registry,
        toolbox,
        mcp,
        hooks,
        wardens,
        environment: config.environment.clone(),
        time_zone: time_zone_name(tz.and_then(|(_, name)| name.to_str())),
        sandbox_site,
        background,
        memory: NoteMemory::new(store.clone(), config.memory.clone()),
        schedules: Schedules::new(store.clone(), clock, config.schedules.clone()),
        approvals: Approvals::new(config.approvals),
        limits: config.limits.clone(),
    })
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}
