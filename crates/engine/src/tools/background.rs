//! Commands that go on after the call that started them: the session's, until they end, are killed, or the session or the
//! daemon ends. Each has a scope of its own, and remembers the run that started it. So have tasks without a process (`task`).
//!
//! The run that starts one holds it in its own ledger while it works, so that its stop and its receipt cover it; when the
//! run's work is done without a stop, the command is the session's alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quell_kernel::Moment;
use quell_protocol::background::ProcessRow;
use quell_protocol::receipt::ProcessFacts;
use quell_protocol::{Principal, ResourceKind, RunId, SessionKey, ToolOutputStream};
use tokio::net::unix::pipe::Sender;
use tokio::sync::watch;

use crate::cell::{Hub, Notice};
use crate::clock::Clock;
use crate::proc::{CommandSpec, Leash, OutputSink, ProcessEnd, SpawnError, Wardens};
use crate::scope::{Held, Probe, Scope, StopLevel};

mod output;
mod task;
pub use output::Excerpt;
use output::Tail;
pub use task::{BackgroundTask, NotTaken, TaskAtWork};

/// Ended commands of a session that are remembered, so that their output can be read.
const REMEMBERED: usize = 16;

/// All background commands of an engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct Background(Arc<Shared>);

struct Shared {
    clock: Clock,
    hub: Hub,
    /// Most commands of one session that run at the same time.
    limit: usize,
    table: Mutex<Table>,
    /// Told of each end, with the run that had started it.
    ended: OnceLock<Listener>,
}

type Listener = Box<dyn Fn(&RunId) + Send + Sync>;

#[derive(Default)]
struct Table {
    last: u64,
    processes: BTreeMap<u64, Arc<BackgroundProcess>>,
    /// Numbers of commands that are being born, with their sessions.
    starting: BTreeMap<u64, SessionKey>,
    /// What goes on without a process, until it is over.
    tasks: BTreeMap<u64, Arc<BackgroundTask>>,
    closed: bool,
}

/// Whose a command is.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The session.
    pub session: SessionKey,
    /// The run that started it.
    pub run: RunId,
    /// For whom that run works.
    pub principal: Principal,
}

/// One command in the background.
pub struct BackgroundProcess {
    /// Its name, unique in the daemon's life.
    pub id: String,
    /// Whose it is.
    pub owner: Owner,
    label: String,
    clock: Clock,
    started: Moment,
    scope: Scope,
    told: AtomicBool,
    /// Descriptors: given back at its end, however long its output is remembered.
    grip: Mutex<Grip>,
    tail: Mutex<Tail>,
    state: watch::Sender<State>,
}

/// What the daemon holds a living command by.
#[derive(Default)]
struct Grip {
    leash: Option<Leash>,
    input: Option<Arc<Sender>>,
}

/// How far a command is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Running,
    Ended { at: Moment, end: Result<Box<ProcessEnd>, String> },
}

/// Why a command is not started in the background.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// The session has enough of them.
    #[error(
        "{limit} commands of this session run in the background already, which is the limit; end one with the tool `process`"
    )]
    TooMany {
        /// How many may run.
        limit: usize,
    },
    /// The daemon closes.
    #[error("the daemon is shutting down")]
    Closing,
    /// The command.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

impl Background {
    /// None yet; `limit` is the most commands of one session that run at the same time.
    #[must_use]
    pub fn new(clock: Clock, hub: Hub, limit: usize) -> Self {
        let (table, ended) = (Mutex::default(), OnceLock::new());
        Self(Arc::new(Shared { clock, hub, limit, table, ended }))
    }

    /// Has `ended` called at the end of each command, with the run that had started it. Only the first call counts.
    pub fn on_end(&self, ended: impl Fn(&RunId) + Send + Sync + 'static) {
        // One engine, one listener.
        let _ = self.0.ended.set(Box::new(ended));
    }

