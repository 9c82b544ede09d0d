//! Live sessions: their table, one actor per busy session, the history cache and news of background runs.
//!
//! The session table records which callers create, use and clean up each session. The actor takes the run that is due,
//! waits for its end, and continues with the sealed turn in memory, recorded or not. Its mailbox is the session's queue
//! in the registry.

mod admission;
mod cleanup;
mod creation;
mod key_store;
mod lookup;
mod overrides;
mod ownership;
mod prompt_files;
mod resources;
mod run_control;
mod status;

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_bus::ClusterSecret;
use quell_kernel::Moment;
use quell_kernel::api_key::KeyRefusal;
use quell_kernel::session::SessionTable;
use quell_kernel::turn::Turn;
use quell_net::AddressPolicy;
use quell_protocol::hook::HookEvent;
use quell_protocol::{ErrorCode, ResourceKind, SessionKey};
use quell_scope::{Interrupted, Point};
use quell_store::{ClaimOutcome, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::hooks::Hooks;
use crate::live_run::{EngineNotice, LiveRun, RunDefaults, RunProgress};
use crate::runs::{RunInputs, RunPermit, RunSetupError, RunTable, StartRequirement, run_hook_trigger};
use cleanup::PendingCleanup;
pub use cleanup::run_sweeper;
pub use creation::stored_session_facts;
use key_store::SessionKeyStore;
use lookup::EnterRequest;
pub use lookup::{OpenSessionError, OpenSessionOutcome};
pub use overrides::{config_without_workdir, importable_endpoints, stored_workdir};
pub use ownership::{SessionClaim, SessionOwners};
use resources::SessionResources;
use run_control::{RunAncestry, SessionRunControl, pass_unread_news_up};
pub use status::SessionStatus;

/// The sessions that are in memory. Clones share one table.
#[derive(Clone)]
pub struct Sessions(Arc<SessionsInner>);

struct SessionsInner {
    runs: RunTable,
    run_defaults: RunDefaults,
    timeouts: SessionTimes,
    key_store: SessionKeyStore,
    owners: SessionOwners,
    run_permits: Arc<Semaphore>,
    /// Permits for clean-ups, so that a sweep of many sessions does not start a hook for each at once.
    cleanup_permits: Arc<Semaphore>,
    state: Mutex<SessionsState>,
    /// Rises at each finished clean-up.
    cleanup_count: watch::Sender<u64>,
    /// Cancelled when the daemon begins to close: sweeps end, and only runs may still create sessions.
    closing: CancellationToken,
    /// If this daemon is a node of a cluster.
    cluster: Option<Cluster>,
}

/// `[sessions]` of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// Seconds without use after which a session expires: it releases its memory and its server connections. Its
    /// history stays, and the next message revives it. An agent may configure another value.
    pub idle_s: u64,
    /// Seconds between two sweeps for expired sessions.
    pub sweep_s: u64,
    /// Seconds that each step of a session's clean-up may take.
    pub cleanup_s: u64,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self { idle_s: 1800, sweep_s: 300, cleanup_s: 5 }
    }
}

#[derive(Debug, Clone, Copy)]
struct SessionTimes {
    idle_timeout: Duration,
    sweep_interval: Duration,
    cleanup_timeout: Duration,
}

#[derive(Debug)]
pub struct SessionDeps<'a> {
    pub run_defaults: RunDefaults,
    pub settings: SessionSettings,
    /// Holds the key file with which the keys of sessions are encrypted.
    pub data_dir: &'a Path,
    /// How many runs may be in flight.
    pub max_in_flight: usize,
    /// If this daemon is a node of a cluster.
    pub cluster: Option<Cluster>,
    pub cluster_secret: Option<&'a ClusterSecret>,
}

/// How long news waits in memory for the session's next run.
const NEWS_TTL: Duration = Duration::from_secs(24 * 3600);
/// Clean-ups that run at the same time.
const MAX_CLEANUPS: usize = 64;

