//! Live sessions. Each is in the book, which says who makes it, uses it and cleans it up, and those that have something to do
//! have a desk with one actor: it takes the run that is due, sees it to its end, and goes on with the sealed turn in memory,
//! recorded or not. Its mailbox is the session's queue in the registry.

mod admit;
mod body;
mod depart;
mod enter;
mod make;
mod own;
mod reins;
mod show;
mod skills;
mod vault;

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::session::Book as Lives;
use quell_kernel::turn::Turn;
use quell_protocol::hook::HookEvent;
use quell_protocol::{ErrorCode, ResourceKind, SessionKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::address::AddressPolicy;
use crate::agent::Agent;
use crate::cell::{Cell, Notice, Progress};
use crate::hooks::Hooks;
use crate::runs::{Needs, Outfit, Place, Runs, Unfit, happening};
use crate::scope::{Cancelled, Point};
use crate::store::StoreError;
pub use admit::{Cradle, Wanted};
use body::Body;
use depart::Remains;
pub use depart::sweep_at_times;
use enter::Purpose;
pub use enter::{Got, NotMade};
pub use make::facts_of;
pub use own::importable;
use reins::{Lineage, RunReins, hand_up_news};
pub use show::Standing;
use vault::Vault;

/// The sessions that are in memory. Clones are the same.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    runs: Runs,
    cradle: Cradle,
    times: SessionTimes,
    vault: Vault,
    permits: Arc<Semaphore>,
    /// Places for clean-ups, so that a sweep of many sessions does not start a hook for each at once.
    brooms: Arc<Semaphore>,
    book: Mutex<Book>,
    /// Rises at each departure that is over.
    left: watch::Sender<u64>,
    /// Cancelled when the daemon begins to close: no more sweeps, and nobody without a run makes a session any more.
    closing: CancellationToken,
}

/// `[sessions]` of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// Seconds without use after which a session expires: it gives back what it has in memory and at its servers. What was said
    /// in it stays, and the next message revives it. An agent may say otherwise.
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

/// The same, as times.
#[derive(Debug, Clone, Copy)]
struct SessionTimes {
    idle: Duration,
    sweep: Duration,
    clean_up: Duration,
}

/// What sessions are made with.
#[derive(Debug)]
pub struct SessionGround<'a> {
    /// What every run is born with.
    pub cradle: Cradle,
    /// The configured times.
    pub settings: SessionSettings,
    /// Where the key is that seals what sessions bring along.
    pub data_dir: &'a Path,
    /// How many runs may work at the same time.
    pub in_flight: usize,
}

/// How long news waits in memory for a message to its session.
const NEWS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Clean-ups at the same time.
const BROOMS: usize = 64;

/// What is known of sessions. One lock for all of it: a question is one step.
#[derive(Default)]
struct Book {
    /// Who lives.
    lives: Lives<Arc<Body>>,
    /// Where there is something to do.
    desks: HashMap<SessionKey, Desk>,
    /// What background runs came to, until a run of that session reads it.
    news: HashMap<SessionKey, News>,
    /// Who waits for a session that somebody makes or cleans up.
    waits: HashMap<SessionKey, watch::Sender<Option<NotMade>>>,
    /// Steps of clean-ups that failed.
    remains: Vec<Remains>,
}

/// Where the actor of a session works.
struct Desk {
    working: bool,
    used: Moment,
    history: Option<Arc<Vec<Arc<Turn>>>>,
    /// How often its history was forgotten: what was read before that is not kept.
    forgotten: u64,
    /// Background runs of this session that are at work.
    expected: usize,
    /// Something came while its actor was at work.
    poked: Arc<Notify>,
}

struct News {
    since: Moment,
    texts: Vec<String>,
}

impl Desk {
    fn new(used: Moment) -> Self {
        Self { working: false, used, history: None, forgotten: 0, expected: 0, poked: Arc::default() }
    }

    fn is_needed(&self) -> bool {
        self.working || self.expected > 0
    }
}

impl Sessions {
    /// No sessions in memory.
    #[must_use]
    pub fn new(runs: Runs, ground: SessionGround<'_>) -> Self {
        let SessionGround { cradle, settings, data_dir, in_flight } = ground;
        let seconds = Duration::from_secs;
        let times = SessionTimes {
            idle: seconds(settings.idle_s),
            sweep: seconds(settings.sweep_s.max(1)),
            clean_up: seconds(settings.cleanup_s.max(1)),
        };
        Self(Arc::new(Inner {
            runs,
            cradle,
            times,
            vault: Vault::of(data_dir),
            permits: Arc::new(Semaphore::new(in_flight.clamp(1, Semaphore::MAX_PERMITS))),
            brooms: Arc::new(Semaphore::new(BROOMS)),
            book: Mutex::default(),
            left: watch::Sender::new(0),
            closing: CancellationToken::new(),
        }))
    }