    /// Starts a command. From before its birth the ledger of `run` holds it, and a stop of the run ends it.
    ///
    /// # Errors
    /// [`NotStarted`]; nothing runs then.
    pub fn start(
        &self,
        wardens: &Wardens,
        spec: &CommandSpec,
        owner: Owner,
        run: &Scope,
    ) -> Result<Arc<BackgroundProcess>, NotStarted> {
        let number = self.reserve(&owner.session)?;
        let held = run.hold(ResourceKind::Process, spec.label.clone()).in_background();
        // No lock is held while a process is born: a stop waits for nothing.
        let (scope, started) = (Scope::new(self.0.clock, Probe::default()), self.0.clock.now());
        let mut running = match wardens.start(spec, &scope) {
            Ok(running) => running,
            Err(error) => {
                held.release("failed");
                self.table().starting.remove(&number);
                return Err(error.into());
            }
        };
        let process = Arc::new(BackgroundProcess {
            id: format!("p{number}"),
            owner,
            label: spec.label.clone(),
            clock: self.0.clock,
            started,
            told: AtomicBool::new(false),
            scope,
            grip: Mutex::new(Grip { leash: Some(running.leash()), input: running.take_input().map(Arc::new) }),
            tail: Mutex::new(Tail::new(spec.output_limit)),
            state: watch::Sender::new(State::Running),
        });
        let mut table = self.table();
        table.starting.remove(&number);
        table.processes.insert(number, Arc::clone(&process));
        drop(table);
        // Told at once when the stop came a moment earlier.
        let told = Arc::clone(&process);
        let held = held.on_stop(move |level| {
            told.end(level);
        });
        process.scope.spawn(see_through(self.clone(), Arc::clone(&process), running, held));
        self.tell(&process);
        let (session, run) = (&process.owner.session, &process.owner.run);
        tracing::info!(process = process.id, %session, %run, "background process started");
        Ok(process)
    }

    /// The number of a new command, if its session may have one more.
    fn reserve(&self, session: &SessionKey) -> Result<u64, NotStarted> {
        let mut table = self.table();
        if table.closed {
            return Err(NotStarted::Closing);
        }
        let alive = table.processes.values().filter(|process| process.owner.session == *session && process.is_alive());
        let starting = table.starting.values().filter(|starting| *starting == session);
        if alive.count() + starting.count() >= self.0.limit {
            return Err(NotStarted::TooMany { limit: self.0.limit });
        }
        table.last += 1;
        let number = table.last;
        table.starting.insert(number, session.clone());
        Ok(number)
    }

    /// The commands of a session, oldest first.
    #[must_use]
    pub fn of_session(&self, session: &SessionKey) -> Vec<Arc<BackgroundProcess>> {
        self.find(|process| process.owner.session == *session)
    }

    /// The commands of all sessions, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<BackgroundProcess>> {
        self.find(|_| true)
    }

    /// One command of a session.
    #[must_use]
    pub fn get(&self, session: &SessionKey, id: &str) -> Option<Arc<BackgroundProcess>> {
        self.find(|process| process.owner.session == *session && process.id == id).pop()
    }

    /// True while a command or a task goes on that this run started.
    #[must_use]
    pub fn has_of_run(&self, run: &RunId) -> bool {
        self.table().owners().any(|owner| owner.run == *run)
    }

    /// True while a command or a task of this session goes on.
    #[must_use]
    pub fn has_of_session(&self, session: &SessionKey) -> bool {
        self.table().owners().any(|owner| owner.session == *session)
    }

    /// Sessions of which a command or a task goes on.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionKey> {
        let table = self.table();
        table.owners().map(|owner| owner.session.clone()).chain(table.starting.values().cloned()).collect()
    }

    /// How many live.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.table().processes.values().filter(|process| process.is_alive()).count()
    }

    /// Tells every living command that is covered to end. Synchronous. Answers them, and how many nobody had told before.
    pub fn end(&self, level: StopLevel, covers: impl Fn(&Owner) -> bool) -> (Vec<Arc<BackgroundProcess>>, usize) {
        let covered = self.find(|process| process.is_alive() && covers(&process.owner));
        let fresh = covered.iter().filter(|process| process.end(level)).count();
        (covered, fresh)
    }

    /// Starts nothing any more.
    pub fn close(&self) {
        self.table().closed = true;
    }

    /// Forgets the ended commands of a session.
    pub fn forget_session(&self, session: &SessionKey) {
        self.table().processes.retain(|_, process| process.owner.session != *session || process.is_alive());
    }

    fn find(&self, wanted: impl Fn(&BackgroundProcess) -> bool) -> Vec<Arc<BackgroundProcess>> {
        self.table().processes.values().filter(|process| wanted(process)).cloned().collect()
    }

    fn tell(&self, process: &BackgroundProcess) {
        self.0.hub.publish(&Notice::Session { key: process.owner.session.clone(), reason: "process" });
    }

    /// Of the ended commands of a session only the last ones stay.
    fn trim(&self, session: &SessionKey) {
        let mut table = self.table();
        let over = |process: &BackgroundProcess| process.owner.session == *session && !process.is_alive();
        let ended: Vec<u64> = table.processes.iter().filter(|(_, it)| over(it)).map(|(number, _)| *number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(REMEMBERED)) {
            table.processes.remove(number);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whose all that is that goes on.
    fn owners(&self) -> impl Iterator<Item = &Owner> {
        let alive = self.processes.values().filter(|process| process.is_alive());
        alive.map(|process| &process.owner).chain(self.tasks.values().map(|task| &task.owner))
    }
}

/// Collects what the command prints until nothing of it is alive; then every ledger and everybody who waits knows.
async fn see_through(
    background: Background,
    process: Arc<BackgroundProcess>,
    running: crate::proc::Running,
    held: Held,
) {
    // waits: for the life of the command, in a task of its own scope; a stop tells its warden.
    let ended = running.collect(&mut TailSink(&process)).await;
    process.tail().finish();
    *process.grip() = Grip::default();
    let rows = process.scope.ledger().rows();
    if let Some(facts) = rows.first().and_then(|row| row.process.clone()) {
        held.note_process(facts);
    }
    let how = match &ended {
        Ok(end) => end.how.word(),
        Err(_) => "failed",
    };
    for name in ended.iter().flat_map(|end| &end.leftovers) {
        held.note_leftover(name.clone());
    }
    held.release(how);
    let end = ended.map(Box::new).map_err(|error| error.to_string());
    process.state.send_replace(State::Ended { at: background.0.clock.now(), end });
    tracing::info!(process = process.id, session = %process.owner.session, how, "background process ended");
    background.trim(&process.owner.session);
    background.tell(&process);
    if let Some(ended) = background.0.ended.get() {
        ended(&process.owner.run);
    }
}

struct TailSink<'a>(&'a BackgroundProcess);