/// State of all sessions. One lock, so that each query is one consistent step.
#[derive(Default)]
struct SessionsState {
    table: SessionTable<Arc<SessionResources>>,
    /// Sessions with something to do.
    actors: HashMap<SessionKey, ActorState>,
    /// Results of background runs, until a run of that session reads them.
    news: HashMap<SessionKey, BackgroundNews>,
    /// Callers that wait until a session is created or cleaned up.
    waiters: HashMap<SessionKey, watch::Sender<Option<OpenSessionError>>>,
    pending_cleanups: Vec<PendingCleanup>,
}

impl SessionsState {
    /// Returns a receiver that is notified when this session is created, fails to be created, or is cleaned up. Call it
    /// under the same lock under which the need to wait was found.
    fn add_waiter(&mut self, key: &SessionKey) -> watch::Receiver<Option<OpenSessionError>> {
        self.waiters.entry(key.clone()).or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    /// Wakes all callers that wait for this session: they look again, or get `failure`.
    fn notify_waiters(&mut self, key: &SessionKey, failure: Option<OpenSessionError>) {
        if let Some(sender) = self.waiters.remove(key) {
            sender.send_replace(failure);
        }
    }
}

/// Waits until the session is created, fails to be created, or is cleaned up. Returns the failure, if any.
async fn wait_for_outcome(mut receiver: watch::Receiver<Option<OpenSessionError>>) -> Option<OpenSessionError> {
    // waits: runs race it, for others it is bounded. The sender is dropped after the notification, so the loop ends.
    while receiver.changed().await.is_ok() {}
    receiver.borrow().clone()
}

/// State of a session's actor, which exists while the session has something to do or a cached history.
struct ActorState {
    is_running: bool,
    used_at: Moment,
    history: Option<Arc<Vec<Arc<Turn>>>>,
    /// Rises when the history is forgotten: a history that was read before is not cached.
    history_generation: u64,
    /// Active background runs of this session.
    expected_news: usize,
    /// Signals the running actor that something arrived.
    wake: Arc<Notify>,
}

struct BackgroundNews {
    updated_at: Moment,
    texts: Vec<String>,
}

impl ActorState {
    fn new(used_at: Moment) -> Self {
        Self {
            is_running: false,
            used_at,
            history: None,
            history_generation: 0,
            expected_news: 0,
            wake: Arc::default(),
        }
    }

    fn is_needed(&self) -> bool {
        self.is_running || self.expected_news > 0
    }
}

impl Sessions {
    /// To whom each session belongs.
    pub fn owners(&self) -> &SessionOwners {
        &self.0.owners
    }

    pub fn new(runs: RunTable, deps: SessionDeps<'_>) -> Self {
        let SessionDeps { run_defaults, settings, data_dir, max_in_flight: in_flight, cluster, cluster_secret } = deps;
        let seconds = Duration::from_secs;
        let times = SessionTimes {
            idle_timeout: seconds(settings.idle_s),
            sweep_interval: seconds(settings.sweep_s.max(1)),
            cleanup_timeout: seconds(settings.cleanup_s.max(1)),
        };
        Self(Arc::new(SessionsInner {
            runs,
            run_defaults,
            timeouts: times,
            key_store: match cluster_secret {
                Some(secret) => SessionKeyStore::of_cluster(data_dir, secret),
                None => SessionKeyStore::in_data_dir(data_dir),
            },
            owners: SessionOwners::default(),
            run_permits: Arc::new(Semaphore::new(in_flight.clamp(1, Semaphore::MAX_PERMITS))),
            cleanup_permits: Arc::new(Semaphore::new(MAX_CLEANUPS)),
            state: Mutex::default(),
            cleanup_count: watch::Sender::new(0),
            closing: CancellationToken::new(),
            cluster,
        }))
    }

    /// Makes a session one of this node, if the daemon is one. What is in memory of a session that was another node's
    /// meanwhile is forgotten.
    ///
    /// # Errors
    /// [`StoreError::OtherNode`] if it belongs to another one.
    ///
    /// # Cancel safety
    /// Safe: see [`Cluster::claim_session`].
    pub async fn claim_for_node(&self, key: &SessionKey) -> Result<(), StoreError> {
        let Some(cluster) = self.0.cluster.as_ref().filter(|cluster| !cluster.owns_session(key)) else { return Ok(()) };
        // waits: for callers that race it, and in tasks that no stop ends.
        match cluster.claim_session(key).await? {
            ClaimOutcome::Claimed => {
                if let Some(actor) = self.lock_state().actors.get_mut(key).filter(|actor| !actor.is_running) {
                    actor.history = None;
                    actor.history_generation += 1;
                }
                Ok(())
            }
            ClaimOutcome::OwnedBy(_) => Err(StoreError::OtherNode(key.clone())),
        }
    }

