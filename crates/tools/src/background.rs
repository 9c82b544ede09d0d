//! Background commands and tasks of sessions: start, list, end, and publish their changes.
//!
//! A background command belongs to its session. It goes on until it ends, is killed, or the session or the daemon ends.
//! Each has a scope of its own, whose ledger holds it, and remembers the run that started it. The same holds for tasks
//! without a process (`task`). Whatever ends one stops this scope.
//!
//! While the run that started it works, the ledger of that run has a row for the scope, so its stop and its receipt
//! cover it. When the run has finished its work without a stop, this row is released as `kept`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quell_kernel::Moment;
use quell_process::{CommandProcesses, CommandSpec, LiveProcess, OutputSink, ProcessEnd, SpawnError, Wardens};
use quell_protocol::background::{ProcessKind, ProcessRow};
use quell_protocol::receipt::{Leftover, ProcessFacts};
use quell_protocol::{Principal, ResourceKind, RunId, SessionKey, ToolOutputStream};
use quell_scope::clock::Clock;
use quell_scope::{Held, PointProbe, Release, Scope, StopLevel};
use tokio::net::unix::pipe::Sender;
use tokio::sync::watch;

mod output;
mod task;
pub use output::OutputExcerpt;
use output::OutputTail;
pub use task::{BackgroundTask, BackgroundTaskError, BackgroundTaskGuard};

/// Ended commands that are remembered per session, so that their output can be read.
const MAX_REMEMBERED_PROCESSES: usize = 16;

/// All background commands of an engine. Clones share one table.
#[derive(Debug, Clone)]
pub struct BackgroundWork(Arc<BackgroundInner>);

/// Is told the session whose commands have changed.
type ChangeCallback = Box<dyn Fn(&SessionKey) + Send + Sync>;

struct BackgroundInner {
    clock: Clock,
    on_change: ChangeCallback,
    /// The maximum number of commands of one session that run at the same time.
    max_per_session: usize,
    table: Mutex<BackgroundTable>,
    /// Called at each end with the run that had started the command or task.
    end_callback: OnceLock<EndCallback>,
}

type EndCallback = Box<dyn Fn(&RunId) + Send + Sync>;

#[derive(Default)]
struct BackgroundTable {
    last_number: u64,
    processes: BTreeMap<u64, Arc<BackgroundProcess>>,
    /// Numbers of commands that are being started, with their sessions.
    starting: BTreeMap<u64, SessionKey>,
    /// Tasks without a process that have not ended.
    tasks: BTreeMap<u64, Arc<BackgroundTask>>,
    closed: bool,
}

/// The session and the run to which a call or command belongs.
#[derive(Debug, Clone)]
pub struct RunIdentity {
    pub session: SessionKey,
    pub run: RunId,
    /// The principal on whose behalf the run works.
    pub principal: Principal,
}

pub struct BackgroundProcess {
    /// Unique during the life of the daemon.
    pub id: String,
    pub owner: RunIdentity,
    label: String,
    clock: Clock,
    started: Moment,
    scope: Scope,
    processes: CommandProcesses,
    /// The standard input; it is closed when the command ends, even if its output is remembered longer.
    input: Mutex<Option<Arc<Sender>>>,
    tail: Mutex<OutputTail>,
    state: watch::Sender<BackgroundState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BackgroundState {
    Running,
    Ended { at: Moment, end: Result<Box<ProcessEnd>, String> },
}

/// What a stop covers of the background work.
#[derive(Debug, Default)]
pub struct BackgroundStop {
    pub processes: Vec<Arc<BackgroundProcess>>,
    /// Number of commands that this stop was the first to end.
    pub newly_ended: usize,
    /// Covered tasks that are ending. No caller was waiting for their results.
    pub tasks: Vec<Arc<BackgroundTask>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BackgroundStartError {
    #[error(
        "{limit} commands of this session run in the background already, which is the limit; end one with the tool `process`"
    )]
    TooMany { limit: usize },
    #[error("the daemon is shutting down")]
    Closing,
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

impl BackgroundWork {
    /// `limit` is the maximum number of commands of one session that run at the same time.
    /// `on_change` is called with the session of each command that starts, ends or prints.
    pub fn new(clock: Clock, limit: usize, on_change: impl Fn(&SessionKey) + Send + Sync + 'static) -> Self {
        let (table, ended) = (Mutex::default(), OnceLock::new());
        let on_change = Box::new(on_change);
        Self(Arc::new(BackgroundInner { clock, on_change, max_per_session: limit, table, end_callback: ended }))
    }

