//! Events that nobody waits for: handed out one after the other for each session, a few at the same time, each in a scope of
//! its own, until the hooks are closed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_protocol::hook::{HookBody, HookEvent};
use quell_protocol::{Leftover, ResourceKind, RunId, SessionKey};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::outbox::{self, Lane};
use super::{Doer, Errand, Hooks, command, warn};
use crate::scope::{Point, Probe, Scope, StopLevel};

/// Events that may wait. More are not handed out, and a line in the log says so.
const MOST: usize = 1024;
/// Events that are handed out at the same time.
const AT_ONCE: usize = 8;
/// While the daemon ends: what an event gets before its hooks are told to end, and then before they are killed.
const HURRIED: Duration = Duration::from_millis(200);
const HURRIED_GRACE: Duration = Duration::from_millis(500);
/// How often that is looked at.
const HURRY: Duration = Duration::from_millis(50);

/// The events that wait, and those at work.
pub(super) struct Queue {
    book: Mutex<Book>,
    permits: Semaphore,
    /// Events that are not over.
    open: watch::Sender<usize>,
}

#[derive(Default)]
struct Book {
    /// A line that is here has a task.
    waiting: HashMap<Line, VecDeque<Job>>,
    at_work: BTreeMap<u64, Active>,
    last: u64,
    closed: bool,
    /// What everything at work was told.
    told: Option<StopLevel>,
    /// Events that the end of the daemon overtook.
    overtaken: Vec<Job>,
    /// What events that are over left, by name.
    left: Vec<(RunId, Leftover)>,
}

/// Events that are handed out one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Line {
    Session(SessionKey),
    /// A start whose hook hangs must not keep a shutdown from being told.
    Daemon(HookEvent),
}

/// An event at work.
struct Active {
    name: &'static str,
    mark: RunId,
    since: Instant,
    scope: Scope,
}

/// An event on its way.
#[derive(Debug)]
pub(super) struct Job {
    errand: Errand,
    /// Its webhooks are in the database already.
    recorded: bool,
    /// Dropped when it is over.
    done: Option<oneshot::Sender<()>>,
}

impl Job {
    pub(super) fn new(errand: Errand) -> Self {
        Self { errand, recorded: false, done: None }
    }

    /// Its webhooks are in the database.
    pub(super) fn recorded(errand: Errand) -> Self {
        Self { recorded: true, ..Self::new(errand) }
    }

    /// Somebody waits for its end.
    pub(super) fn awaited(self, done: oneshot::Sender<()>) -> Self {
        Self { done: Some(done), ..self }
    }
}

impl Active {
    /// What it still holds, or has left, by name.
    fn left(&self) -> Vec<(RunId, Leftover)> {
        let mut left = Vec::new();
        for row in self.scope.ledger().rows() {
            left.extend(row.leftovers.iter().map(|name| (row.kind, name.clone())));
            if row.released.is_none() && row.leftovers.is_empty() {
                let pid = row.process.as_ref().map(|process| format!("pid {} ", process.pid)).unwrap_or_default();
                left.push((row.kind, format!("{pid}({}: {})", self.name, row.label)));
            }
        }
        left.into_iter().map(|(kind, name)| (self.mark.clone(), Leftover { kind, name })).collect()
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self { book: Mutex::default(), permits: Semaphore::new(AT_ONCE), open: watch::Sender::new(0) }
    }
}

