//! The gateway's methods: each parses its params, asks the engine, and shapes the answer.

mod approvals;
mod chat;
mod commands;
mod follow;
mod history;
mod look;
mod parameters;
mod sessions;
mod stop;

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use quell_engine::dispatch::Follow;
use quell_protocol::api::Scope;
use quell_protocol::{RunId, SessionKey};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::follows::Followed;
use super::frame::{Refusal, Request};
use super::handshake::{APPROVALS, Peer};
use super::outbox::Outbox;
use crate::budget::Reservation;
use crate::door::Door;

/// Every method, as `hello-ok` announces them.
pub(super) const NAMES: &[&str] = &[
    "agent.wait",
    "agents.list",
    "approvals.list",
    "approvals.resolve",
    "chat.abort",
    "chat.history",
    "chat.send",
    "commands.list",
    "connect",
    "health",
    "hold.get",
    "hold.set",
    "models.list",
    "node.event",
    "plugin.approval.list",
    "plugin.approval.resolve",
    "question.list",
    "runs.follow",
    "runs.get",
    "runs.list",
    "runs.stop",
    "runs.unfollow",
    "sessions.abort",
    "sessions.delete",
    "sessions.describe",
    "sessions.list",
    "sessions.reset",
    "sessions.resolve",
    "sessions.subscribe",
    "status",
    "stop.all",
];

/// The methods that are taken however much is pending.
const STOPS: &[&str] = &["chat.abort", "runs.stop", "sessions.abort", "stop.all"];

/// Chats that one connection may subscribe to.
const MOST_CHATS: usize = 1024;

/// What a connection subscribed to.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    sessions: Mutex<bool>,
    chats: Mutex<HashSet<SessionKey>>,
}