    /// Wakes the actor of a session, because a run may be due.
    pub fn wake_actor(&self, key: &SessionKey) {
        let now = self.0.runs.clock().now();
        let mut state = self.lock_state();
        let SessionsState { table, actors, .. } = &mut *state;
        let actor = actors.entry(key.clone()).or_insert_with(|| ActorState::new(now));
        actor.used_at = now;
        if actor.is_running {
            actor.wake.notify_one();
            return;
        }
        table.keep_for_waiting_work(key, now, |resources| self.use_besides_runs(resources, Some(actor)));
        actor.is_running = true;
        drop(state);
        self.0.runs.spawn(run_actor(self.clone(), key.clone()));
    }

    /// Forgets the cached history of a session and its agents' skills; the next run reads both again.
    pub fn forget_history(&self, key: &SessionKey) {
        let mut state = self.lock_state();
        if let Some(resources) = state.table.resources(key) {
            resources.prompt_files.clear();
        }
        if let Some(actor) = state.actors.get_mut(key) {
            actor.history = None;
            actor.history_generation += 1;
        }
        state.news.remove(key);
        drop(state);
        self.0.runs.services().background.forget_session(key);
        self.0.runs.services().approvals.forget_session(key);
        self.0.runs.services().mcp.close_session(key);
        self.0.runs.services().mcp.forget_session(key);
    }

    /// The files with project instructions in the prompts of a live session, each with its size.
    pub fn instruction_files(&self, key: &SessionKey) -> Vec<String> {
        let state = self.lock_state();
        state.table.resources(key).map(|resources| resources.prompt_files.instruction_files()).unwrap_or_default()
    }

    /// Counts a background run of this session that will send news.
    fn expect_news(&self, key: &SessionKey) {
        if let Some(actor) = self.lock_state().actors.get_mut(key) {
            actor.expected_news += 1;
        }
    }

    /// Counts a background run of this session that is over.
    fn expect_one_less_news(&self, key: &SessionKey) {
        if let Some(actor) = self.lock_state().actors.get_mut(key) {
            actor.expected_news = actor.expected_news.saturating_sub(1);
        }
    }

    fn add_news(&self, ancestry: &RunAncestry, texts: Vec<String>) {
        let now = self.0.runs.clock().now();
        // The lock orders this with `pass_unread_news_up`: an ended run passes on its unread news under it, and gets
        // none afterwards.
        let mut state = self.lock_state();
        let Some(recipient) = ancestry.news_recipient().filter(|_| !texts.is_empty()) else { return };
        let news = state
            .news
            .entry(recipient.clone())
            .or_insert_with(|| BackgroundNews { updated_at: now, texts: Vec::new() });
        news.updated_at = now;
        news.texts.extend(texts);
    }

    fn take_news(&self, key: &SessionKey) -> Vec<String> {
        self.lock_state().news.remove(key).map(|news| news.texts).unwrap_or_default()
    }

    /// True while a session is in memory: it was used recently, a caller waits for it, or it is being cleaned up.
    pub fn is_live(&self, key: &SessionKey) -> bool {
        let state = self.lock_state();
        !state.table.is_gone(key) || state.actors.contains_key(key)
    }

    fn restore_news(&self, key: &SessionKey, texts: Vec<String>) {
        let since = self.0.runs.clock().now();
        let mut state = self.lock_state();
        let news =
            state.news.entry(key.clone()).or_insert_with(|| BackgroundNews { updated_at: since, texts: Vec::new() });
        news.texts.splice(0..0, texts);
    }

    pub fn count(&self) -> usize {
        self.lock_state().table.len()
    }

