//! The face of the engine: start, submit, stop, look, shut down. Every door calls these and nothing below.

mod archive;
mod audit;
mod channels;
mod config;
mod hold;
mod journal;
mod look;
mod memory;
mod recover;
mod reload;
mod retention;
mod sessions;
mod shutdown;
mod society;
mod submit;
mod tokens;
mod waiting;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_kernel::Registry;
use quell_kernel::registry::{Gate, StopAsk, StopScope};
use quell_protocol::api::Hold;
use quell_protocol::{HookEvent, Principal, RunId, Surface};
use tokio_util::sync::CancellationToken;

pub use crate::access::{Access, Caller};
use crate::agent::{Materials, Society, Workshop};
pub use crate::approvals::AnswerError;
use crate::approvals::Approvals;
pub use crate::cell::{Follower, Hub, Notice, Overrun, Subscription};
use crate::clock::Clock;
use crate::hooks::{Happening, HookGround, Hooks};
use crate::journal::Journal;
use crate::llm::Models;
use crate::mcp::{Mcp, McpSettings};
use crate::memory::Memory;
use crate::proc::Wardens;
pub use crate::runs::{Runs, Stop, Ticket};
use crate::session::{Cradle, SessionGround, Sessions, sweep_at_times};
pub use crate::session::{Got, NotMade, SessionSettings};
use crate::store::Store;
use crate::tools::Toolbox;
use crate::tools::background::Background;
pub use archive::{ArchiveReader, BadArchive, ImportError};
pub use audit::Deed;
use audit::{Notes, keep_notes};
pub use channels::Telling;
pub use config::{EngineConfig, StartError};
use journal::keep_journal;
pub use look::{Follow, HistoryPage, NumberedTurn};
pub use memory::NoteFilter;
pub use reload::{ReloadError, Reloaded};
pub use retention::Retention;
use retention::keep_within_bounds;
pub use sessions::SessionError;
pub use society::{Removal, SocietyError};
pub use submit::{StopText, Submission, SubmitError, Submitted, stop_answer};
use waiting::Unsealed;

/// How often the maintenance looks for what is over its time (row A6; the exact timers are each run's own).
const MAINTENANCE: Duration = Duration::from_secs(10);
/// How long a session's history stays in memory that nobody has read or written.
const HISTORY_KEPT: Duration = Duration::from_secs(60);

/// The engine. Clones are the same.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    clock: Clock,
    hub: Hub,
    store: Store,
    access: Access,
    models: Models,
    workshop: Arc<Workshop>,
    runs: Runs,
    sessions: Sessions,
    config: EngineConfig,
    notes: Notes,
    closing: CancellationToken,
    /// A hold that the database has refused so far.
    unwritten_hold: tokio::sync::Mutex<Option<Hold>>,
    /// Runs of the last daemon while the database cannot be written; none once they are sealed.
    unsealed: Mutex<Option<Unsealed>>,
    /// Whether the database took a write, and when that was asked.
    writable: tokio::sync::Mutex<Option<(tokio::time::Instant, Result<(), String>)>>,
}

