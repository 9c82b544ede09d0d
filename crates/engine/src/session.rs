//! Sessions at work: one actor per session that has something to do. It takes the run that is due, sees it to its end, and
//! goes on with the sealed turn in memory, recorded or not. Its mailbox is the session's queue in the registry.

mod admit;
mod reins;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::turn::Turn;
use quell_protocol::{ResourceKind, SessionKey};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::cell::{Cell, Notice, Progress};
use crate::runs::{Hands, Needs, Place, Runs};
use crate::store::StoreError;
pub use admit::{Cradle, Wanted};
use reins::{Lineage, RunReins, hand_up_news};

/// The sessions that are in memory. Clones are the same.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    runs: Runs,
    cradle: Cradle,
    permits: Arc<Semaphore>,
    live: Mutex<HashMap<SessionKey, Live>>,
}

/// How long news waits in memory for a message to its session.
const NEWS_KEPT: Duration = Duration::from_secs(24 * 3600);

struct Live {
    working: bool,
    used: Moment,
    history: Option<Arc<Vec<Arc<Turn>>>>,
    /// How often its history was forgotten: what was read before that is not kept.
    forgotten: u64,
    /// What background runs of this session came to, until a run reads it.
    news: Vec<String>,
    /// Background runs of this session that are at work.
    expected: usize,
    /// Something came while its actor was at work.
    poked: Arc<Notify>,
}

impl Live {
    fn new(used: Moment) -> Self {
        Self { working: false, used, history: None, forgotten: 0, news: Vec::new(), expected: 0, poked: Arc::default() }
    }

    fn is_needed(&self, now: Moment, idle: Duration) -> bool {
        // News that nobody comes for is not kept for ever: most sessions of programs are written to once.
        let kept = if self.news.is_empty() { idle } else { idle.max(NEWS_KEPT) };
        self.working || self.expected > 0 || now.since(self.used) <= kept
    }
}

impl Sessions {
    /// No sessions in memory; at most `in_flight` of their runs work at the same time.
    #[must_use]
    pub fn new(runs: Runs, cradle: Cradle, in_flight: usize) -> Self {
        let permits = Arc::new(Semaphore::new(in_flight.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(Inner { runs, cradle, permits, live: Mutex::new(HashMap::new()) }))
    }

    /// Something may be due in this session: wakes its actor if it sleeps.
    pub fn poke(&self, key: &SessionKey) {
        let mut live = self.live();
        let now = self.0.runs.clock().now();
        let session = match live.entry(key.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                tracing::info!(session = %key, "session created");
                entry.insert(Live::new(now))
            }
        };
        session.used = now;
        if session.working {
            session.poked.notify_one();
            return;
        }
        session.working = true;
        drop(live);
        self.0.runs.spawn(act(self.clone(), key.clone()));
    }

    /// Forgets what is in memory of a session's history; the next run reads it again.
    pub fn forget_history(&self, key: &SessionKey) {
        if let Some(session) = self.live().get_mut(key) {
            session.history = None;
            session.forgotten += 1;
            session.news.clear();
        }
        self.0.runs.workshop().background.forget_session(key);
        self.0.runs.workshop().mcp.close_session(key);
    }

    /// A background run of this session will have news.
    fn expect_news(&self, key: &SessionKey) {
        if let Some(session) = self.live().get_mut(key) {
            session.expected += 1;
        }
    }

    /// One background run of this session is over.
    fn expect_no_news(&self, key: &SessionKey) {
        if let Some(session) = self.live().get_mut(key) {
            session.expected = session.expected.saturating_sub(1);
        }
    }

    fn add_news(&self, lineage: &Lineage, texts: Vec<String>) {
        let now = self.0.runs.clock().now();
        // Under the lock, under which a run that is over hands up what it has not read: news never comes to it behind that.
        let mut live = self.live();
        let Some(heir) = lineage.heir().filter(|_| !texts.is_empty()) else { return };
        let session = live.entry(heir.clone()).or_insert_with(|| Live::new(now));
        session.used = now;
        session.news.extend(texts);
    }