impl OutputSink for TailSink<'_> {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        self.0.tail().push(stream, text);
    }
}

impl BackgroundProcess {
    /// True until the last process of it is dead.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        *self.state.borrow() == State::Running
    }

    /// Waits until the last process of it is dead.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn ended(&self) {
        // The sender lives in self, so waiting cannot fail.
        // waits: raced by the tool `process`, bounded at the shutdown.
        let _ = self.state.subscribe().wait_for(|state| *state != State::Running).await;
    }

    /// Tells it to end, at once and without waiting. True when nobody had told it before.
    pub fn end(&self, level: StopLevel) -> bool {
        if let Some(leash) = &self.grip().leash {
            leash.end(level);
        }
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// Output from place `after` on, as far as it is still kept: at most `most` bytes, the last ones.
    #[must_use]
    pub fn output(&self, after: u64, most: usize) -> Excerpt {
        self.tail().excerpt(after, most)
    }

    /// Where it reads from; none when its input is closed.
    #[must_use]
    pub fn input(&self) -> Option<Arc<Sender>> {
        self.grip().input.clone()
    }

    /// Closes its input: it reads the end once nobody writes any more.
    pub fn close_input(&self) {
        self.grip().input.take();
    }

    /// True when it is over and nothing of it lives.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(&*self.state.borrow(), State::Ended { end: Ok(end), .. } if end.leftovers.is_empty())
    }

    /// As the doors show it.
    #[must_use]
    pub fn row(&self) -> ProcessRow {
        let rows = self.scope.ledger().rows();
        let facts: Option<ProcessFacts> = rows.first().and_then(|row| row.process.clone());
        let state = self.state.borrow().clone();
        let (ended, end) = match state {
            State::Running => (None, None),
            State::Ended { at, end } => (Some(at), Some(end)),
        };
        let how = end.as_ref().map(|end| end.as_ref().map_or("failed", |end| end.how.word()).to_owned());
        ProcessRow {
            id: self.id.clone(),
            session_key: self.owner.session.clone(),
            started_by_run: self.owner.run.clone(),
            principal: self.owner.principal.clone(),
            command: self.label.clone(),
            pid: facts.as_ref().map(|facts| facts.pid).filter(|pid| *pid != 0),
            state: if ended.is_some() { "ended" } else { "running" }.to_owned(),
            started_at: self.clock.rfc3339(self.started),
            ended_at: ended.map(|at| self.clock.rfc3339(at)),
            exit_code: facts.as_ref().and_then(|facts| facts.exit_code),
            signal: facts.as_ref().and_then(|facts| facts.signal),
            swept: facts.as_ref().map_or(0, |facts| facts.swept),
            how,
            leftovers: end.and_then(Result::ok).map(|end| end.leftovers).unwrap_or_default(),
            output_bytes: self.tail().end(),
        }
    }

    fn grip(&self) -> MutexGuard<'_, Grip> {
        self.grip.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Background")
    }
}

impl std::fmt::Debug for BackgroundProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackgroundProcess({} of {})", self.id, self.owner.session)
    }
}
