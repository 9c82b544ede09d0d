//! Sessions of MCP clients, and their calls. They are in memory only: after a restart of the daemon a client gets 404
//! and begins a new session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use quell_engine::access::Caller;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_kernel::{Moment, StopLevel};
use quell_protocol::{Principal, RunId, StopReason, Surface};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::http::ApiCall;
use crate::json_rpc::{INVALID_REQUEST, JsonRpcFailure, JsonRpcId};

/// Sessions that are kept, at most. Above that the one that was not used for the longest time and has no open call is
/// forgotten.
const MAX_SESSIONS: usize = 4096;
/// Calls of a session that are kept, at most. Answered ones are kept for clients that have lost the answer.
const MAX_CALLS: usize = 256;

/// What a call follows a run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallPurpose {
    /// The call has started the run: a cancel of the call stops it.
    RunAgent,
    /// The call looks on, until this time.
    Watch { until: Instant },
    /// The call waits for the result of a task.
    TaskResult,
}

/// A call whose answer is the end of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FollowedCall {
    pub(super) request: JsonRpcId,
    pub(super) progress_token: Option<serde_json::Value>,
    pub(super) run: RunId,
    pub(super) purpose: CallPurpose,
}

/// A call within a session.
#[derive(Debug)]
pub(super) struct SessionCall {
    pub(super) followed: FollowedCall,
    /// Begins the ids of its events.
    stream: String,
    /// True for a client that takes an event without data at the beginning of a stream.
    pub(super) is_primed: bool,
    pub(super) cancelled: CancellationToken,
    is_answered: AtomicBool,
    order: u64,
}

impl SessionCall {
    pub(super) fn event_id(&self, seq: u64) -> String {
        format!("{}-{seq}", self.stream)
    }

    pub(super) fn set_answered(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        !self.is_answered.load(Ordering::Acquire) && !self.cancelled.is_cancelled()
    }
}

#[derive(Debug)]
pub(crate) struct McpSession {
    id: String,
    principal: Principal,
    version: &'static str,
    lifetime: SessionLifetime,
    calls: Mutex<SessionCalls>,
}

/// What a lost connection means to the calls of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionLifetime {
    /// Nothing: they go on.
    Independent,
    /// Their end: the client is a program on standard input and output that has ended.
    Connection,
}

#[derive(Debug, Default)]
struct SessionCalls {
    by_request: HashMap<JsonRpcId, Arc<SessionCall>>,
    next_order: u64,
    last_used: Moment,
}

impl McpSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn version(&self) -> &'static str {
        self.version
    }

    pub(super) fn is_bound_to_connection(&self) -> bool {
        self.lifetime == SessionLifetime::Connection
    }

    /// Adds a call before its run is submitted, so that a cancel finds it from then on.
    pub(super) fn add_call(&self, followed: FollowedCall) -> Result<Arc<SessionCall>, JsonRpcFailure> {
        let mut calls = self.lock_calls();
        if calls.by_request.get(&followed.request).is_some_and(|call| call.is_open()) {
            let text = "a call with this id is not answered yet; take a new id";
            return Err(JsonRpcFailure::new(INVALID_REQUEST, text).with_status(StatusCode::BAD_REQUEST));
        }
        calls.make_room()?;
        let session_call = Arc::new(SessionCall {
            followed: followed.clone(),
            stream: Uuid::now_v7().simple().to_string(),
            is_primed: self.version == super::versions::SESSION_VERSIONS[0],
            cancelled: CancellationToken::new(),
            is_answered: AtomicBool::new(false),
            order: calls.next_order,
        });
        calls.next_order += 1;
        calls.by_request.insert(followed.request, Arc::clone(&session_call));
        Ok(session_call)
    }

    /// Forgets a call that has failed before it had a run.
    pub(super) fn remove_call(&self, request: &JsonRpcId) {
        self.lock_calls().by_request.remove(request);
    }

    /// The call to which an event belongs, and the number of the event.
    pub(super) fn find_stream(&self, event_id: &str) -> Option<(Arc<SessionCall>, u64)> {
        let (stream, seq) = event_id.rsplit_once('-')?;
        let seq = seq.parse().ok()?;
        let calls = self.lock_calls();
        let found = calls.by_request.values().find(|call| call.stream == stream && !call.cancelled.is_cancelled())?;
        Some((Arc::clone(found), seq))
    }

    /// Cancels a call: its run is stopped before this returns, and no answer follows. An unknown or answered call is
    /// left alone.
    pub(super) fn cancel_call(&self, call: &ApiCall, request: &JsonRpcId, reason: &StopReason) {
        let found = self.lock_calls().by_request.get(request).filter(|call| call.is_open()).cloned();
        if let Some(session_call) = found {
            cancel(call, &session_call, reason);
        }
    }

    fn lock_calls(&self) -> MutexGuard<'_, SessionCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionCalls {
    fn make_room(&mut self) -> Result<(), JsonRpcFailure> {
        if self.by_request.len() < MAX_CALLS {
            return Ok(());
        }
        let closed = self.by_request.iter().filter(|(_, call)| !call.is_open());
        let oldest = closed.min_by_key(|(_, call)| call.order).map(|(id, _)| id.clone());
        let Some(oldest) = oldest else {
            let text = format!("the session has {MAX_CALLS} open calls, which is the most; wait for some of them");
            return Err(JsonRpcFailure::new(INVALID_REQUEST, text).with_status(StatusCode::TOO_MANY_REQUESTS));
        };
        self.by_request.remove(&oldest);
        Ok(())
    }

    fn has_open_call(&self) -> bool {
        self.by_request.values().any(|call| call.is_open())
    }
}