impl Engine {
    /// Opens the database, ends and seals what a crash left, and is ready to take runs. Where nothing can be written for now, it is
    /// ready to look and to stop, and takes runs later by itself.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    ///
    /// # Cancel safety
    /// Not cancel safe: a start that is dropped half-way leaves the database open until the process ends.
    pub async fn start(config: EngineConfig) -> Result<Self, StartError> {
        let clock = config.clock;
        let store = Store::open(&config.data_dir, &config.store_file)?;
        let models = Models::new(config.providers.clone())?;
        let hub = Hub::default();
        let background = Background::new(clock, hub.clone(), config.limits.background_per_session);
        let workshop = Arc::new(build_workshop(&config, &models, (clock, background), &store)?);
        society::restore(&store, &workshop.society).await?;
        let registry = Registry::new(config.stop, config.limits.bounds());
        let runs = Runs::new(registry, Arc::clone(&workshop), store.clone(), clock, hub.clone());
        let journal = Journal::default();
        let cradle = Cradle {
            expiry: config.expiry,
            run_timeout: Duration::from_secs(config.limits.run_timeout_s),
            probe: config.probe.clone(),
            journal: journal.clone(),
        };
        let sessions = Sessions::new(
            runs.clone(),
            SessionGround {
                cradle,
                settings: config.sessions,
                data_dir: &config.data_dir,
                in_flight: config.limits.in_flight_runs,
            },
        );
        let access = Access::open(&config.token_file, store.clone(), clock).await?;
        let alive = recover::end_survivors(&store, &workshop).await?;
        let unsealed = waiting::seal_now((&store, clock), &workshop, &alive).await?;
        let waits = unsealed.is_some();
        if !waits {
            let today = clock.day(clock.now());
            runs.bring_forward(today, store.spent_on(today.to_string()).await?);
        }
        if store.hold().await?.held {
            runs.set_gate(Gate::Held);
        }
        let (notes, closing) = (Notes::default(), CancellationToken::new());
        let (unwritten_hold, writable) = (tokio::sync::Mutex::default(), tokio::sync::Mutex::default());
        let inner = Inner {
            clock,
            hub,
            store,
            access,
            models,
            workshop,
            runs,
            sessions,
            config,
            notes,
            closing,
            unwritten_hold,
            unsealed: Mutex::new(unsealed),
            writable,
        };
        let engine = Self(Arc::new(inner));
        if waits {
            engine.0.runs.spawn(engine.clone().seal_later(alive));
        }
        engine.0.runs.spawn(maintain(engine.clone()));
        engine.0.runs.spawn(sweep_at_times(engine.0.sessions.clone()));
        engine.0.runs.spawn(keep_journal(engine.clone(), journal));
        engine.hooks().start().await;
        engine.hooks().tell(Happening::of_daemon(HookEvent::Start));
        engine.0.runs.spawn(keep_notes(engine.clone()));
        engine.0.runs.spawn(keep_within_bounds(engine.clone()));
        Ok(engine)
    }

    /// Stops what `scope` covers and `caller` may stop.
    ///
    /// Not async: when it returns, the tokens have fired, the wardens are told and the verdicts stand. Nothing that happens to
    /// the caller afterwards can take it back. The tickets in the answer can be waited for.
    #[must_use]
    pub fn stop(&self, caller: &Caller, scope: &StopScope, ask: &StopAsk) -> Stop {
        let stop = self.0.runs.stop(scope, &caller.who(), ask);
        self.tell_of_stop(caller, (scope, ask), &stop);
        stop
    }

    /// Stops a run that may not be accepted yet, as [`Engine::stop`] does. The caller knows whose it is; one who may stop it
    /// ends it as soon as it is accepted, in the caller's own name.
    #[must_use]
    pub fn stop_coming(&self, caller: &Caller, (run, owner): (&RunId, &Principal), ask: &StopAsk) -> Stop {
        let stop = self.0.runs.stop_coming((run, owner), &caller.who(), ask);
        self.tell_of_stop(caller, (&StopScope::Run { id: run.clone(), session: None }, ask), &stop);
        stop
    }

    fn tell_of_stop(&self, caller: &Caller, (scope, ask): (&StopScope, &StopAsk), stop: &Stop) {
        if let (Surface::Tui, StopScope::Session { key, .. }) = (caller.surface, scope) {
            tracing::info!(session = %key, principal = %caller.principal, push = ?ask.push, "Esc pressed");
        }
        tracing::info!(
            principal = %caller.principal, surface = ?caller.surface, scope = ?scope, push = ?ask.push,
            stopped = stop.aborted.len(), processes = stop.ended, tasks = stop.tasks.len(), "abort request handled"
        );
        self.note_stop(caller, (scope, ask), stop);
    }

