//! Get or create: whoever needs a session gets the live one, or makes it, or waits for whoever does. One caller makes it; all
//! who waited get what came of it, and after a failure the next one tries again. Making is raced against the maker's scope: a
//! stop ends it, and the next who waits takes over.

use std::sync::Arc;

use quell_kernel::session::{Birth, Change, Enter, Life};
use quell_protocol::hook::{HookEvent, RunFacts};
use quell_protocol::session::SessionRequest;
use quell_protocol::{AgentId, By, ErrorCode, SessionKey, Surface};
use tokio::sync::watch;

use super::body::Body;
use super::depart::Why;
use super::own::Own;
use super::{Book, Sessions};
use crate::address::AddressPolicy;
use crate::hooks::Happening;
use crate::scope::{Cancelled, Point, Scope};
use crate::store::{SetUpAccess, StoreError, StoredSession};

/// Why a session was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMade {
    /// Its configuration, its agent's, or a stage of its making.
    #[error("the session cannot be made: {0}")]
    Configuration(String),
    /// Who asks may not have it so.
    #[error("{0}")]
    Forbidden(String),
    /// A hook refused it, for this reason.
    #[error("a hook refused the session: {0}")]
    Refused(String),
    /// The daemon closes.
    #[error("the daemon is shutting down")]
    Closing,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl NotMade {
    /// The code a door answers with, and a run fails with.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Configuration(_) => ErrorCode::AgentConfigurationError,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Refused(_) => ErrorCode::SessionRefused,
            Self::Closing => ErrorCode::ShuttingDown,
            Self::Store(_) => ErrorCode::StoreUnavailable,
        }
    }
}

/// What a session is needed for.
#[derive(Debug)]
pub(super) struct Purpose<'a> {
    /// A stop of it ends the waiting and the making.
    pub(super) scope: &'a Scope,
    /// The agent of a session that names none itself.
    pub(super) agent: &'a AgentId,
    /// What is asked of how it works, when somebody asks for it without a message.
    pub(super) asked: Option<&'a SessionRequest>,
    /// The run that needs it, if one does.
    pub(super) run: Option<RunFacts>,
    /// Who asked.
    pub(super) by: Option<By>,
    /// Where the endpoints may be that who asked brings along; anywhere is an admin.
    pub(super) reach: AddressPolicy,
}

impl Purpose<'_> {
    /// What may come of it where somebody else began the session. A chat network's own conversation is its people's.
    pub(super) fn access(&self, is_changed: bool) -> SetUpAccess {
        let of_chat = self.by.as_ref().is_some_and(|by| by.surface == Surface::Channel);
        if !is_changed || of_chat || self.reach == AddressPolicy::Any {
            SetUpAccess::Anyone
        } else {
            SetUpAccess::OwnerOnly
        }
    }

    /// True when who asks began a session.
    pub(super) fn began(&self, session: &StoredSession) -> bool {
        self.by.as_ref().is_some_and(|by| session.owner.as_ref() == Some(&by.principal))
    }

    /// What a hook is told that this caused.
    pub(super) fn happening(&self, event: HookEvent, body: &Body) -> Happening {
        let happening = Happening::of_session(event, body.facts.clone());
        Happening { run: self.run.clone(), by: self.by.clone(), ..happening }
    }
}

/// The claim of the one who makes or changes a session. Dropped before it is settled, it lets the next one try.
pub(super) struct Claim<'a> {
    sessions: &'a Sessions,
    pub(super) key: &'a SessionKey,
    birth: Birth,
    /// A new one, as far as it is made.
    pub(super) body: Option<Arc<Body>>,
    settled: bool,
}

/// What somebody who knocks is to do.
enum Knock<'a> {
    In(Arc<Body>),
    Make(Claim<'a>),
    Change(Claim<'a>, Arc<Body>),
    Wait(watch::Receiver<Option<NotMade>>),
    Again,
    Closed,
}

/// What became of a session that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// It was not known before.
    Created,
    /// It was known, and works otherwise from now on.
    Changed,
    /// It was known, as it is.
    Known,
}

impl Sessions {
    /// The live session of this key, made if there is none, and changed if the purpose asks for something else.
    pub(super) async fn enter(
        &self,
        key: &SessionKey,
        purpose: &Purpose<'_>,
    ) -> Result<Result<(Arc<Body>, Got), NotMade>, Cancelled> {
        loop {
            let made = match self.knock(key, purpose) {
                Knock::In(body) => {
                    let activated = purpose.happening(HookEvent::Activate, &body);
                    // waits: raced in the hooks, which never refuse this.
                    let _ = self.hooks().ask(activated, purpose.scope).await?;
                    return Ok(Ok((body, Got::Known)));
                }
                // waits: each stage is raced in there.
                Knock::Make(claim) => self.make(claim, purpose).await?,
                // waits: as `make`.
                Knock::Change(claim, body) => self.change(claim, &body, purpose).await?,
                Knock::Wait(told) => match purpose.scope.race(Point::Session, outcome(told)).await? {
                    Some(failure) => Err(failure),
                    None => continue,
                },
                Knock::Again => continue,
                Knock::Closed => Err(NotMade::Closing),
            };
            match made {
                Ok(Some(entered)) => return Ok(Ok(entered)),
                // It was deleted meanwhile, or the daemon closes.
                Ok(None) => {}
                Err(why) => return Ok(Err(why)),
            }
        }
    }

