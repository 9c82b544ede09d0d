//! Parse a request, check its scope, call the method, send the response.

mod approvals;
mod chat;
mod commands;
mod follow;
mod history;
mod parameters;
mod queries;
mod sessions;
mod stop;

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use quell_engine::engine::RunFollow;
use quell_protocol::api::AccessLevel;
use quell_protocol::{RunId, SessionKey};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::followed_runs::{FollowLookup, PendingRequest};
use super::frame::{RequestFrame, RpcError};
use super::outbox::ClientOutbox;
use super::peer::WsPeer;
use crate::budget::Reservation;
use crate::state::ServerState;

/// All methods, as `hello-ok` announces them.
pub(super) const METHOD_NAMES: &[&str] = &[
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

/// Methods that are accepted however many requests are pending.
const STOP_METHODS: &[&str] = &["chat.abort", "runs.stop", "sessions.abort", "stop.all"];

/// Maximum number of chats to which one connection may subscribe.
const MAX_CHAT_SUBSCRIPTIONS: usize = 1024;

/// Subscriptions of one connection.
#[derive(Debug, Default)]
pub(super) struct WsSubscriptions {
    sessions: Mutex<bool>,
    chats: Mutex<HashSet<SessionKey>>,
}

impl WsSubscriptions {
    /// The connection wants `sessions.changed`.
    pub(super) fn wants_sessions(&self) -> bool {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node wants the chat of this session.
    pub(super) fn wants_chat(&self, key: &SessionKey) -> bool {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn subscribe_sessions(&self) {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn set_chat_subscription(&self, key: SessionKey, wanted: bool) {
        let mut chats = self.chats.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted {
            if chats.len() < MAX_CHAT_SUBSCRIPTIONS {
                chats.insert(key);
            }
        } else {
            chats.remove(&key);
        }
    }
}

type RpcResult = Result<Value, RpcError>;

/// A request with everything needed to answer it.
pub(super) struct RpcCall<'a> {
    pub(super) server: &'a ServerState,
    pub(super) peer: &'a WsPeer,
    pub(super) subscriptions: &'a Arc<WsSubscriptions>,
    pub(super) outbox: &'a Arc<ClientOutbox>,
    /// Number of pending requests of this connection.
    pub(super) pending_count: usize,
    /// Number of runs that the connection follows.
    pub(super) followed_count: usize,
}

pub(super) enum RequestOutcome {
    Answered,
    /// The response is sent by this future.
    Pending(PendingRequest),
    /// The response is sent by the lookup; then the run is followed, if it was found.
    Follow(RunId, FollowLookup),
    /// The response is sent, and the connection stops following the run.
    Unfollow(RunId),
}

/// From this number of pending requests on, a connection may not wait for further runs. Reading goes on, so that a stop
/// gets in.
const MAX_PENDING_WAITS: usize = 1024;
/// From this number of pending requests on, a connection may only stop.
const MAX_PENDING_REQUESTS: usize = MAX_PENDING_WAITS + 128;
/// From this number of pending requests on, a stop is carried out without waiting for its receipt.
const MAX_PENDING_STOPS: usize = 2 * MAX_PENDING_WAITS;

impl RpcCall<'_> {
    /// Answers methods without waiting at once, stops among them; others become work for the connection. `held` is the
    /// budget reservation of the message.
    pub(super) fn handle_request(&self, text: &str, held: Option<Reservation>) -> RequestOutcome {
        let request = match RequestFrame::parse(text) {
            Ok(request) => request,
            Err(refusal) => {
                self.outbox.push_response(&RequestFrame::parse_id(text), &Err(refusal));
                return RequestOutcome::Answered;
            }
        };
        let is_stop = STOP_METHODS.contains(&request.method.as_str());
        let mut permit = self.server.pending_call_budget().empty_reservation();
        let is_admitted = permit.grow(1).is_ok() && self.pending_count < MAX_PENDING_REQUESTS;
        if !is_admitted && !is_stop {
            let problem = "too many requests of this connection, or of all together, are pending";
            self.outbox.push_response(&request.id, &Err(RpcError::unavailable(problem)));
            return RequestOutcome::Answered;
        }
        let (outbox, id) = (Arc::clone(self.outbox), request.id);
        let params = match parameters::check_parameters(&request.method, request.params) {
            Ok(params) => params,
            Err(refusal) => {
                outbox.push_response(&id, &Err(refusal));
                return RequestOutcome::Answered;
            }
        };
        match self.call_method(&request.method, params) {
            MethodOutcome::Answered(answer) => outbox.push_response(&id, &answer),
            // The stop itself has been carried out.
            MethodOutcome::Pending(_) if self.pending_count >= MAX_PENDING_STOPS => {
                let problem = "the stop is carried out, but too many requests are pending to wait for its result";
                outbox.push_response(&id, &Err(RpcError::unavailable(problem)));
            }
            MethodOutcome::Pending(work) => {
                return RequestOutcome::Pending(Box::pin(async move {
                    outbox.push_response(&id, &work.await);
                    drop((held, permit));
                    None
                }));
            }
            MethodOutcome::Follow(run, work) => {
                let lookup = Box::pin(async move {
                    let found = work.await;
                    outbox
                        .push_response(&id, &found.as_ref().map(|_| json!({"following": true})).map_err(Clone::clone));
                    drop((held, permit));
                    found.ok()
                });
                return RequestOutcome::Follow(run, lookup);
            }
            MethodOutcome::Unfollow(run) => {
                outbox.push_response(&id, &Ok(json!({"following": false})));
                return RequestOutcome::Unfollow(run);
            }
        }
        RequestOutcome::Answered
    }

    fn call_method(&self, method: &str, params: Value) -> MethodOutcome {
        let peer = self.peer;
        match method {
            "chat.abort" => MethodOutcome::Answered(
                peer.require_scope(AccessLevel::Write).and_then(|()| stop::chat_abort(self, &params)),
            ),
            "sessions.abort" => MethodOutcome::Answered(
                peer.require_scope(AccessLevel::Write).and_then(|()| stop::sessions_abort(self, &params)),
            ),
            "runs.stop" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Write), || stop::runs_stop(self, params))
            }
            "stop.all" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Admin), || stop::stop_all(self, params))
            }
            "hold.get" => MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || stop::hold_get(self)),
            "hold.set" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Admin), || stop::hold_set(self, params))
            }
            "approvals.list" => MethodOutcome::Answered(approvals::list(self)),
            "plugin.approval.list" => MethodOutcome::Answered(approvals::plugin_list(self)),
            "approvals.resolve" | "plugin.approval.resolve" => {
                MethodOutcome::Answered(approvals::resolve(self, params))
            }
            "chat.send" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Write), || chat::send(self, params))
            }
            "chat.history" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || history::history(self, params))
            }
            "agent.wait" if self.pending_count >= MAX_PENDING_WAITS => {
                MethodOutcome::Answered(Err(RpcError::unavailable("too many requests of this connection are pending")))
            }
            "agent.wait" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || chat::wait(self, params))
            }
            "node.event" => MethodOutcome::Answered(chat::node_event(self, &params)),
            "sessions.subscribe" => MethodOutcome::Answered(
                peer.require_scope(AccessLevel::Read).map(|()| queries::subscribe_sessions(self)),
            ),
            "sessions.messages.subscribe" => MethodOutcome::Answered(Err(sessions::messages_subscribe_unsupported())),
            "sessions.list" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || sessions::list(self, params))
            }
            "sessions.describe" | "sessions.resolve" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || sessions::show(self, params))
            }
            "sessions.reset" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Write), || sessions::reset(self, params))
            }
            "sessions.delete" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Write), || sessions::delete(self, params))
            }
            "runs.list" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || queries::list_runs(self, params))
            }
            "commands.list" => MethodOutcome::Answered(
                peer.require_scope(AccessLevel::Read).and_then(|()| commands::list(self, params)),
            ),
            "runs.follow" => follow::follow(self, params),
            "runs.unfollow" => follow::unfollow(params),
            "runs.get" => {
                MethodOutcome::if_allowed(peer.require_scope(AccessLevel::Read), || queries::get_run(self, params))
            }
            "connect" => MethodOutcome::Answered(Err(RpcError::invalid("already connected"))),
            other => MethodOutcome::Answered(queries::call_immediate(self, other, params)),
        }
    }
}

