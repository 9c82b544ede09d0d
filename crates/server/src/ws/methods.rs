//! Parse a request, check its parameters and its scope, call the method, send the response.

mod agent_run;
mod approvals;
pub(super) mod attachments;
mod chat;
mod commands;
mod follow;
mod gateway_info;
mod history;
pub(super) mod parameters;
mod queries;
mod session_reads;
mod session_settings;
mod session_work;
mod sessions;
mod stop;

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use quell_engine::Engine;
use quell_kernel::stop_text;
use quell_protocol::api::{RunView, SessionRow};
use quell_protocol::{Principal, RunId, SessionKey};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::followed_runs::{FollowLookup, FoundRun, PendingRequest};
use super::forward::MethodRoute;
use super::frame::{RequestFrame, RpcError};
use super::outbox::ClientOutbox;
use super::peer::WsPeer;
use crate::budget::Reservation;
use crate::state::ServerState;

/// Methods that are accepted however many requests are pending.
pub(super) const STOP_METHODS: &[&str] = &["chat.abort", "runs.stop", "sessions.abort", "stop.all"];

/// True for what the stop contract names: stops, the hold, and messages whose text is a stop. No limiter counts them.
fn is_outside_limits(method: &str, params: &Value) -> bool {
    let is_stop_text = || {
        let text = params.get("message").and_then(Value::as_str);
        let is_literal = params.get("suppressCommandInterpretation").and_then(Value::as_bool) == Some(true);
        method == "chat.send" && !is_literal && text.is_some_and(stop_text::is_stop_phrase)
    };
    STOP_METHODS.contains(&method) || matches!(method, "hold.get" | "hold.set") || is_stop_text()
}

/// Maximum number of chats to which one connection may subscribe.
const MAX_CHAT_SUBSCRIPTIONS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct WsSubscriptions {
    sessions: Mutex<bool>,
    chats: Mutex<HashSet<SessionKey>>,
    messages: Mutex<HashSet<SessionKey>>,
}