    /// Sets the callback for the end of each command and task; it gets the run that had started it. Only the first call
    /// counts.
    pub fn set_end_callback(&self, callback: impl Fn(&RunId) + Send + Sync + 'static) {
        // An engine sets it once.
        let _ = self.0.end_callback.set(Box::new(callback));
    }

    /// Starts a command. The ledger of `run` holds it from before the start, and a stop of the run ends it.
    ///
    /// # Errors
    /// [`BackgroundStartError`]; no process is left then.
    pub fn start(
        &self,
        wardens: &Wardens,
        spec: &CommandSpec,
        owner: RunIdentity,
        run: &Scope,
    ) -> Result<Arc<BackgroundProcess>, BackgroundStartError> {
        let number = self.reserve_number(&owner.session)?;
        let held = run.hold(ResourceKind::Process, spec.label.clone());
        // No lock is held while a process starts, so a stop never waits for that.
        let (scope, started) = (Scope::new(self.0.clock, PointProbe::default()), self.0.clock.now());
        let mut running = match wardens.start(spec, &scope) {
            Ok(running) => running,
            Err(error) => {
                held.release(Release::Failed);
                self.lock_table().starting.remove(&number);
                return Err(error.into());
            }
        };
        let process = Arc::new(BackgroundProcess {
            id: format!("p{number}"),
            owner,
            label: spec.label.clone(),
            clock: self.0.clock,
            started,
            scope,
            processes: running.processes(),
            input: Mutex::new(running.take_input().map(Arc::new)),
            tail: Mutex::new(OutputTail::new(spec.output_limit)),
            state: watch::Sender::new(BackgroundState::Running),
        });
        let mut table = self.lock_table();
        table.starting.remove(&number);
        table.processes.insert(number, Arc::clone(&process));
        drop(table);
        // If the run was stopped meanwhile, this stops the command at once.
        let held = hold_scope(held, &process.scope);
        process.scope.spawn(collect_until_end(self.clone(), Arc::clone(&process), running, held));
        self.publish_change(&process);
        let (session, run) = (&process.owner.session, &process.owner.run);
        tracing::info!(process = process.id, %session, %run, "background process started");
        Ok(process)
    }

    /// Reserves a number for a new command, if the session is below its limit.
    fn reserve_number(&self, session: &SessionKey) -> Result<u64, BackgroundStartError> {
        let mut table = self.lock_table();
        if table.closed {
            return Err(BackgroundStartError::Closing);
        }
        let alive = table.processes.values().filter(|process| process.owner.session == *session && process.is_alive());
        let starting = table.starting.values().filter(|starting| *starting == session);
        if alive.count() + starting.count() >= self.0.max_per_session {
            return Err(BackgroundStartError::TooMany { limit: self.0.max_per_session });
        }
        table.last_number += 1;
        let number = table.last_number;
        table.starting.insert(number, session.clone());
        Ok(number)
    }

    /// The commands of a session, oldest first, with the ended ones that are remembered.
    pub fn of_session(&self, session: &SessionKey) -> Vec<Arc<BackgroundProcess>> {
        self.find(|process| process.owner.session == *session)
    }

    /// The commands of all sessions, oldest first.
    pub fn all_processes(&self) -> Vec<Arc<BackgroundProcess>> {
        self.find(|_| true)
    }

    pub fn get(&self, session: &SessionKey, id: &str) -> Option<Arc<BackgroundProcess>> {
        self.find(|process| process.owner.session == *session && process.id == id).pop()
    }

    /// True while a command or a task that this run started goes on.
    pub fn has_work_of_run(&self, run: &RunId) -> bool {
        self.lock_table().active_owners().any(|owner| owner.run == *run)
    }

    pub fn has_work_of_session(&self, session: &SessionKey) -> bool {
        self.lock_table().active_owners().any(|owner| owner.session == *session)
    }

