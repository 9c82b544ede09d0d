//! Queue events per session, run their hooks with limited concurrency, and end them within the shutdown deadlines.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_protocol::hook::{HookBody, HookEvent};
use quell_protocol::{Leftover, ResourceKind, RunId, SessionKey};
use quell_scope::{Point, PointProbe, Scope, StopLevel};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::outbox;
use super::{HookJob, Hooks, RegisteredHook, command, log_failure, webhook_queues_of};

/// The maximum number of unfinished events. Further events are dropped, with a line in the log.
const MAX_UNFINISHED_EVENTS: usize = 1024;
/// The maximum number of events whose hooks run at the same time.
const MAX_CONCURRENT_JOBS: usize = 8;
/// During shutdown: the time of an event until its hooks are told to end, and the time after that until they are
/// killed.
const SHUTDOWN_TERM_AFTER: Duration = Duration::from_millis(200);
const SHUTDOWN_KILL_AFTER: Duration = Duration::from_millis(500);
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The events that wait, and those whose hooks are running.
pub(super) struct HookQueue {
    state: Mutex<HookQueueState>,
    permits: Semaphore,
    unfinished: watch::Sender<usize>,
}

#[derive(Default)]
struct HookQueueState {
    /// Each key that is present has a task.
    waiting: HashMap<HookQueueKey, VecDeque<QueuedHookJob>>,
    running: BTreeMap<u64, RunningHookJob>,
    last_number: u64,
    closed: bool,
    /// The stop level that all running jobs were sent.
    stop_level: Option<StopLevel>,
    /// Events that were still waiting when the hooks were stopped.
    overtaken: Vec<QueuedHookJob>,
    /// Leftovers of finished events, by name.
    leftovers: Vec<(RunId, Leftover)>,
}

/// Events with the same key are handled one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum HookQueueKey {
    Session(SessionKey),
    /// One key per event: a start hook that hangs must not delay the shutdown hook.
    Daemon(HookEvent),
}

struct RunningHookJob {
    name: &'static str,
    process_run_id: RunId,
    started: Instant,
    scope: Scope,
}

#[derive(Debug)]
pub(super) struct QueuedHookJob {
    job: HookJob,
    /// The webhooks of the event are in the database already.
    is_stored: bool,
    /// Dropped when the event is finished.
    done: Option<oneshot::Sender<()>>,
}

impl QueuedHookJob {
    pub(super) fn new(job: HookJob) -> Self {
        Self { job, is_stored: false, done: None }
    }

    /// An event whose webhooks are in the database.
    pub(super) fn stored(job: HookJob) -> Self {
        Self { is_stored: true, ..Self::new(job) }
    }

    /// A caller waits for the end of the event.
    pub(super) fn with_done_signal(self, done: oneshot::Sender<()>) -> Self {
        Self { done: Some(done), ..self }
    }
}

impl RunningHookJob {
    /// What the job still holds or has left, by name.
    fn leftovers(&self) -> Vec<(RunId, Leftover)> {
        let mut found = Vec::new();
        for row in self.scope.ledger().rows() {
            found.extend(row.leftovers.iter().map(|name| (row.kind, name.clone())));
            if row.is_held() && row.leftovers.is_empty() {
                let pid = row.process.as_ref().map(|process| format!("pid {} ", process.pid)).unwrap_or_default();
                found.push((row.kind, format!("{pid}({}: {})", self.name, row.label)));
            }
        }
        found.into_iter().map(|(kind, name)| (self.process_run_id.clone(), Leftover { kind, name })).collect()
    }
}

impl Default for HookQueue {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            permits: Semaphore::new(MAX_CONCURRENT_JOBS),
            unfinished: watch::Sender::new(0),
        }
    }
}

impl HookQueue {
    fn lock_state(&self) -> MutexGuard<'_, HookQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event of a key; none when its task may end.
    fn pop_next(&self, key: &HookQueueKey) -> Option<QueuedHookJob> {
        let mut state = self.lock_state();
        let next = state.waiting.get_mut(key).and_then(VecDeque::pop_front);
        if next.is_none() {
            state.waiting.remove(key);
        }
        next
    }

    /// Starts an event in a new scope, which gets the current stop level.
    fn start_job(&self, hooks: &Hooks, job: &HookJob) -> (u64, Scope) {
        let scope = Scope::new(hooks.0.clock, PointProbe::default());
        let mut state = self.lock_state();
        state.last_number += 1;
        let number = state.last_number;
        state.running.insert(
            number,
            RunningHookJob {
                name: job.body.event.as_str(),
                process_run_id: job.process_run_id.clone(),
                started: Instant::now(),
                scope: scope.clone(),
            },
        );
        let stop_level = state.stop_level;
        drop(state);
        stop_scope(&scope, stop_level);
        (number, scope)
    }