impl WsSubscriptions {
    pub(super) fn wants_sessions(&self) -> bool {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node wants the chat of this session.
    pub(super) fn wants_chat(&self, key: &SessionKey) -> bool {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// The client wants the `session.message` events of this session.
    pub(super) fn wants_messages(&self, key: &SessionKey) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn subscribe_sessions(&self) {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn set_chat_subscription(&self, key: SessionKey, wanted: bool) {
        // A client that has too many hears of no further one.
        let _ = set_subscription(&self.chats, key, wanted);
    }

    /// False if there are too many.
    #[must_use]
    fn set_message_subscription(&self, key: SessionKey, wanted: bool) -> bool {
        set_subscription(&self.messages, key, wanted)
    }
}

/// Adds or removes a session. False if there are too many.
fn set_subscription(keys: &Mutex<HashSet<SessionKey>>, key: SessionKey, wanted: bool) -> bool {
    let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
    if !wanted {
        keys.remove(&key);
        return true;
    }
    if keys.len() < MAX_CHAT_SUBSCRIPTIONS {
        keys.insert(key);
        return true;
    }
    keys.contains(&key)
}

type RpcResult = Result<Value, RpcError>;

/// An authenticated client, with what is needed to answer it.
pub(super) struct WsClient {
    pub(super) server: ServerState,
    pub(super) peer: WsPeer,
    pub(super) subscriptions: WsSubscriptions,
    pub(super) outbox: Arc<ClientOutbox>,
    /// The client is connected to another node of the cluster, which has forwarded one method.
    pub(super) is_forwarded: bool,
}

/// What a connection has open.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLoad {
    pub(super) pending_requests: usize,
    pub(super) followed_runs: usize,
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

impl WsClient {
    pub(super) fn engine(&self) -> &Engine {
        self.server.engine()
    }

    /// The principal to whose sessions and runs a list is limited; `None` for a caller that sees all.
    fn visible_to(&self) -> Option<Principal> {
        let viewer = self.peer.caller.viewer();
        (!viewer.reads_all()).then_some(viewer.principal)
    }

    /// Finds a session that the caller may read.
    async fn find_readable_session(&self, key: &SessionKey) -> Result<Option<SessionRow>, RpcError> {
        if !self.engine().may_read_session(&self.peer.caller, key) {
            return Ok(None);
        }
        Ok(self.engine().find_session(key).await?)
    }

    /// Finds a run that the caller may read.
    async fn find_readable_run(&self, id: &RunId) -> Result<Option<RunView>, RpcError> {
        let found = self.engine().find_run(id).await?;
        Ok(found.filter(|run| self.engine().may_read_run_view(&self.peer.caller, run)))
    }

    /// Answers methods without waiting at once, stops among them; others become work for the connection. `held` is the
    /// budget reservation of the message.
    pub(super) fn handle_request(
        self: &Arc<Self>,
        text: &str,
        held: Option<Reservation>,
        load: ConnectionLoad,
    ) -> RequestOutcome {
        let request = match RequestFrame::parse(text) {
            Ok(request) => request,
            Err(refusal) => return self.answer(&RequestFrame::parse_id(text), &Err(refusal)),
        };
        let (id, method) = (request.id, request.method);
        let permit = self.server.budgets().pending_calls.reserve_one();
        let is_admitted = permit.is_some() && load.pending_requests < MAX_PENDING_REQUESTS;
        if !is_admitted && !STOP_METHODS.contains(&method.as_str()) {
            let problem = "too many requests of this connection, or of all together, are pending";
            return self.answer(&id, &Err(RpcError::unavailable(problem)));
        }
        if !is_outside_limits(&method, &request.params)
            && let Err(wait) = self.server.count_request(&self.peer.caller.principal)
        {
            return self.answer(&id, &Err(RpcError::rate_limited(wait)));
        }
        let outcome = parameters::check_parameters(&method, request.params)
            .and_then(|params| self.call_method_on_route(&method, params, load));
        let outbox = Arc::clone(&self.outbox);
        let client = Arc::clone(self);
        match outcome {
            Err(refusal) => {
                self.audit_refusal(&method, &refusal);
                self.answer(&id, &Err(refusal))
            }
            Ok(MethodOutcome::Answered(payload)) => self.answer(&id, &Ok(payload)),
            // The stop itself has been carried out.
            Ok(MethodOutcome::Pending(_)) if load.pending_requests >= MAX_PENDING_STOPS => {
                let problem = "the stop is carried out, but too many requests are pending to wait for its result";
                self.answer(&id, &Err(RpcError::unavailable(problem)))
            }
            Ok(MethodOutcome::Pending(work)) => RequestOutcome::Pending(Box::pin(async move {
                let result = work.await;
                if let Err(refusal) = &result {
                    client.audit_refusal(&method, refusal);
                }
                outbox.push_response(&id, &result);
                drop((held, permit));
                None
            })),
            Ok(MethodOutcome::TwoAnswers(work)) => RequestOutcome::Pending(Box::pin(async move {
                let result = match work.await {
                    Ok((first, last)) => {
                        outbox.push_response(&id, &Ok(first));
                        last.await
                    }
                    Err(refusal) => Err(refusal),
                };
                if let Err(refusal) = &result {
                    client.audit_refusal(&method, refusal);
                }
                outbox.push_response(&id, &result);
                drop((held, permit));
                None
            })),
            Ok(MethodOutcome::Follow(run, work)) => {
                let lookup = Box::pin(async move {
                    let found = work.await;
                    outbox
                        .push_response(&id, &found.as_ref().map(|_| json!({"following": true})).map_err(Clone::clone));
                    drop((held, permit));
                    found.ok()
                });
                RequestOutcome::Follow(run, lookup)
            }
            Ok(MethodOutcome::Unfollow(run)) => {
                outbox.push_response(&id, &Ok(json!({"following": false})));
                RequestOutcome::Unfollow(run)
            }
        }
    }

    /// Records a refusal for want of rights.
    fn audit_refusal(&self, method: &str, refusal: &RpcError) {
        if let Some(reason) = refusal.forbidden_reason() {
            self.engine().audit_refusal(&self.peer.caller, method, reason);
        }
    }

    fn answer(&self, id: &str, result: &RpcResult) -> RequestOutcome {
        self.outbox.push_response(id, result);
        RequestOutcome::Answered
    }

    /// Calls a method on the node of the cluster that it concerns.
    fn call_method_on_route(
        self: &Arc<Self>,
        method: &str,
        params: Value,
        load: ConnectionLoad,
    ) -> Result<MethodOutcome, RpcError> {
        match MethodRoute::of(self, method, &params) {
            MethodRoute::Here => self.call_method(method, params, load),
            route => {
                if let Some(access) = parameters::required_access(method)? {
                    self.peer.require_access(access)?;
                }
                Ok(pending(Arc::clone(self).answer_on_route(method.to_owned(), params, route)))
            }
        }
    }

    /// Calls a method for another one, on the node that it concerns. Its scope is that of the caller.
    fn dispatch(
        self: &Arc<Self>,
        method: &'static str,
        params: Value,
    ) -> Pin<Box<dyn Future<Output = RpcResult> + Send>> {
        let route = MethodRoute::of(self, method, &params);
        Box::pin(Arc::clone(self).answer_on_route(method.to_owned(), params, route))
    }

    /// Answers a method with one answer.
    pub(super) async fn answer_here(self: Arc<Self>, method: &str, params: Value) -> RpcResult {
        match self.call_method(method, params, ConnectionLoad { pending_requests: 0, followed_runs: 0 })? {
            MethodOutcome::Answered(payload) => Ok(payload),
            MethodOutcome::Pending(work) => work.await,
            MethodOutcome::TwoAnswers(_) | MethodOutcome::Follow(..) | MethodOutcome::Unfollow(_) => {
                Err(parameters::unknown_method(method))
            }
        }
    }

    fn call_method(
        self: &Arc<Self>,
        method: &str,
        params: Value,
        load: ConnectionLoad,
    ) -> Result<MethodOutcome, RpcError> {
        if let Some(access) = parameters::required_access(method)? {
            self.peer.require_access(access)?;
        }
        let client = Arc::clone(self);
        let answer = match method {
            "chat.abort" => return stop::chat_abort(self, &params),
            "sessions.abort" => return stop::sessions_abort(self, &params),
            "runs.stop" => return Ok(pending(stop::runs_stop(client, params))),
            "stop.all" => return Ok(pending(stop::stop_all(client, params))),
            "hold.get" => return Ok(pending(stop::hold_get(client))),
            "hold.set" => return Ok(pending(stop::hold_set(client, params))),
            "approvals.list" => approvals::list(self)?,
            "plugin.approval.list" => approvals::plugin_list(self)?,
            "approvals.resolve" | "plugin.approval.resolve" | "exec.approval.resolve" => {
                approvals::resolve(self, params)?
            }
            "chat.send" => return Ok(pending(chat::send(client, params))),
            "agent" | "sessions.compact" if load.pending_requests >= MAX_PENDING_WAITS => {
                return Err(RpcError::unavailable("too many requests of this connection are pending"));
            }
            "agent" => return Ok(MethodOutcome::TwoAnswers(Box::pin(agent_run::start(client, params)))),
            "chat.inject" => return Ok(pending(session_work::inject(client, params))),
            "sessions.compact" => return Ok(pending(session_work::compact(client, params))),
            "chat.metadata" => session_reads::chat_metadata(self, params)?,
            "config.get" => gateway_info::config(self),
            "system-presence" => gateway_info::presence(self),
            // What waits for a person is in `plugin.approval.list`, commands too.
            "exec.approval.list" => json!([]),
            "sessions.create" => return Ok(pending(session_settings::create(client, params))),
            "sessions.patch" => return Ok(pending(session_settings::patch(client, params))),
            "sessions.get" => return Ok(pending(session_reads::get(client, params))),
            "sessions.preview" => return Ok(pending(session_reads::preview(client, params))),
            "sessions.usage" => return Ok(pending(session_reads::usage(client, params))),
            "sessions.messages.subscribe" => queries::subscribe_messages(self, params, true)?,
            "sessions.messages.unsubscribe" => queries::subscribe_messages(self, params, false)?,
            "chat.history" | "chat.startup" => return Ok(pending(history::history(client, params))),
            "agent.wait" if load.pending_requests >= MAX_PENDING_WAITS => {
                return Err(RpcError::unavailable("too many requests of this connection are pending"));
            }
            "agent.wait" => return Ok(pending(chat::wait(client, params))),
            "node.event" => chat::node_event(self, params)?,
            "sessions.subscribe" => queries::subscribe_sessions(self),
            "sessions.list" => return Ok(pending(sessions::list(client, params))),
            "sessions.describe" | "sessions.resolve" => return Ok(pending(sessions::show(client, params))),
            "sessions.reset" => return Ok(pending(sessions::reset(client, params))),
            "sessions.share" => return Ok(pending(sessions::share(client, params))),
            "sessions.delete" => return Ok(pending(sessions::delete(client, params))),
            "runs.list" => return Ok(pending(queries::list_runs(client, params))),
            "runs.get" => return Ok(pending(queries::get_run(client, params))),
            "runs.follow" => return follow::follow(client, params, load),
            "runs.unfollow" => return follow::unfollow(params),
            "commands.list" => commands::list(self, params)?,
            "health" => queries::health(self),
            "status" => return Ok(pending(queries::status(client))),
            "agents.list" => queries::agents_payload(self),
            "models.list" => queries::models_payload(self, params)?,
            // Quell has no questions, so the list is always empty.
            "question.list" => json!({"questions": []}),
            "connect" => return Err(RpcError::invalid("already connected")),
            other => return Err(parameters::unknown_method(other)),
        };
        Ok(MethodOutcome::Answered(answer))
    }
}

enum MethodOutcome {
    Answered(Value),
    Pending(Pin<Box<dyn Future<Output = RpcResult> + Send>>),
    /// The request gets two responses: one when it is accepted, one when it is done.
    TwoAnswers(agent_run::FirstAnswer),
    Follow(RunId, Pin<Box<dyn Future<Output = Result<FoundRun, RpcError>> + Send>>),
    Unfollow(RunId),
}

fn pending(work: impl Future<Output = RpcResult> + Send + 'static) -> MethodOutcome {
    MethodOutcome::Pending(Box::pin(work))
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

fn parse_params<T: DeserializeOwned>(value: Value) -> Result<T, RpcError> {
    serde_json::from_value(value).map_err(|error| RpcError::invalid(format!("invalid params: {error}")))
}