impl Queue {
    pub(super) fn close(&self) {
        self.book().closed = true;
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event of a line; none when its task may end.
    fn next(&self, line: &Line) -> Option<Job> {
        let mut book = self.book();
        let next = book.waiting.get_mut(line).and_then(VecDeque::pop_front);
        if next.is_none() {
            book.waiting.remove(line);
        }
        next
    }

    /// An event goes to work, in a scope that is told what all others were.
    fn enter(&self, hooks: &Hooks, errand: &Errand) -> (u64, Scope) {
        let scope = Scope::new(hooks.0.clock, Probe::default());
        let mut book = self.book();
        book.last += 1;
        let number = book.last;
        book.at_work.insert(
            number,
            Active {
                name: errand.body.event.word(),
                mark: errand.mark.clone(),
                since: Instant::now(),
                scope: scope.clone(),
            },
        );
        let told = book.told;
        drop(book);
        tell(&scope, told);
        (number, scope)
    }

    fn leave(&self, number: u64) {
        let mut book = self.book();
        if let Some(active) = book.at_work.remove(&number) {
            book.left.extend(active.left());
        }
    }

    fn over(&self, count: usize) {
        self.open.send_modify(|open| *open -= count);
    }

    /// Everything at work is told, and nothing that waits goes to work any more.
    fn end(&self, level: StopLevel) {
        let mut book = self.book();
        book.told = book.told.max(Some(level));
        let scopes: Vec<Scope> = book.at_work.values().map(|active| active.scope.clone()).collect();
        let overtaken: Vec<Job> = book.waiting.values_mut().flat_map(std::mem::take).collect();
        let count = overtaken.len();
        book.overtaken.extend(overtaken);
        drop(book);
        for scope in scopes {
            tell(&scope, Some(level));
        }
        self.over(count);
    }

    /// What is at work for longer than it may be while the daemon ends, and how it is told.
    fn late(&self, end: Instant) -> Vec<(StopLevel, Scope)> {
        let now = Instant::now();
        let level = |active: &Active| {
            let gentle = end.max(active.since + HURRIED);
            if now >= gentle + HURRIED_GRACE {
                Some(StopLevel::Forced)
            } else {
                (now >= gentle).then_some(StopLevel::Gentle)
            }
        };
        let book = self.book();
        book.at_work.values().filter_map(|active| Some((level(active)?, active.scope.clone()))).collect()
    }

    async fn all_over(&self) {
        // waits: for the daemon at its end, until its deadline; the sender lives in self.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }
}

fn tell(scope: &Scope, level: Option<StopLevel>) {
    match level {
        None => {}
        Some(StopLevel::Gentle) => scope.cancel(),
        Some(StopLevel::Forced) => scope.kill(),
    }
}

/// Puts an event into the queue. From any thread.
pub(super) fn push(hooks: &Hooks, job: Job) {
    let queue = &hooks.0.queue;
    let HookBody { id, event, session, .. } = &job.errand.body;
    let (id, event) = (id.clone(), *event);
    let line = session.as_ref().map_or(Line::Daemon(event), |session| Line::Session(session.key.clone()));
    let mut book = queue.book();
    if book.closed {
        drop(book);
        return tracing::warn!(%event, id, "a hook was not told, because the daemon has ended");
    }
    if *queue.open.borrow() >= MOST {
        drop(book);
        return tracing::warn!(%event, id, waiting = MOST, "a hook was not told, because too many events wait for hooks");
    }
    queue.open.send_modify(|open| *open += 1);
    let has_task = book.waiting.contains_key(&line);
    book.waiting.entry(line.clone()).or_default().push_back(job);
    drop(book);
    if !has_task {
        let _runtime = hooks.0.runtime.enter();
        hooks.0.tasks.spawn(hand_out(hooks.clone(), line));
    }
}

/// The task of a line that has events.
async fn hand_out(hooks: Hooks, line: Line) {
    while let Some(job) = hooks.0.queue.next(&line) {
        // waits: in a task of the hooks' own; what is at work is told at the end of the daemon.
        see_through(&hooks, job).await;
        hooks.0.queue.over(1);
    }
}

async fn see_through(hooks: &Hooks, job: Job) {
    let Job { errand, recorded, done } = job;
    let Some(doers) = hooks.0.doers.get(&errand.body.event) else { return };
    if !recorded {
        let lanes: Vec<Arc<Lane>> = doers.iter().filter_map(Doer::lane).collect();
        // waits: for the database, in a task of the hooks' own.
        outbox::put(&hooks.0, &lanes, &errand).await;
    }
    if doers.iter().any(|doer| doer.lane().is_none()) {
        // The daemon's own events do not wait behind those of sessions. Nobody closes the semaphore.
        let _permit = match &errand.body.session {
            // waits: for hooks whose time is limited, in a task of the hooks' own.
            Some(_) => hooks.0.queue.permits.acquire().await.ok(),
            None => None,
        };
        let (number, scope) = hooks.0.queue.enter(hooks, &errand);
        for doer in doers {
            let outcome = match doer {
                Doer::Url(_) => continue,
                Doer::Command(command) => command::run(&hooks.0, command, &errand, &scope).await,
                Doer::Embedded(hook) => {
                    match scope.race(Point::Hook, hooks.call(hook.as_ref(), &errand)).await {
                        Ok(outcome) => outcome,
                        // The daemon ends.
                        Err(_cancelled) => break,
                    }
                }
            };
            if let Err(failure) = outcome {
                warn(&errand, &doer.shown(), &failure);
            }
        }
        // waits: for what was told or is over, in a task of the hooks' own.
        scope.close().await;
        hooks.0.queue.leave(number);
    }
    drop(done);
}

/// Kills what is at work; what waits does not go to work any more.
pub(super) fn kill(hooks: &Hooks) {
    hooks.0.tasks.kill();
    hooks.0.queue.end(StopLevel::Forced);
}

/// See [`Hooks::hurry`].
pub(super) async fn hurry(hooks: &Hooks, end: Instant) -> Infallible {
    // waits: beside the daemon's end, until that is over.
    sleep_until(end).await;
    loop {
        for (level, scope) in hooks.0.queue.late(end) {
            tell(&scope, Some(level));
        }
        // waits: beside the daemon's end, until that is over.
        sleep(HURRY).await;
    }
}

/// See [`Hooks::closed`].
pub(super) async fn closed(hooks: &Hooks, gentle: Instant, force: Instant, give_up: Instant) -> Vec<(RunId, Leftover)> {
    let (queue, tasks) = (&hooks.0.queue, &hooks.0.tasks);
    let by_itself = async {
        // waits: for the daemon at its end, until its deadline, like all below.
        queue.all_over().await;
        // The lanes end with the scope.
        for lane in hooks.0.lanes.iter().filter(|_| !tasks.is_cancelled()) {
            // waits: until the daemon's deadline.
            lane.tried().await;
        }
    };
    // What is not over then is ended.
    // waits: until the daemon's deadline.
    let _ = timeout_at(gentle, by_itself).await;
    tasks.cancel();
    queue.end(StopLevel::Gentle);
    // waits: for the database, until the deadline.
    let _ = timeout_at(give_up, put_overtaken(hooks)).await;
    // waits: until the daemon's deadline.
    if timeout_at(force, tasks.close()).await.is_err() {
        kill(hooks);
        // What is left after this is named below.
        // waits: until the daemon's deadline.
        let _ = timeout_at(give_up, tasks.close()).await;
    }
    let mut book = queue.book();
    let mut left = std::mem::take(&mut book.left);
    for active in book.at_work.values() {
        let named = active.left();
        if named.is_empty() {
            // No process: it is code of the embedding program, that a cancel does not end.
            left.push((active.mark.clone(), Leftover { kind: ResourceKind::Hook, name: active.name.to_owned() }));
        }
        left.extend(named);
    }
    left
}

/// What the end overtook is told to no command; its webhooks are delivered at the next start.
async fn put_overtaken(hooks: &Hooks) {
    let overtaken = std::mem::take(&mut hooks.0.queue.book().overtaken);
    let mut untold = 0;
    for Job { errand, recorded, .. } in &overtaken {
        let doers = hooks.0.doers.get(&errand.body.event).map(Vec::as_slice).unwrap_or_default();
        let lanes: Vec<Arc<Lane>> = doers.iter().filter_map(Doer::lane).collect();
        untold += usize::from(lanes.len() < doers.len());
        if !recorded {
            // waits: until the daemon's deadline.
            outbox::put(&hooks.0, &lanes, errand).await;
        }
    }
    if untold > 0 {
        tracing::warn!(events = untold, "hooks were not told, because the daemon has ended");
    }
}