enum MethodOutcome {
    Answered(RpcResult),
    Pending(Pin<Box<dyn Future<Output = RpcResult> + Send>>),
    Follow(RunId, Pin<Box<dyn Future<Output = Result<RunFollow, RpcError>> + Send>>),
    Unfollow(RunId),
}

impl MethodOutcome {
    fn if_allowed<F>(allowed: Result<(), RpcError>, work: impl FnOnce() -> F) -> Self
    where
        F: Future<Output = RpcResult> + Send + 'static,
    {
        match allowed {
            Ok(()) => Self::Pending(Box::pin(work())),
            Err(refusal) => Self::Answered(Err(refusal)),
        }
    }
}

/// Refuses a session id that differs from the key: the key of a session is also its only id.
fn check_session_id(method: &str, id: Option<&str>, key: &SessionKey) -> Result<(), RpcError> {
    match id {
        Some(id) if id != key.as_str() => {
            let message = format!("the session {key:?} has the id {key:?}, not {id:?}");
            Err(RpcError::invalid(message)
                .with_details(parameters::unsupported_parameter(method, "sessionId").details()))
        }
        _ => Ok(()),
    }
}

/// Parses parameters after [`parameters::check_parameters`] has refused unsupported ones.
fn parse_params<T: DeserializeOwned>(value: Value) -> Result<T, RpcError> {
    serde_json::from_value(value).map_err(|error| RpcError::invalid(format!("invalid params: {error}")))
}