    fn finish_job(&self, number: u64) {
        let mut state = self.lock_state();
        if let Some(running) = state.running.remove(&number) {
            state.leftovers.extend(running.leftovers());
        }
    }

    fn note_finished(&self, count: usize) {
        self.unfinished.send_modify(|open| *open -= count);
    }

    /// Stops all running jobs, and drops all waiting events from the queue.
    fn stop_all(&self, level: StopLevel) {
        let mut state = self.lock_state();
        state.stop_level = state.stop_level.max(Some(level));
        let scopes: Vec<Scope> = state.running.values().map(|active| active.scope.clone()).collect();
        let overtaken: Vec<QueuedHookJob> = state.waiting.values_mut().flat_map(std::mem::take).collect();
        let count = overtaken.len();
        state.overtaken.extend(overtaken);
        drop(state);
        for scope in scopes {
            stop_scope(&scope, Some(level));
        }
        self.note_finished(count);
    }

    /// The jobs that have run too long during the shutdown, each with its stop level.
    fn overdue(&self, end: Instant) -> Vec<(StopLevel, Scope)> {
        let now = Instant::now();
        let level = |active: &RunningHookJob| {
            let term_at = end.max(active.started + SHUTDOWN_TERM_AFTER);
            if now >= term_at + SHUTDOWN_KILL_AFTER {
                Some(StopLevel::Forced)
            } else {
                (now >= term_at).then_some(StopLevel::Gentle)
            }
        };
        let state = self.lock_state();
        state.running.values().filter_map(|active| Some((level(active)?, active.scope.clone()))).collect()
    }

    async fn wait_all_finished(&self) {
        // waits: at the end of the daemon, until its deadline; the sender lives in `self`.
        let _ = self.unfinished.subscribe().wait_for(|open| *open == 0).await;
    }
}

fn stop_scope(scope: &Scope, level: Option<StopLevel>) {
    match level {
        None => {}
        Some(StopLevel::Gentle) => scope.cancel(),
        Some(StopLevel::Forced) => scope.kill(),
    }
}

/// Queues an event. It may be called from any thread.
pub(super) fn enqueue(hooks: &Hooks, queued: QueuedHookJob) {
    let queue = &hooks.0.queue;
    let HookBody { id, event, session, .. } = &queued.job.body;
    let (id, event) = (id.clone(), *event);
    let key =
        session.as_ref().map_or(HookQueueKey::Daemon(event), |session| HookQueueKey::Session(session.key.clone()));
    let mut state = queue.lock_state();
    if state.closed {
        drop(state);
        return tracing::warn!(%event, id, "a hook was not called, because the daemon has ended");
    }
    if *queue.unfinished.borrow() >= MAX_UNFINISHED_EVENTS {
        drop(state);
        return tracing::warn!(%event, id, waiting = MAX_UNFINISHED_EVENTS, "a hook was not called, because too many events are waiting");
    }
    queue.unfinished.send_modify(|open| *open += 1);
    let has_runner = state.waiting.contains_key(&key);
    state.waiting.entry(key.clone()).or_default().push_back(queued);
    drop(state);
    if !has_runner {
        let _runtime = hooks.0.runtime.enter();
        hooks.0.tasks.spawn(run_queue(hooks.clone(), key));
    }
}

/// The task of a key that has events.
async fn run_queue(hooks: Hooks, key: HookQueueKey) {
    while let Some(queued) = hooks.0.queue.pop_next(&key) {
        // waits: in a task of the hooks; running jobs are stopped at the end of the daemon.
        run_job(&hooks, queued).await;
        hooks.0.queue.note_finished(1);
    }
}

async fn run_job(hooks: &Hooks, queued: QueuedHookJob) {
    let QueuedHookJob { job: hook_job, is_stored, done } = queued;
    let Some(registered) = hooks.0.hooks_by_event.get(&hook_job.body.event) else { return };
    if !is_stored {
        // waits: for the database, in a task of the hooks.
        outbox::store_webhooks(&hooks.0, &webhook_queues_of(registered), &hook_job).await;
    }
    if registered.iter().any(|entry| entry.webhook_queue().is_none()) {
        // Events of the daemon do not wait behind those of sessions. The semaphore is never closed.
        let _permit = match &hook_job.body.session {
            // waits: for hooks with a timeout, in a task of the hooks.
            Some(_) => hooks.0.queue.permits.acquire().await.ok(),
            None => None,
        };
        let (number, scope) = hooks.0.queue.start_job(hooks, &hook_job);
        for entry in registered {
            let outcome = match entry {
                RegisteredHook::Url(_) => continue,
                RegisteredHook::Command(command) => command::run_command(&hooks.0, command, &hook_job, &scope).await,
                RegisteredHook::Embedded(hook) => {
                    match scope.race(Point::Hook, hooks.call_embedded(hook.as_ref(), &hook_job)).await {
                        Ok(outcome) => outcome,
                        // The daemon is shutting down.
                        Err(_cancelled) => break,
                    }
                }
            };
            if let Err(failure) = outcome {
                log_failure(&hook_job, &entry.display_name(), &failure);
            }
        }
        // waits: for jobs that have ended or were stopped, in a task of the hooks.
        scope.close().await;
        hooks.0.queue.finish_job(number);
    }
    drop(done);
}