    /// The sessions with a running command or task. A session can occur more than once.
    pub fn sessions_with_work(&self) -> Vec<SessionKey> {
        let table = self.lock_table();
        table.active_owners().map(|owner| owner.session.clone()).chain(table.starting.values().cloned()).collect()
    }

    pub fn count_alive(&self) -> usize {
        self.lock_table().processes.values().filter(|process| process.is_alive()).count()
    }

    /// Stops every running command and task that `covers` selects, without waiting.
    pub fn stop(&self, level: StopLevel, covers: impl Fn(&RunIdentity) -> bool) -> BackgroundStop {
        let processes = self.find(|process| process.is_alive() && covers(&process.owner));
        let tasks: Vec<Arc<BackgroundTask>> =
            self.lock_table().tasks.values().filter(|task| covers(&task.owner)).cloned().collect();
        let newly_ended = processes.iter().filter(|process| process.send_end(level)).count();
        tasks.iter().for_each(|task| task.send_end(level));
        BackgroundStop { processes, newly_ended, tasks }
    }

    /// Refuses new commands and tasks from now on.
    pub fn close(&self) {
        self.lock_table().closed = true;
    }

    /// Forgets the ended commands of a session.
    pub fn forget_session(&self, session: &SessionKey) {
        self.lock_table().processes.retain(|_, process| process.owner.session != *session || process.is_alive());
    }

    fn find(&self, wanted: impl Fn(&BackgroundProcess) -> bool) -> Vec<Arc<BackgroundProcess>> {
        self.lock_table().processes.values().filter(|process| wanted(process)).cloned().collect()
    }

    fn publish_change(&self, process: &BackgroundProcess) {
        (self.0.on_change)(&process.owner.session);
    }

    /// Keeps only the newest ended commands of a session.
    fn forget_oldest_ended(&self, session: &SessionKey) {
        let mut table = self.lock_table();
        let is_ended = |process: &BackgroundProcess| process.owner.session == *session && !process.is_alive();
        let ended: Vec<u64> =
            table.processes.iter().filter(|(_, it)| is_ended(it)).map(|(number, _)| *number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(MAX_REMEMBERED_PROCESSES)) {
            table.processes.remove(number);
        }
    }

    fn lock_table(&self) -> MutexGuard<'_, BackgroundTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackgroundStop {
    /// Waits until all of it is over.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; the stop itself has already happened.
    pub async fn wait_ended(&self) {
        for process in &self.processes {
            // waits: for what was stopped; bounded by the stop ladder and by the caller.
            process.wait_ended().await;
        }
        for task in &self.tasks {
            // waits: for a task that was stopped, as above.
            task.wait_ended().await;
        }
    }

    /// What is not over, or could not be ended, with the run that started it.
    pub fn leftovers(&self) -> Vec<(RunId, Leftover)> {
        let leftover = |owner: &RunIdentity, kind, name| (owner.run.clone(), Leftover { kind, name });
        let commands = self.processes.iter().flat_map(|process| {
            let names = process.leftover_names().into_iter();
            names.map(|name| leftover(&process.owner, ResourceKind::Process, name))
        });
        let tasks = self.tasks.iter().filter(|task| task.is_active());
        commands.chain(tasks.map(|task| leftover(&task.owner, ResourceKind::Task, task.label.clone()))).collect()
    }
}

/// Lets the row of a run stop the scope of its background work, and hands the row over when the run ends well.
fn hold_scope(held: Held, scope: &Scope) -> Held {
    let scope = scope.clone();
    held.as_background().on_stop(move |level| {
        scope.stop(level);
    })
}

impl BackgroundTable {
    /// The owners of all running commands and tasks.
    fn active_owners(&self) -> impl Iterator<Item = &RunIdentity> {
        let alive = self.processes.values().filter(|process| process.is_alive());
        alive.map(|process| &process.owner).chain(self.tasks.values().map(|task| &task.owner))
    }
}

/// Collects the output of a command until all its processes are dead, then updates both ledgers and notifies all
/// waiters.
async fn collect_until_end(
    background: BackgroundWork,
    process: Arc<BackgroundProcess>,
    running: quell_process::RunningCommand,
    held: Held,
) {
    // waits: for the life of the command, in a task of the command's own scope; a stop is sent to its warden.
    let collected = running.collect(&mut TailSink(&process)).await;
    process.lock_tail().finish();
    process.close_input();
    let rows = process.scope.ledger().rows();
    if let Some(facts) = rows.first().and_then(|row| row.process.clone()) {
        held.note_process(facts);
    }
    let how = match &collected {
        Ok(end) => end.how.into(),
        Err(_) => Release::Failed,
    };
    for name in collected.iter().flat_map(|end| &end.leftovers) {
        held.note_leftover(name.clone());
    }
    held.release(how);
    let end = collected.map(Box::new).map_err(|error| error.to_string());
    process.state.send_replace(BackgroundState::Ended { at: background.0.clock.now(), end });
    tracing::info!(process = process.id, session = %process.owner.session, how = how.as_str(), "background process ended");
    background.forget_oldest_ended(&process.owner.session);
    background.publish_change(&process);
    if let Some(callback) = background.0.end_callback.get() {
        callback(&process.owner.run);
    }
}

struct TailSink<'a>(&'a BackgroundProcess);