fn cancel(call: &ApiCall, session_call: &SessionCall, reason: &StopReason) {
    if session_call.followed.purpose == CallPurpose::RunAgent {
        stop_run_of_call(call.engine(), &call.caller, &session_call.followed.run, reason.clone());
    }
    session_call.cancelled.cancel();
}

/// Stops the run of a call, which may not be accepted yet.
pub(super) fn stop_run_of_call(engine: &quell_engine::Engine, caller: &Caller, run: &RunId, reason: StopReason) {
    let scope = StopScope::Run { id: run.clone(), session: None };
    let request = StopRequest { level: StopLevel::Gentle, reason, surface: Surface::Mcp };
    let _tickets = engine.stop(caller, &scope, &request);
}

/// All sessions of MCP clients.
#[derive(Debug, Default)]
pub(crate) struct McpSessionTable(Mutex<HashMap<String, Arc<McpSession>>>);

impl McpSessionTable {
    /// `None` if all sessions have open calls, and there are too many.
    pub(super) fn begin(
        &self,
        principal: Principal,
        version: &'static str,
        lifetime: SessionLifetime,
        now: Moment,
    ) -> Option<Arc<McpSession>> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= MAX_SESSIONS {
            let idle = sessions.values().filter(|session| !session.lock_calls().has_open_call());
            let oldest = idle.min_by_key(|session| session.lock_calls().last_used).map(|session| session.id.clone())?;
            sessions.remove(&oldest);
        }
        // Not guessable, and who knows the id still needs a token of the same principal.
        let id = Uuid::now_v7().simple().to_string();
        let calls = SessionCalls { last_used: now, ..SessionCalls::default() };
        let session = Arc::new(McpSession { id: id.clone(), principal, version, lifetime, calls: Mutex::new(calls) });
        sessions.insert(id, Arc::clone(&session));
        Some(session)
    }

    pub(super) fn find(&self, id: &str, principal: &Principal, now: Moment) -> Option<Arc<McpSession>> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(id).filter(|session| session.principal == *principal).cloned()?;
        session.lock_calls().last_used = now;
        Some(session)
    }

    /// Ends a session and stops the runs of its open calls.
    pub(super) fn end(&self, session: &McpSession, call: &ApiCall) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&session.id);
        let open: Vec<Arc<SessionCall>> =
            session.lock_calls().by_request.values().filter(|call| call.is_open()).cloned().collect();
        for session_call in open {
            cancel(call, &session_call, &StopReason::Disconnect);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(request: i64) -> FollowedCall {
        let (request, run) = (JsonRpcId::Number(request), RunId::parse("r").unwrap());
        FollowedCall { request, progress_token: None, run, purpose: CallPurpose::RunAgent }
    }

    fn at(ms: u64) -> Moment {
        Moment::default().plus(std::time::Duration::from_millis(ms))
    }

    fn begin(table: &McpSessionTable, at_ms: u64) -> Arc<McpSession> {
        let principal = Principal::parse("ann").unwrap();
        table
            .begin(principal, super::super::versions::SESSION_VERSIONS[0], SessionLifetime::Independent, at(at_ms))
            .unwrap()
    }

    #[test]
    fn a_session_is_found_by_its_principal_only() {
        let table = McpSessionTable::default();
        let session = begin(&table, 0);
        let find = |name: &str| table.find(session.id(), &Principal::parse(name).unwrap(), at(1));
        assert!(find("ann").is_some());
        assert!(find("bob").is_none());
    }

    #[test]
    fn an_open_id_is_not_taken_twice_and_an_answered_one_is() {
        let session = begin(&McpSessionTable::default(), 0);
        let first = session.add_call(followed(1)).unwrap();
        assert_eq!(session.add_call(followed(1)).unwrap_err().code, INVALID_REQUEST);
        first.set_answered();
        let second = session.add_call(followed(1)).unwrap();
        assert_ne!(first.event_id(3), second.event_id(3));
    }

    #[test]
    fn an_event_leads_to_its_call_until_the_call_is_cancelled() {
        let session = begin(&McpSessionTable::default(), 0);
        let call = session.add_call(followed(1)).unwrap();
        let (found, seq) = session.find_stream(&call.event_id(12)).unwrap();
        assert_eq!((found.followed.request.clone(), seq), (JsonRpcId::Number(1), 12));
        assert!(session.find_stream("other-12").is_none() && session.find_stream("nonsense").is_none());
        call.cancelled.cancel();
        assert!(session.find_stream(&call.event_id(12)).is_none());
    }

    #[test]
    fn open_calls_are_bounded_and_answered_ones_make_room() {
        let session = begin(&McpSessionTable::default(), 0);
        let calls: Vec<_> = (0..256).map(|id| session.add_call(followed(id)).unwrap()).collect();
        assert_eq!(session.add_call(followed(256)).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        calls[7].set_answered();
        session.add_call(followed(256)).unwrap();
        assert!(session.find_stream(&calls[7].event_id(0)).is_none());
    }

    #[test]
    fn the_session_that_was_used_last_is_kept() {
        let table = McpSessionTable::default();
        let sessions: Vec<_> = (0..4096).map(|at| begin(&table, at)).collect();
        let ann = Principal::parse("ann").unwrap();
        table.find(sessions[0].id(), &ann, at(9999)).unwrap();
        begin(&table, 5000);
        let is_there = |session: &McpSession| table.find(session.id(), &ann, at(9999)).is_some();
        assert!(is_there(&sessions[0]) && !is_there(&sessions[1]));
    }
}