impl Hooks {
    /// Accepts no more events, without waiting; queued ones go on.
    pub fn close(&self) {
        self.0.queue.lock_state().closed = true;
    }

    /// Kills all hooks except those that a caller waits for, and drops queued events, without waiting.
    pub fn kill_all(&self) {
        self.0.tasks.kill();
        self.0.queue.stop_all(StopLevel::Forced);
    }

    /// Keeps queued hooks from delaying the shutdown. At `end`, a hook that has already run for a short time is
    /// told to end, a younger one when it has; each is killed half a second later. It never returns.
    ///
    /// # Cancel safety
    /// Safe: drop it when the shutdown is over.
    pub async fn enforce_shutdown_deadline(&self, end: Instant) -> Infallible {
        // waits: beside the shutdown of the daemon, until that is over.
        sleep_until(end).await;
        loop {
            for (level, scope) in self.0.queue.overdue(end) {
                stop_scope(&scope, Some(level));
            }
            // waits: beside the shutdown of the daemon, until that is over.
            sleep(SHUTDOWN_POLL_INTERVAL).await;
        }
    }

    /// Waits until no hook runs and every webhook has been tried: on its own until `term_at`, after SIGTERM until
    /// `kill_at`, after SIGKILL until `give_up_at`. Returns what is left, by name, each with the `QUELL_RUN_ID` of its
    /// processes. Call [`Hooks::close`] first.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn wait_closed(&self, term_at: Instant, kill_at: Instant, give_up_at: Instant) -> Vec<(RunId, Leftover)> {
        let (queue, tasks) = (&self.0.queue, &self.0.tasks);
        let finish_by_itself = async {
            // waits: at the end of the daemon, until its deadline, like all below.
            queue.wait_all_finished().await;
            // After a cancel, the delivery tasks have ended already.
            for webhook_queue in self.0.webhook_queues.iter().filter(|_| !tasks.is_cancelled()) {
                // waits: until the daemon's deadline.
                webhook_queue.wait_tried().await;
            }
        };
        // Jobs that have not finished by now are stopped.
        // waits: until the daemon's deadline.
        let _ = timeout_at(term_at, finish_by_itself).await;
        tasks.cancel();
        queue.stop_all(StopLevel::Gentle);
        // waits: for the database, until the deadline.
        let _ = timeout_at(give_up_at, store_overtaken_webhooks(self)).await;
        // waits: until the daemon's deadline.
        if timeout_at(kill_at, tasks.close()).await.is_err() {
            self.kill_all();
            // Anything still running after this is named below.
            // waits: until the daemon's deadline.
            let _ = timeout_at(give_up_at, tasks.close()).await;
        }
        let mut state = queue.lock_state();
        let mut leftovers = std::mem::take(&mut state.leftovers);
        for running in state.running.values() {
            let job_leftovers = running.leftovers();
            if job_leftovers.is_empty() {
                // There is no process, so it is code of the embedding program that ignores the cancel.
                leftovers.push((
                    running.process_run_id.clone(),
                    Leftover { kind: ResourceKind::Hook, name: running.name.to_owned() },
                ));
            }
            leftovers.extend(job_leftovers);
        }
        leftovers
    }
}

/// Stores the webhooks of events that were dropped by the shutdown, for the next start. Their commands are not run.
async fn store_overtaken_webhooks(hooks: &Hooks) {
    let overtaken = std::mem::take(&mut hooks.0.queue.lock_state().overtaken);
    let mut not_run = 0;
    for QueuedHookJob { job, is_stored, .. } in &overtaken {
        let registered = hooks.0.hooks_by_event.get(&job.body.event).map(Vec::as_slice).unwrap_or_default();
        let webhook_queues = webhook_queues_of(registered);
        not_run += usize::from(webhook_queues.len() < registered.len());
        if !is_stored {
            // waits: until the daemon's deadline.
            outbox::store_webhooks(&hooks.0, &webhook_queues, job).await;
        }
    }
    if not_run > 0 {
        tracing::warn!(events = not_run, "hooks were not called, because the daemon has ended");
    }
}
