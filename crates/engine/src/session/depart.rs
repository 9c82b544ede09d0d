//! The end of a live session: sweeping what nobody uses, and giving back what a session has, step by step (row C7). A step that
//! fails or takes too long does not keep the others from being done; it is reported and tried again at the next sweep. What was
//! said in the session stays in the database.

use std::collections::HashSet;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_kernel::session::{Departure, Need};
use quell_protocol::SessionKey;
use quell_protocol::hook::{HookEvent, SessionFacts};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::body::{Begun, Body};
use super::enter::outcome;
use super::{Book, Desk, NEWS_KEPT, Sessions};
use crate::hooks::{Happening, undo_stage};
use crate::mcp::Farewell;

/// A step that has failed so often is given up.
const MOST_TRIES: u32 = 10;

/// Why a session leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Nobody used it for too long.
    Expired,
    /// It was deleted, or taken away while it was being made or changed.
    Ended,
    /// A stage of its making failed.
    NotMade,
    /// The daemon closes.
    Shutdown,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Ended => "ended",
            Self::NotMade => "not made",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Nobody makes a session of this key until it is dropped.
#[derive(Debug)]
pub(crate) struct Shut {
    sessions: Sessions,
    key: SessionKey,
}

impl Drop for Shut {
    fn drop(&mut self) {
        let mut book = self.sessions.book();
        book.lives.open(&self.key);
        book.tell(&self.key, None);
    }
}

/// What is left of a session after a step of its clean-up failed.
#[derive(Debug)]
pub(super) struct Remains {
    key: SessionKey,
    what: Rest,
    tries: u32,
}

/// Something that is still to be given back.
enum Rest {
    Stage(Begun),
    Servers(Farewell),
}

impl Rest {
    fn name(&self) -> &str {
        match self {
            Self::Stage(begun) => &begun.name,
            Self::Servers(_) => "MCP connections",
        }
    }

    /// Tries to give it back. After an error it can be tried again.
    async fn give_back(&mut self, limit: Duration) -> Result<(), String> {
        match self {
            Self::Stage(begun) => {
                // waits: for at most the limit; nobody's run waits for a clean-up.
                undo_stage(&begun.name, begun.undo.as_mut(), limit).await.map_err(|error| error.to_string())
            }
            Self::Servers(farewell) => {
                // waits: as above.
                let Ok(left) = timeout(limit, farewell.over()).await else {
                    farewell.kill();
                    return Err(format!("they did not end within {limit:?}; they are killed now"));
                };
                if left.is_empty() { Ok(()) } else { Err(format!("they left {}", left.join(", "))) }
            }
        }
    }
}

impl Sessions {
    /// Takes out the sessions that have been idle for too long, begins their clean-up, and tries again what failed before.
    pub fn sweep(&self) {
        let begun = Instant::now();
        let again = {
            let now = self.0.runs.clock().now();
            let mut book = self.book();
            let at_work = self.at_work();
            let book = &mut *book;
            let need = |key: &SessionKey, body: &Arc<Body>| {
                // Also while its actor lets go of a run that is over: a session never loses its desk to a sweep before.
                let kept = at_work.contains(key) || book.desks.get(key).is_some_and(Desk::is_needed);
                if kept { Need::Kept } else { Need::Unneeded { idle: body.idle() } }
            };
            for departure in book.lives.sweep(now, need) {
                book.desks.remove(&departure.key);
                self.see_off(departure, Why::Expired);
            }
            let lives = &book.lives;
            book.desks.retain(|key, desk| lives.life(key).is_some() || desk.is_needed() || at_work.contains(key));
            // News that nobody comes for is not kept for ever: most sessions of programs are written to once.
            book.news.retain(|_, news| now.since(news.since) <= NEWS_KEPT);
            std::mem::take(&mut book.remains)
        };
        metrics::histogram!("quell_session_sweep_seconds").record(begun.elapsed());
        // It says when they are tried; nobody waits for that here.
        drop(self.try_again(again));
    }