    /// As [`Sessions::enter`], without a run, for somebody who says how the session is to work. Cancelled, it has changed nothing.
    pub(crate) async fn open(
        &self,
        key: &SessionKey,
        asked: &SessionRequest,
        (by, reach): (By, AddressPolicy),
        scope: &Scope,
    ) -> Result<Result<Got, NotMade>, Cancelled> {
        let default = self.0.runs.workshop().society.default_agent();
        let agent = asked.agent.as_ref().unwrap_or(&default);
        let purpose = Purpose { scope, agent, asked: Some(asked), run: None, by: Some(by), reach };
        // waits: for a caller, with a scope that their stop and the shutdown cancel; no run waits here.
        let got = match self.enter(key, &purpose).await? {
            Ok((_, got)) => got,
            Err(why) => return Ok(Err(why)),
        };
        if got == Got::Known {
            // Nothing else of this use would outlive the daemon, and retention would take the session for an older one.
            let clock = self.0.runs.clock();
            // waits: for the database, as above; the session is there whether or not this is written.
            if let Err(error) = self.0.runs.store().touch_session(key.clone(), clock.rfc3339(clock.now())).await {
                tracing::warn!(session = %key, %error, "the use of a session could not be stored");
            }
        }
        Ok(Ok(got))
    }

    fn knock<'a>(&'a self, key: &'a SessionKey, purpose: &Purpose<'_>) -> Knock<'a> {
        let now = self.0.runs.clock().now();
        let mut book = self.book();
        let book = &mut *book;
        let desk = book.desks.get(key);
        let body = match book.lives.enter(key, now, |body| self.need_besides_runs(body, desk)) {
            Enter::In(body) => body,
            Enter::Make(birth) => return Knock::Make(self.claim(key, birth)),
            Enter::Wait => return Knock::Wait(book.wait(key)),
            Enter::Clean(departure) => {
                self.see_off(departure, Why::Expired);
                return Knock::Again;
            }
            Enter::Closed => return Knock::Closed,
        };
        if purpose.run.is_none() && !desk.is_some_and(|desk| desk.working) {
            // A use of its own, and over with it.
            book.lives.released(key, now);
        }
        let says_so = |asked: &SessionRequest| {
            body.own.as_ref().is_some_and(|own| *own == Own::given(asked, purpose.reach, Some(own)))
        };
        if purpose.asked.is_none_or(says_so) {
            return Knock::In(body);
        }
        match book.lives.change(key) {
            Change::Yours(birth, body) => Knock::Change(self.claim(key, birth), body),
            Change::Wait | Change::Absent => Knock::Again,
            Change::Closed => Knock::Closed,
        }
    }

    fn claim<'a>(&'a self, key: &'a SessionKey, birth: Birth) -> Claim<'a> {
        Claim { sessions: self, key, birth, body: None, settled: false }
    }
}

impl Book {
    /// A receiver that is told when this session is made, or not, or cleaned up. To be taken under the lock under which the
    /// need for waiting was seen.
    pub(super) fn wait(&mut self, key: &SessionKey) -> watch::Receiver<Option<NotMade>> {
        self.waits.entry(key.clone()).or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    /// Tells all who wait for this session to look again, or that it could not be made.
    pub(super) fn tell(&mut self, key: &SessionKey, failure: Option<NotMade>) {
        if let Some(waiting) = self.waits.remove(key) {
            waiting.send_replace(failure);
        }
    }
}

/// Waits until the session is made, or not, or cleaned up; answers why it was not made.
pub(super) async fn outcome(mut told: watch::Receiver<Option<NotMade>>) -> Option<NotMade> {
    // waits: raced by who waits for a run, bounded for the others. The sender is dropped when there is news, so that an end is as good as a change.
    while told.changed().await.is_ok() {}
    told.borrow().clone()
}

impl Claim<'_> {
    /// The session is made. False when it was taken away meanwhile: it is being cleaned up.
    pub(super) fn made(mut self, body: Arc<Body>) -> bool {
        self.settled = true;
        let now = self.sessions.0.runs.clock().now();
        let mut book = self.sessions.book();
        let made = book.lives.made(self.key, self.birth, body, now);
        if made.is_ok() {
            book.tell(self.key, None);
        }
        drop(book);
        made.map_err(|departure| self.sessions.see_off(departure, Why::Ended)).is_ok()
    }

    /// The session is changed. False as in [`Claim::made`].
    pub(super) fn changed(mut self, body: Arc<Body>) -> bool {
        self.settled = true;
        let now = self.sessions.0.runs.clock().now();
        let mut book = self.sessions.book();
        let changed = book.lives.changed(self.key, self.birth, body, now);
        if changed.is_ok() {
            book.tell(self.key, None);
        }
        drop(book);
        changed.map(drop).map_err(|departure| self.sessions.see_off(departure, Why::Ended)).is_ok()
    }

    /// The session is not made; all who wait for it are told why.
    pub(super) fn failed(mut self, why: &NotMade) {
        self.give_up(Some(why));
    }

    /// It is not changed; who waits for it looks again.
    pub(super) fn failed_alone(mut self) {
        self.give_up(None);
    }

    fn give_up(&mut self, why: Option<&NotMade>) {
        self.settled = true;
        let mut book = self.sessions.book();
        let departure = book.lives.failed(self.key, self.birth, self.body.take());
        book.tell(self.key, why.cloned());
        drop(book);
        self.sessions.0.left.send_modify(|departures| *departures += 1);
        if let Some(departure) = departure {
            let why = if departure.life == Life::Uninitialised { Why::NotMade } else { Why::Ended };
            self.sessions.see_off(departure, why);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.give_up(None);
        }
    }
}