impl Subscriptions {
    /// True when it wants `sessions.changed`.
    pub(super) fn sessions(&self) -> bool {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when a node wants this session's chat.
    pub(super) fn chat(&self, key: &SessionKey) -> bool {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn want_sessions(&self) {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn want_chat(&self, key: SessionKey, wanted: bool) {
        let mut chats = self.chats.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted {
            if chats.len() < MOST_CHATS {
                chats.insert(key);
            }
        } else {
            chats.remove(&key);
        }
    }
}

/// What is left to do after a request was read. It answers by itself; a run that is to be followed is for the connection.
pub(super) type Work = Pin<Box<dyn Future<Output = Option<Followed>> + Send>>;

/// Looks for a run that is to be followed, and answers whether there is one.
pub(super) type Lookup = Pin<Box<dyn Future<Output = Option<Follow>> + Send>>;
type Answer = Result<Value, Refusal>;

/// One request with everything that answers it.
pub(super) struct Call<'a> {
    pub(super) door: &'a Door,
    pub(super) peer: &'a Peer,
    pub(super) subscriptions: &'a Arc<Subscriptions>,
    pub(super) outbox: &'a Arc<Outbox>,
    /// Requests of this connection that are being worked on.
    pub(super) pending: usize,
    /// Runs that it follows.
    pub(super) followed: usize,
}

/// How a request goes on.
pub(super) enum Begun {
    /// It is answered.
    Done,
    /// It will be.
    Later(Work),
    /// It will be, and then this run is followed, if it was found.
    Follow(RunId, Lookup),
    /// It is answered, and the connection follows this run no longer.
    Unfollow(RunId),
}

/// Requests of one connection that may be pending before it may not wait for more runs. Reading goes on, so that a stop gets in.
const PENDING: usize = 1024;
/// Requests of one connection that may be pending before it may ask for nothing but stops.
const MOST_PENDING: usize = PENDING + 128;
/// Requests of one connection that may be pending before a stop is carried out without a wait for its receipt.
const STOPS_PENDING: usize = 2 * PENDING;

impl Call<'_> {
    /// Answers what needs no waiting, stops among it, at once; the rest is work for the connection. `held` is what the message
    /// takes of the budget for what comes in.
    pub(super) fn begin(&self, text: &str, held: Option<Reservation>) -> Begun {
        let request = match Request::parse(text) {
            Ok(request) => request,
            Err(refusal) => {
                self.outbox.answer(&Request::id_of(text), &Err(refusal));
                return Begun::Done;
            }
        };
        let is_stop = STOPS.contains(&request.method.as_str());
        let mut place = self.door.calls().reserve();
        let is_placed = place.grow(1).is_ok() && self.pending < MOST_PENDING;
        if !is_placed && !is_stop {
            let problem = "too many requests of this connection, or of all together, are pending";
            self.outbox.answer(&request.id, &Err(Refusal::unavailable(problem)));
            return Begun::Done;
        }
        let (outbox, id) = (Arc::clone(self.outbox), request.id);
        let params = match parameters::check(&request.method, request.params) {
            Ok(params) => params,
            Err(refusal) => {
                outbox.answer(&id, &Err(refusal));
                return Begun::Done;
            }
        };
        match self.route(&request.method, params) {
            Route::Done(answer) => outbox.answer(&id, &answer),
            // The stop itself is done by now.
            Route::Later(_) if self.pending >= STOPS_PENDING => {
                let problem = "it is carried out, and too many requests are pending to wait for what comes of it";
                outbox.answer(&id, &Err(Refusal::unavailable(problem)));
            }
            Route::Later(work) => {
                return Begun::Later(Box::pin(async move {
                    outbox.answer(&id, &work.await);
                    drop((held, place));
                    None
                }));
            }
            Route::Follow(run, work) => {
                let lookup = Box::pin(async move {
                    let found = work.await;
                    outbox.answer(&id, &found.as_ref().map(|_| json!({"following": true})).map_err(Clone::clone));
                    drop((held, place));
                    found.ok()
                });
                return Begun::Follow(run, lookup);
            }
            Route::Unfollow(run) => {
                outbox.answer(&id, &Ok(json!({"following": false})));
                return Begun::Unfollow(run);
            }
        }
        Begun::Done
    }

    fn route(&self, method: &str, params: Value) -> Route {
        let peer = self.peer;
        match method {
            "chat.abort" => Route::Done(peer.needs(Scope::Write).and_then(|()| stop::chat_abort(self, &params))),
            "sessions.abort" => {
                Route::Done(peer.needs(Scope::Write).and_then(|()| stop::sessions_abort(self, &params)))
            }
            "runs.stop" => Route::after(peer.needs(Scope::Write), || stop::runs_stop(self, params)),
            "stop.all" => Route::after(peer.needs(Scope::Admin), || stop::all(self, params)),
            "hold.get" => Route::after(peer.needs(Scope::Read), || stop::hold_get(self)),
            "hold.set" => Route::after(peer.needs(Scope::Admin), || stop::hold_set(self, params)),
            "approvals.list" => Route::Done(approvals::list(self)),
            "plugin.approval.list" => Route::Done(approvals::plugin_list(self)),
            "approvals.resolve" | "plugin.approval.resolve" => Route::Done(approvals::resolve(self, params)),
            "chat.send" => Route::after(peer.needs(Scope::Write), || chat::send(self, params)),
            "chat.history" => Route::after(peer.needs(Scope::Read), || history::history(self, params)),
            "agent.wait" if self.pending >= PENDING => {
                Route::Done(Err(Refusal::unavailable("too many requests of this connection are pending")))
            }
            "agent.wait" => Route::after(peer.needs(Scope::Read), || chat::wait(self, params)),
            "node.event" => Route::Done(chat::node_event(self, &params)),
            "sessions.subscribe" => Route::Done(peer.needs(Scope::Read).map(|()| look::subscribe(self))),
            "sessions.messages.subscribe" => Route::Done(Err(sessions::no_messages())),
            "sessions.list" => Route::after(peer.needs(Scope::Read), || sessions::list(self, params)),
            "sessions.describe" | "sessions.resolve" => {
                Route::after(peer.needs(Scope::Read), || sessions::show(self, params))
            }
            "sessions.reset" => Route::after(peer.needs(Scope::Write), || sessions::reset(self, params)),
            "sessions.delete" => Route::after(peer.needs(Scope::Write), || sessions::delete(self, params)),
            "runs.list" => Route::after(peer.needs(Scope::Read), || look::runs(self, params)),
            "runs.follow" => follow::follow(self, params),
            "runs.unfollow" => follow::unfollow(params),
            "runs.get" => Route::after(peer.needs(Scope::Read), || look::run(self, params)),
            "connect" => Route::Done(Err(Refusal::invalid("already connected"))),
            other => Route::Done(look::plain(self, other, params)),
        }
    }
}

enum Route {
    Done(Answer),
    Later(Pin<Box<dyn Future<Output = Answer> + Send>>),
    Follow(RunId, Pin<Box<dyn Future<Output = Result<Follow, Refusal>> + Send>>),
    Unfollow(RunId),
}

impl Route {
    fn after<F>(allowed: Result<(), Refusal>, work: impl FnOnce() -> F) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        match allowed {
            Ok(()) => Self::Later(Box::pin(work())),
            Err(refusal) => Self::Done(Err(refusal)),
        }
    }
}

impl Peer {
    /// Passes a peer that was granted `scope`.
    fn needs(&self, scope: Scope) -> Result<(), Refusal> {
        if self.granted >= Some(scope) {
            return Ok(());
        }
        Err(Refusal::missing_scope(match scope {
            Scope::Read => "operator.read",
            Scope::Write => "operator.write",
            Scope::Admin => "operator.admin",
        }))
    }
}

/// A session has one id for as long as it is there: its key.
fn same_session(method: &str, id: Option<&str>, key: &SessionKey) -> Result<(), Refusal> {
    match id {
        Some(id) if id != key.as_str() => {
            let message = format!("the session {key:?} has the id {key:?}, not {id:?}");
            Err(Refusal::invalid(message).with_details(parameters::unsupported(method, "sessionId").details()))
        }
        _ => Ok(()),
    }
}

impl Peer {
    /// Passes a peer that may answer for calls; what it may answer is the engine's to say.
    fn needs_to_answer(&self) -> Result<(), Refusal> {
        if self.caller.may_approve() {
            return Ok(());
        }
        self.needs(Scope::Write).map_err(|_| Refusal::missing_scope(APPROVALS))
    }
}

/// Reads params, of which [`parameters::check`] has refused those that are not heeded.
fn params<T: DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|error| Refusal::invalid(format!("invalid params: {error}")))
}