    /// Tries steps again that failed, in a task of the engine. The sender is dropped when all of them are tried.
    fn try_again(&self, again: Vec<Remains>) -> oneshot::Receiver<()> {
        let (under_way, tried) = oneshot::channel();
        if !again.is_empty() {
            let sessions = self.clone();
            self.0.runs.spawn(async move {
                let _under_way = under_way;
                for remains in again {
                    // waits: in a task of the engine, for at most the limit of each.
                    sessions.give_back(remains).await;
                }
            });
        }
        tried
    }

    /// Drops what is in memory of histories that nobody has read or written for a while; the next run reads them again.
    pub fn drop_histories(&self, unused: Duration) {
        let now = self.0.runs.clock().now();
        let unrecorded = self.0.runs.unrecorded_sessions();
        for (key, desk) in &mut self.book().desks {
            if !desk.working && now.since(desk.used) > unused && !unrecorded.contains(key) {
                desk.history = None;
            }
        }
    }

    /// No more sweeps, and who makes a session without a run gives up.
    pub fn stop_sweeping(&self) {
        self.0.closing.cancel();
    }

    /// Waits until [`Sessions::stop_sweeping`].
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn closing(&self) {
        // waits: for the daemon's end, beside what it ends.
        self.0.closing.cancelled().await;
    }

    /// Takes all sessions out, lets nobody in any more, and cleans them up, until `deadline`; what failed before is tried a last
    /// time. Answers how many were not clean.
    ///
    /// # Cancel safety
    /// Safe: the clean-ups go on in tasks of the engine.
    pub async fn close(&self, deadline: Instant) -> usize {
        let (departures, again) = {
            let mut book = self.book();
            (book.lives.take_all(), std::mem::take(&mut book.remains))
        };
        let count = departures.len();
        let tried = self.try_again(again);
        for departure in departures {
            self.see_off(departure, Why::Shutdown);
        }
        let all_left = async {
            // Level, not edge: looked at again at each departure, and when a maker has given up.
            let mut left = self.0.left.subscribe();
            let are_gone = |book: &Book| book.lives.is_empty() && !book.lives.is_leaving();
            // waits: for the daemon at its end, until the deadline.
            let _ = left.wait_for(|_| are_gone(&self.book())).await;
            // waits: as above; the sender is dropped when all is tried.
            let _ = tried.await;
        };
        // waits: as above.
        let in_time = timeout_at(deadline, all_left).await.is_ok();
        let unclean = self.book().remains.len() + usize::from(!in_time);
        tracing::info!(sessions = count, unclean, "sessions closed");
        unclean
    }

    /// Ends one session, unless a run is at work in it, and lets nobody make its successor until what this answers is dropped:
    /// by then all that was known of it can be gone. Returns when it is cleaned up; one that is being made is waited for.
    pub(crate) async fn end(&self, key: &SessionKey) -> Shut {
        self.book().lives.shut(key);
        let shut = Shut { sessions: self.clone(), key: key.clone() };
        loop {
            let told = {
                let mut book = self.book();
                if self.0.runs.is_at_work(key) {
                    return shut;
                }
                if let Some(departure) = book.lives.take(key) {
                    self.see_off(departure, Why::Ended);
                }
                if book.lives.is_gone(key) {
                    return shut;
                }
                book.wait(key)
            };
            // waits: for steps that have a limit each; no run waits here.
            outcome(told).await;
        }
    }

    /// Steps of clean-ups that failed and will be tried again.
    #[must_use]
    pub fn unclean(&self) -> usize {
        self.book().remains.len()
    }

    /// Cleans up a session that has left the book, in a task of the engine. To be called by who took it out.
    pub(super) fn see_off(&self, departure: Departure<Arc<Body>>, why: Why) {
        self.0.runs.spawn(clean_up(self.clone(), departure, why));
    }

    /// Sessions with a run that is not over (one that waits for an approval among them), a background process, or a turn that
    /// is not recorded.
    fn at_work(&self) -> HashSet<SessionKey> {
        let mut at_work = self.0.runs.sessions();
        at_work.extend(self.0.runs.workshop().background.sessions());
        at_work.extend(self.0.runs.unrecorded_sessions());
        at_work
    }