    /// The sealed turns that a new run continues on.
    async fn load_history(&self, key: &SessionKey) -> Result<Vec<Arc<Turn>>, StoreError> {
        let cached = self.lock_state().actors.get(key).map(|actor| (actor.history.clone(), actor.history_generation));
        let (cached, generation) = cached.unwrap_or_default();
        if let Some(history) = cached {
            return Ok(history.to_vec());
        }
        let stored = self.0.runs.store().history().turns(key.clone()).await?;
        let mut turns = Vec::with_capacity(stored.len());
        for text in stored {
            let turn = Turn::from_stored(&text).map_err(|error| StoreError::Corrupt(error.to_string()))?;
            turns.push(Arc::new(turn));
        }
        // A reset or deletion during the read has made these turns obsolete: do not cache them.
        if let Some(actor) =
            self.lock_state().actors.get_mut(key).filter(|actor| actor.history_generation == generation)
        {
            actor.history = Some(Arc::new(turns.clone()));
        }
        Ok(turns)
    }

    fn append_turn(&self, key: &SessionKey, turn: Arc<Turn>) {
        if let Some(actor) = self.lock_state().actors.get_mut(key)
            && let Some(history) = &mut actor.history
        {
            Arc::make_mut(history).push(turn);
        }
    }

    /// Waits for a permit for the next run of a session; `None` if there is something to do without one.
    async fn acquire_run_permit(&self, key: &SessionKey) -> Option<OwnedSemaphorePermit> {
        let now = self.0.runs.clock().now();
        let wake =
            Arc::clone(&self.lock_state().actors.entry(key.clone()).or_insert_with(|| ActorState::new(now)).wake);
        // Kept across wake-ups, so that the place in the semaphore's queue is not lost.
        let mut acquire = pin!(Arc::clone(&self.0.run_permits).acquire_owned());
        loop {
            tokio::select! {
                // The semaphore is never closed.
                permit = &mut acquire => return permit.ok(),
                () = wake.notified() => {
                    if self.0.runs.has_due_sub_run(key) || self.0.runs.due_requirement(key).is_none() {
                        return None;
                    }
                }
            }
        }
    }

    /// Lets the actor sleep, unless something became due meanwhile.
    fn try_sleep(&self, key: &SessionKey) -> bool {
        let now = self.0.runs.clock().now();
        let mut state = self.lock_state();
        if self.0.runs.due_requirement(key).is_some() {
            return false;
        }
        if let Some(actor) = state.actors.get_mut(key) {
            actor.is_running = false;
            actor.used_at = now;
        }
        state.table.release(key, now);
        true
    }

    /// Prepares what a run works with: its session (created if necessary), its agent as configured for that session,
    /// and the history.
    async fn prepare_run(&self, live_run: &LiveRun) -> Result<RunInputs, Interrupted<RunSetupError>> {
        let run = &live_run.run;
        // An agent is removed only when all its runs are over, so this should not happen; the run fails at once if it
        // does.
        let Some(base) = self.0.runs.services().agents.get(&run.agent) else {
            let message = format!("its agent {:?} is not there any more; send the message to another one", run.agent);
            return Err(Interrupted::Failed(RunSetupError { code: ErrorCode::AgentNotFound.as_str(), message }));
        };
        let facts = run_hook_trigger(HookEvent::Activate, live_run.view(), None).run;
        let request = EnterRequest {
            scope: &live_run.scope,
            agent: &run.agent,
            setup: None,
            next_agent: None,
            run_facts: facts,
            requested_by: None,
            address_policy: AddressPolicy::PublicOnly,
        };
        // waits: raced against the run's scope, which the request holds.
        let (resources, _) =
            self.get_or_create(&run.session, &request).await.map_err(|why| why.map(RunSetupError::from))?;
        // Set only once: a run enters one session.
        let _ = live_run.session.set(resources.facts.clone());
        resources.set_idle_timeout(self.idle_timeout_of(&base));
        let routed_model = live_run.channel_origin.as_ref().and_then(|origin| origin.options().routed_model.as_deref());
        let agent = match resources.routed_agent(&base, self.0.runs.services().agents.factory(), routed_model) {
            Ok(agent) if resources.has_own_model() && !live_run.key.may_use_model(agent.config.model.first()) => {
                let refusal = KeyRefusal::Model(agent.config.model.first().to_owned());
                let (code, message) = (ErrorCode::Forbidden.as_str(), refusal.to_string());
                return Err(Interrupted::Failed(RunSetupError { code, message }));
            }
            Ok(agent) => match &live_run.max_permissions {
                Some(max_permissions) if !agent.can_be_called_within(max_permissions) => {
                    return Err(Interrupted::Failed(RunSetupError {
                        code: "user",
                        message: format!(
                            "the agent {:?} has no user of its own (`run_as`), but the agent that called it has: its \
                             commands would have other rights, or could not use its files; give it a `run_as`",
                            agent.id.as_str()
                        ),
                    }));
                }
                Some(max_permissions) => Arc::new(agent.restricted_to(max_permissions)),
                None => agent,
            },
            Err(problem) => {
                return Err(Interrupted::Failed(OpenSessionError::Configuration(problem).into()));
            }
        };
        // waits: raced against the run's scope.
        let toolbox = &self.0.runs.services().toolbox;
        let agent = resources.prompt_files.add_prompt_files(live_run, &base, agent, toolbox).await?;
        let history = live_run.scope.race(Point::LoadHistory, self.load_history(&run.session)).await?;
        let history = history
            .map_err(|error| Interrupted::Failed(RunSetupError { code: "store", message: error.to_string() }))?;
        // Sub-runs do not get the session's own endpoint, because their parent did not have it.
        let endpoint = resources.endpoint.clone().filter(|_| live_run.max_permissions.is_none());
        Ok(RunInputs { agent, endpoint, history })
    }