    /// Who may come in.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// The steady clock that all times in views come from.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The configuration that it was started with. Its providers and agents may have been replaced since.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.0.config
    }

    /// Subscribes to everything that happens from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        self.0.hub.subscribe()
    }

    /// True while new runs are taken or held; false once the engine closes.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.runs.gate() != Gate::Closing
    }

    /// Waits until the engine begins to close, so that doors end their streams.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn closing(&self) {
        self.0.closing.cancelled().await;
    }

    /// Waits until it is known that another daemon has taken over the data directory: this one can only shut down.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn fenced(&self) {
        self.0.store.fenced().cancelled().await;
    }

    /// True once [`Engine::fenced`] returns.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.0.store.fenced().is_cancelled()
    }

    /// Its MCP servers.
    #[must_use]
    pub fn mcp(&self) -> &Mcp {
        &self.0.workshop.mcp
    }

    /// Its lifecycle hooks.
    #[must_use]
    pub fn hooks(&self) -> &Hooks {
        &self.0.workshop.hooks
    }

    /// Looks for sessions that nobody has used for too long, as the sweeper does every `[sessions] sweep_s`. Their clean-up goes
    /// on when this returns.
    pub fn sweep_sessions(&self) {
        self.0.sessions.sweep();
    }

    /// Callers that wait for a session which somebody else makes or cleans up.
    #[must_use]
    pub fn awaiting_sessions(&self) -> usize {
        self.0.sessions.awaited()
    }

    /// Steps of sessions' clean-ups that failed and will be tried again.
    #[must_use]
    pub fn unclean_sessions(&self) -> usize {
        self.0.sessions.unclean()
    }

    /// Sessions that live.
    #[must_use]
    pub fn live_sessions(&self) -> usize {
        self.0.sessions.count()
    }

    /// Takes new runs, and starts those that wait.
    fn let_in_again(&self) {
        if self.is_open() {
            self.0.runs.set_gate(Gate::Open);
            for key in self.0.runs.waiting_sessions() {
                self.0.sessions.poke(&key);
            }
        }
    }

    /// Does in a task of the engine what must not be left half done by a caller who leaves: what the database knows and the
    /// memory does not, or what nobody would find in the audit list. None when the engine closes first.
    async fn seen_through<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.0.runs.spawn(async move {
            // Nobody may be waiting any more; the work is done.
            let _ = answer.send(work.await);
        });
        answered.await.ok()
    }

    fn inner(&self) -> &Inner {
        &self.0
    }
}

async fn maintain(engine: Engine) {
    let mut beat = tokio::time::interval(MAINTENANCE);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => return,
            _ = beat.tick() => {
                engine.0.runs.sweep();
                engine.0.sessions.drop_histories(HISTORY_KEPT);
                engine.let_vanished_go();
                engine.write_hold_again().await;
            }
        }
    }
}

/// In the data directory: births and ends of wardens, for the next daemon.
const WARDENS_FILE: &str = "wardens";

fn build_workshop(
    config: &EngineConfig,
    models: &Models,
    (clock, background): (Clock, Background),
    store: &Store,
) -> Result<Workshop, StartError> {
    let mut tools = config.tools.clone();
    tools.protected.directories.push(config.data_dir.clone());
    tools.protected.files.push(config.token_file.clone());
    let toolbox = Arc::new(Toolbox::new(tools));
    let home = config.environment.iter().find(|(name, _)| name == "HOME").map(|(_, home)| PathBuf::from(home));
    let materials = Materials {
        models: models.clone(),
        toolbox: Arc::clone(&toolbox),
        servers: config.mcp.keys().cloned().collect(),
        work_dir: config.work_dir.clone(),
        home,
    };
    let society = Society::new(materials, &config.agents)?;
    let wardens = Wardens::with_record(
        config.warden.clone(),
        config.stop,
        &config.data_dir.join(WARDENS_FILE),
        config.open_files,
    )
    .map_err(StartError::Wardens)?;
    let mcp = Mcp::new(McpSettings {
        servers: config.mcp.clone(),
        wardens: wardens.clone(),
        environment: config.environment.clone(),
        times: config.stop,
        clock,
    })?;
    let hooks = Hooks::new(HookGround {
        settings: config.hooks.clone(),
        lifecycle: config.lifecycle.clone(),
        wardens: wardens.clone(),
        environment: config.environment.clone(),
        cwd: config.data_dir.clone(),
        store: store.clone(),
        clock,
    })?;
    Ok(Workshop {
        society,
        toolbox,
        mcp,
        hooks,
        wardens,
        environment: config.environment.clone(),
        background,
        memory: Memory::new(store.clone(), config.memory.clone()),
        approvals: Approvals::default(),
        limits: config.limits.clone(),
    })
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}