impl OutputSink for TailSink<'_> {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        self.0.lock_tail().push(stream, text);
    }
}

impl BackgroundProcess {
    /// True until the last process of the command is dead.
    pub fn is_alive(&self) -> bool {
        *self.state.borrow() == BackgroundState::Running
    }

    /// Waits until the last process of the command is dead.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_ended(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        // waits: raced by the tool `process`; bounded by the deadlines of the shutdown.
        let _ = self.state.subscribe().wait_for(|state| *state != BackgroundState::Running).await;
    }

    /// Tells the command to end, without waiting. Returns true the first time.
    pub fn send_end(&self, level: StopLevel) -> bool {
        self.scope.stop(level)
    }

    /// Output from byte offset `after` on, as far as it is kept: at most `max_bytes` bytes, the last ones.
    pub fn output(&self, after: u64, max_bytes: usize) -> OutputExcerpt {
        self.lock_tail().excerpt(after, max_bytes)
    }

    /// The standard input; none when it is closed.
    pub fn input(&self) -> Option<Arc<Sender>> {
        self.lock_input().clone()
    }

    /// Closes the standard input. The command sees the end of its input when no writer is left.
    pub fn close_input(&self) {
        self.lock_input().take();
    }

    /// True when the command has ended and left no processes.
    pub fn ended_cleanly(&self) -> bool {
        matches!(&*self.state.borrow(), BackgroundState::Ended { end: Ok(end), .. } if end.leftovers.is_empty())
    }

    /// The names of its processes that are alive or could not be ended.
    fn leftover_names(&self) -> Vec<String> {
        let row = self.to_row();
        match row.ended_at {
            None => vec![format!("pid {} ({})", row.pid.unwrap_or_default(), row.command)],
            Some(_) => row.leftovers,
        }
    }

    /// The view of the API and of the tool `process`.
    pub fn to_row(&self) -> ProcessRow {
        let rows = self.scope.ledger().rows();
        let facts: Option<ProcessFacts> = rows.first().and_then(|row| row.process.clone());
        let state = self.state.borrow().clone();
        let (ended, end) = match state {
            BackgroundState::Running => (None, None),
            BackgroundState::Ended { at, end } => (Some(at), Some(end)),
        };
        let how =
            end.as_ref().map(|end| end.as_ref().map_or(Release::Failed, |end| end.how.into()).as_str().to_owned());
        ProcessRow {
            id: self.id.clone(),
            kind: ProcessKind::Command,
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
            output_bytes: self.lock_tail().end_offset(),
            alive: self.processes.list().iter().map(LiveProcess::to_row).collect(),
        }
    }

    fn lock_input(&self) -> MutexGuard<'_, Option<Arc<Sender>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_tail(&self) -> MutexGuard<'_, OutputTail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for BackgroundInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackgroundWork")
    }
}

impl std::fmt::Debug for BackgroundProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackgroundProcess({} of {})", self.id, self.owner.session)
    }
}