    fn take_news(&self, key: &SessionKey) -> Vec<String> {
        self.live().get_mut(key).map(|session| std::mem::take(&mut session.news)).unwrap_or_default()
    }

    /// Drops sessions from memory that nobody has used for longer than `idle`. Their history stays in the database.
    pub fn sweep(&self, idle: Duration) {
        let now = self.0.runs.clock().now();
        self.live().retain(|key, session| {
            let background = &self.0.runs.workshop().background;
            let keep = session.is_needed(now, idle) || background.has_of_session(key);
            if !keep {
                tracing::info!(session = %key, "session expired from memory");
                self.0.runs.workshop().mcp.close_session(key);
            }
            keep
        });
    }

    /// How many sessions are in memory.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live().len()
    }

    fn give_back_news(&self, key: &SessionKey, texts: Vec<String>) {
        if let Some(session) = self.live().get_mut(key) {
            session.news.splice(0..0, texts);
        }
    }

    /// The sealed turns that a new run continues on.
    async fn history(&self, key: SessionKey) -> Result<Vec<Arc<Turn>>, StoreError> {
        let known = self.live().get(&key).map(|session| (session.history.clone(), session.forgotten));
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
        if let Some(session) = self.live().get_mut(&key).filter(|session| session.forgotten == forgotten) {
            session.history = Some(Arc::new(turns.clone()));
        }
        Ok(turns)
    }

    fn append(&self, key: &SessionKey, turn: Arc<Turn>) {
        if let Some(session) = self.live().get_mut(key)
            && let Some(history) = &mut session.history
        {
            Arc::make_mut(history).push(turn);
        }
    }

    /// Waits for a place for the next run of a session; none when there is something to do without one.
    async fn place(&self, key: &SessionKey) -> Option<OwnedSemaphorePermit> {
        let poked = self.live().get(key).map(|session| Arc::clone(&session.poked))?;
        // Kept while it is waited for, so that who came first is served first.
        let mut place = pin!(Arc::clone(&self.0.permits).acquire_owned());
        loop {
            tokio::select! {
                // Nobody closes the semaphore.
                permit = &mut place => return permit.ok(),
                () = poked.notified() => {
                    if self.0.runs.sub_run_is_due(key) {
                        return None;
                    }
                }
            }
        }
    }

    /// Lets the actor go to sleep, unless something became due meanwhile.
    fn may_sleep(&self, key: &SessionKey) -> bool {
        let mut live = self.live();
        if self.0.runs.due(key).is_some() {
            return false;
        }
        if let Some(session) = live.get_mut(key) {
            session.working = false;
            session.used = self.0.runs.clock().now();
        }
        true
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionKey, Live>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
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
    let Some(agent) = runs.workshop().society.get(&cell.run.agent) else {
        // An agent leaves only when all its runs are over, this one too: there is nothing to work for any more.
        tracing::warn!(run = %cell.id(), agent = %cell.run.agent, "a run came to its turn after its agent had left");
        return;
    };
    let work = {
        let (cell, sessions, key) = (Arc::clone(&cell), sessions.clone(), key.clone());
        async move {
            let reins = RunReins { sessions: &sessions, cell: &cell };
            let hands = Hands { agent: &agent, reins: &reins };
            sessions.0.runs.see_through(&cell, hands, place, sessions.history(key)).await;
        }
    };
    let lineage = Lineage::of(sessions, &cell);
    runs.spawn(work);
    cell.reached(Progress::Ended).await;
    hand_up_news(sessions, &lineage);
    if let Some(turn) = cell.sealed_now() {
        sessions.append(key, turn);
    }
    runs.hub().publish(&Notice::Session { key: key.clone(), reason: "message" });
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({} live)", self.count())
    }
}