    /// Something may be due in this session: wakes its actor if it sleeps.
    pub fn poke(&self, key: &SessionKey) {
        let now = self.0.runs.clock().now();
        let mut book = self.book();
        let Book { lives, desks, .. } = &mut *book;
        let desk = desks.entry(key.clone()).or_insert_with(|| Desk::new(now));
        desk.used = now;
        if desk.working {
            desk.poked.notify_one();
            return;
        }
        lives.work_comes(key, now, |body| self.need_besides_runs(body, Some(desk)));
        desk.working = true;
        drop(book);
        self.0.runs.spawn(act(self.clone(), key.clone()));
    }

    /// Forgets what is in memory of a session's history, and of its agents' skills; the next run reads both again.
    pub fn forget_history(&self, key: &SessionKey) {
        let mut book = self.book();
        if let Some(body) = book.lives.body(key) {
            body.shelves.forget();
        }
        if let Some(desk) = book.desks.get_mut(key) {
            desk.history = None;
            desk.forgotten += 1;
        }
        book.news.remove(key);
        drop(book);
        self.0.runs.workshop().background.forget_session(key);
        self.0.runs.workshop().mcp.close_session(key);
    }

    /// A background run of this session will have news.
    fn expect_news(&self, key: &SessionKey) {
        if let Some(desk) = self.book().desks.get_mut(key) {
            desk.expected += 1;
        }
    }

    /// One background run of this session is over.
    fn expect_no_news(&self, key: &SessionKey) {
        if let Some(desk) = self.book().desks.get_mut(key) {
            desk.expected = desk.expected.saturating_sub(1);
        }
    }

    fn add_news(&self, lineage: &Lineage, texts: Vec<String>) {
        let now = self.0.runs.clock().now();
        // Under the lock, under which a run that is over hands up what it has not read: news never comes to it behind that.
        let mut book = self.book();
        let Some(heir) = lineage.heir().filter(|_| !texts.is_empty()) else { return };
        let news = book.news.entry(heir.clone()).or_insert_with(|| News { since: now, texts: Vec::new() });
        news.since = now;
        news.texts.extend(texts);
    }

    fn take_news(&self, key: &SessionKey) -> Vec<String> {
        self.book().news.remove(key).map(|news| news.texts).unwrap_or_default()
    }

    /// True while a session is in memory: it was used not long ago, or is waited for.
    #[must_use]
    pub fn is_live(&self, key: &SessionKey) -> bool {
        let book = self.book();
        book.lives.life(key).is_some() || book.desks.contains_key(key)
    }

    fn give_back_news(&self, key: &SessionKey, texts: Vec<String>) {
        let since = self.0.runs.clock().now();
        let mut book = self.book();
        let news = book.news.entry(key.clone()).or_insert_with(|| News { since, texts: Vec::new() });
        news.texts.splice(0..0, texts);
    }

    /// How many sessions live.
    #[must_use]
    pub fn count(&self) -> usize {
        self.book().lives.len()
    }

    /// The sealed turns that a new run continues on.
    async fn history(&self, key: &SessionKey) -> Result<Vec<Arc<Turn>>, StoreError> {
        let known = self.book().desks.get(key).map(|desk| (desk.history.clone(), desk.forgotten));
        let (known, forgotten) = known.unwrap_or_default();
        if let Some(history) = known {
            return Ok(history.to_vec());
        }
        let stored = self.0.runs.store().turns(key.clone()).await?;
        let mut turns = Vec::with_capacity(stored.len());
        for text in stored {
            let turn = Turn::from_stored(&text).map_err(|error| StoreError::Corrupt(error.to_string()))?;
            turns.push(Arc::new(turn));
        }
        // A reset or a deletion that came while it was read has emptied what this is.
        if let Some(desk) = self.book().desks.get_mut(key).filter(|desk| desk.forgotten == forgotten) {
            desk.history = Some(Arc::new(turns.clone()));
        }
        Ok(turns)
    }

    fn append(&self, key: &SessionKey, turn: Arc<Turn>) {
        if let Some(desk) = self.book().desks.get_mut(key)
            && let Some(history) = &mut desk.history
        {
            Arc::make_mut(history).push(turn);
        }
    }

    /// Waits for a place for the next run of a session; none when there is something to do without one.
    async fn place(&self, key: &SessionKey) -> Option<OwnedSemaphorePermit> {
        let now = self.0.runs.clock().now();
        let poked = Arc::clone(&self.book().desks.entry(key.clone()).or_insert_with(|| Desk::new(now)).poked);
        // Kept while it is waited for, so that who came first is served first.
        let mut place = pin!(Arc::clone(&self.0.permits).acquire_owned());
        loop {
            tokio::select! {
                // Nobody closes the semaphore.
                permit = &mut place => return permit.ok(),
                () = poked.notified() => {
                    if self.0.runs.sub_run_is_due(key) || self.0.runs.due(key).is_none() {
                        return None;
                    }
                }
            }
        }
    }