    /// The idle timeout of sessions of this agent.
    fn idle_timeout_of(&self, agent: &Agent) -> Duration {
        agent.config.idle_s.map_or(self.0.timeouts.idle_timeout, Duration::from_secs)
    }

    fn hooks(&self) -> &Hooks {
        &self.0.runs.services().hooks
    }

    fn lock_state(&self) -> MutexGuard<'_, SessionsState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<OpenSessionError> for RunSetupError {
    fn from(error: OpenSessionError) -> Self {
        Self { code: error.code().as_str(), message: error.to_string() }
    }
}

/// The actor of one session. It ends when no run is due.
async fn run_actor(sessions: Sessions, key: SessionKey) {
    let runs = &sessions.0.runs;
    loop {
        let permit = match runs.due_requirement(&key) {
            // If the queued run is stopped during this wait, it ends at once, and possibly nothing is due any more.
            Some(StartRequirement::Permit) => sessions.acquire_run_permit(&key).await,
            Some(StartRequirement::Nothing) => None,
            None if sessions.try_sleep(&key) => return,
            None => continue,
        };
        let available = if permit.is_some() { StartRequirement::Permit } else { StartRequirement::Nothing };
        let Some(live_run) = runs.start_due_run(&key, available) else { continue };
        let hold_permit =
            |permit| RunPermit { held: live_run.scope.hold(ResourceKind::Permit, "in-flight run"), permit };
        let run_permit = permit.filter(|_| live_run.run.parent.is_none()).map(hold_permit);
        let ancestry = RunAncestry::of(&sessions, &live_run);
        runs.spawn({
            let (live_run, sessions) = (Arc::clone(&live_run), sessions.clone());
            async move {
                let control = SessionRunControl { sessions: &sessions, live_run: &live_run };
                // Boxed, because it is finished before the model is called: inline it would occupy memory through the
                // whole run, once more at each level that it is passed through.
                let inputs = Box::pin(sessions.prepare_run(&live_run));
                sessions.0.runs.run_to_completion(&live_run, &control, run_permit, inputs).await;
            }
        });
        live_run.wait_for_progress(RunProgress::Ended).await;
        pass_unread_news_up(&sessions, &ancestry);
        if let Some(turn) = live_run.sealed_turn() {
            sessions.append_turn(&key, turn);
        }
        // A run in another session may have waited for this one, because it superseded it.
        for waiting_session in runs.queued_sessions_of_scope(&live_run) {
            sessions.wake_actor(&waiting_session);
        }
        runs.hub().publish(&EngineNotice::session_changed(key.clone(), "message"));
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({} live)", self.count())
    }
}