    /// Whether a session may have expired, as far as its desk knows: while its actor is at work it is in use.
    pub(super) fn need_besides_runs(&self, body: &Body, desk: Option<&Desk>) -> Need {
        let background = &self.0.runs.workshop().background;
        let others = desk.is_some_and(Desk::is_needed) || background.has_of_session(body.key());
        if others { Need::Kept } else { Need::Unneeded { idle: body.idle() } }
    }

    async fn give_back(&self, mut remains: Remains) {
        let limit = self.0.times.clean_up;
        // waits: for at most the limit, in a task of the engine.
        let done = AssertUnwindSafe(remains.what.give_back(limit)).catch_unwind().await;
        let Some(problem) = done.map_or_else(|_| Some("it panicked".to_owned()), Result::err) else {
            if remains.tries > 0 {
                tracing::info!(session = %remains.key, step = remains.what.name(), "session clean-up step done at last");
            }
            // It is done, whatever its drop does.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(remains)));
            return;
        };
        remains.tries += 1;
        let (session, step, tries) = (&remains.key, remains.what.name(), remains.tries);
        if tries >= MOST_TRIES {
            tracing::error!(%session, step, tries, problem, "session clean-up step given up");
            return;
        }
        tracing::warn!(%session, step, tries, problem, "session clean-up step failed; it is tried again at the next sweep");
        metrics::counter!("quell_session_cleanup_failures_total").increment(1);
        self.book().remains.push(remains);
    }
}

/// Gives back what a session has, in this order: what tells of its end, its stages in reverse, its agent with the model
/// client, its MCP connections (row C7).
async fn clean_up(sessions: Sessions, mut departure: Departure<Arc<Body>>, why: Why) {
    if !departure.begin(sessions.0.runs.clock().now()) {
        return;
    }
    let (key, body) = (departure.key, departure.body);
    let _leaving = Leaving { sessions: sessions.clone(), key: key.clone() };
    // waits: for clean-ups that are limited themselves; nobody closes the semaphore.
    let broom = sessions.0.brooms.acquire().await.ok();
    let limit = sessions.0.times.clean_up;
    if why == Why::Expired {
        sessions.tell_hooks(HookEvent::Expire, &body.facts, limit).await;
    }
    if why != Why::NotMade {
        sessions.tell_hooks(HookEvent::Terminate, &body.facts, limit).await;
    }
    for stage in body.take_stages().into_iter().rev() {
        sessions.give_back(Remains { key: key.clone(), what: Rest::Stage(stage), tries: 0 }).await;
    }
    body.drop_agents();
    let farewell = sessions.0.runs.workshop().mcp.close_session(&key);
    sessions.give_back(Remains { key: key.clone(), what: Rest::Servers(farewell), tries: 0 }).await;
    sessions.0.runs.workshop().background.forget_session(&key);
    drop(body);
    drop(broom);
    if why == Why::Expired {
        tracing::info!(session = %key, "session expired");
    }
    tracing::info!(session = %key, why = why.word(), "session cleaned up");
}

/// A clean-up under way. Dropped, it is over, also when code of an embedding program has panicked where nobody can catch it.
struct Leaving {
    sessions: Sessions,
    key: SessionKey,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut book = self.sessions.book();
        book.lives.left(&self.key);
        book.tell(&self.key, None);
        drop(book);
        self.sessions.0.left.send_modify(|departures| *departures += 1);
    }
}

impl Sessions {
    async fn tell_hooks(&self, event: HookEvent, facts: &SessionFacts, limit: Duration) {
        if self.hooks().has(event) {
            // waits: for at most the limit, in a task of the engine; no run waits for a clean-up.
            self.hooks().tell_and_wait(Happening::of_session(event, facts.clone()), limit).await;
        }
    }
}

/// Sweeps every so often, until it is told to stop.
///
/// # Cancel safety
/// Not to be dropped: it is a task of the engine.
pub async fn sweep_at_times(sessions: Sessions) {
    loop {
        // waits: between sweeps, in a task of the engine.
        tokio::select! {
            () = sessions.closing() => return,
            () = sleep(sessions.0.times.sweep) => sessions.sweep(),
        }
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