    /// Lets the actor go to sleep, unless something became due meanwhile.
    fn may_sleep(&self, key: &SessionKey) -> bool {
        let now = self.0.runs.clock().now();
        let mut book = self.book();
        if self.0.runs.due(key).is_some() {
            return false;
        }
        if let Some(desk) = book.desks.get_mut(key) {
            desk.working = false;
            desk.used = now;
        }
        book.lives.released(key, now);
        true
    }

    /// What a run works with: its session, made if it must be, its agent as that session has it, and what was said.
    async fn outfit(&self, cell: &Cell) -> Result<Result<Outfit, Unfit>, Cancelled> {
        let run = &cell.run;
        // An agent leaves only when all its runs are over, so it is there; a run that is wrong about that ends at once.
        let Some(base) = self.0.runs.workshop().society.get(&run.agent) else {
            let message = format!("its agent {:?} is not there any more; send the message to another one", run.agent);
            return Ok(Err(Unfit { code: ErrorCode::AgentNotFound.as_str(), message }));
        };
        let facts = happening(HookEvent::Activate, cell.view(), None).run;
        let purpose = Purpose {
            scope: &cell.scope,
            agent: &run.agent,
            asked: None,
            run: facts,
            by: None,
            reach: AddressPolicy::PublicOnly,
        };
        // waits: the purpose holds the run's scope.
        let body = match self.enter(&run.session, &purpose).await? {
            Ok((body, _)) => body,
            Err(why) => return Ok(Err(Unfit { code: why.code().as_str(), message: why.to_string() })),
        };
        // It enters once.
        let _ = cell.session.set(body.facts.clone());
        body.set_idle(self.idle_of(&base));
        let routed = cell.errand.as_ref().and_then(|errand| errand.orders().model.as_deref());
        let agent = match body.routed(&base, self.0.runs.workshop().society.materials(), routed) {
            Ok(agent) => match &cell.ceiling {
                Some(ceiling) => Arc::new(agent.within(ceiling)),
                None => agent,
            },
            Err(problem) => {
                let why = NotMade::Configuration(problem);
                return Ok(Err(Unfit { code: why.code().as_str(), message: why.to_string() }));
            }
        };
        // waits: reading holds the run's scope.
        let agent = self.taught(cell, &body, (&base, agent)).await?;
        let history = match cell.scope.race(Point::LoadHistory, self.history(&run.session)).await? {
            Ok(history) => history,
            Err(error) => return Ok(Err(Unfit { code: "store", message: error.to_string() })),
        };
        // The run that started this one had no such endpoint.
        let endpoint = body.endpoint.clone().filter(|_| cell.ceiling.is_none());
        Ok(Ok(Outfit { agent, endpoint, history }))
    }

    /// How long a session of this agent may be idle.
    fn idle_of(&self, agent: &Agent) -> Duration {
        agent.config.idle_s.map_or(self.0.times.idle, Duration::from_secs)
    }

    fn hooks(&self) -> &Hooks {
        &self.0.runs.workshop().hooks
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The actor of one session. It ends when nothing is due.
async fn act(sessions: Sessions, key: SessionKey) {
    let runs = &sessions.0.runs;
    loop {
        let permit = match runs.due(&key) {
            // A queued run that is stopped while it waits here for a permit is over at once; then nothing may be due any more.
            Some(Needs::Place) => sessions.place(&key).await,
            Some(Needs::Nothing) => None,
            None if sessions.may_sleep(&key) => return,
            None => continue,
        };
        let has = if permit.is_some() { Needs::Place } else { Needs::Nothing };
        if let Some(cell) = runs.start_due(&key, has) {
            run_one(&sessions, &key, cell, permit).await;
        }
    }
}

async fn run_one(sessions: &Sessions, key: &SessionKey, cell: Arc<Cell>, permit: Option<OwnedSemaphorePermit>) {
    let runs = sessions.0.runs.clone();
    let hold = |permit| Place { held: cell.scope.hold(ResourceKind::Permit, "in-flight run"), permit };
    let place = permit.filter(|_| cell.run.parent.is_none()).map(hold);
    let work = {
        let (cell, sessions) = (Arc::clone(&cell), sessions.clone());
        async move {
            let reins = RunReins { sessions: &sessions, cell: &cell };
            // Boxed, since it is over when the model is asked: in one piece with the rest it would be kept through the whole run,
            // and once more at each level that it is handed through.
            let outfit = Box::pin(sessions.outfit(&cell));
            sessions.0.runs.see_through(&cell, &reins, place, outfit).await;
        }
    };
    let lineage = Lineage::of(sessions, &cell);
    runs.spawn(work);
    cell.reached(Progress::Ended).await;
    hand_up_news(sessions, &lineage);
    if let Some(turn) = cell.sealed_now() {
        sessions.append(key, turn);
    }
    // A run in another session may have waited for this one, which it superseded.
    for waiting in runs.sessions_of_scope(&cell) {
        sessions.poke(&waiting);
    }
    runs.hub().publish(&Notice::Session { key: key.clone(), reason: "message" });
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({} live)", self.count())
    }
}
