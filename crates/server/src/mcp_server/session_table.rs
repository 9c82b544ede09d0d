//! Sessions of MCP clients, and their calls. They are in memory only: after a restart of the daemon a client gets 404
//! and begins a new session.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use quell_engine::Engine;
use quell_engine::live_run::RunProgress;
use quell_kernel::Moment;
use quell_kernel::registry::StopScope;
use quell_protocol::{Principal, RunId, StopReason};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::disconnect_stop::stop_for_client;
use crate::http::ApiCall;
use crate::json_rpc::{INVALID_REQUEST, JsonRpcFailure, JsonRpcId};

/// Sessions that are kept, at most, in all and of one principal. Above that the one that was not used for the longest
/// time and has no open call is forgotten, one of the same principal first.
const MAX_SESSIONS: usize = 4096;
const MAX_SESSIONS_OF_PRINCIPAL: usize = 256;
/// Calls of a session that are kept, at most. Those that are not open are kept for clients that have lost the answer,
/// until others need their place.
const MAX_CALLS: usize = 256;
/// How long a cancel that has come before its call is kept, and how many of a session.
const EARLY_CANCEL_TTL: Duration = Duration::from_secs(60);
const MAX_EARLY_CANCELS: usize = 256;

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
    /// Connections that wait for the answer.
    attached: AtomicUsize,
    lifetime: SessionLifetime,
    order: u64,
}

impl SessionCall {
    pub(super) fn event_id(&self, seq: u64) -> String {
        format!("{}-{seq}", self.stream)
    }

    pub(super) fn set_answered(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    /// True while an answer is still to come, also if nobody waits for it.
    fn is_unanswered(&self) -> bool {
        !self.is_answered.load(Ordering::Acquire) && !self.cancelled.is_cancelled()
    }

    /// True while somebody waits for the answer, or a cancel of the call may have a run to stop.
    fn is_open(&self, is_active: &dyn Fn(&RunId) -> bool) -> bool {
        let has_run = || self.followed.purpose == CallPurpose::RunAgent && is_active(&self.followed.run);
        self.is_unanswered() && (self.attached.load(Ordering::Acquire) > 0 || has_run())
    }
}

/// A call while a connection of its client waits for the answer.
#[derive(Debug)]
pub(super) struct AttachedCall(Arc<SessionCall>);

impl AttachedCall {
    fn attach(session_call: Arc<SessionCall>) -> Self {
        session_call.attached.fetch_add(1, Ordering::AcqRel);
        Self(session_call)
    }
}

impl Deref for AttachedCall {
    type Target = SessionCall;

    fn deref(&self) -> &SessionCall {
        &self.0
    }
}

impl Drop for AttachedCall {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::AcqRel);
        if self.0.lifetime == SessionLifetime::Connection {
            // Nobody can resume it.
            self.0.cancelled.cancel();
        }
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
    early_cancels: EarlyCancels,
    next_order: u64,
    last_used: Moment,
}

/// Cancels that have come before their calls: each message of a client has a connection of its own.
#[derive(Debug, Default)]
struct EarlyCancels(VecDeque<(JsonRpcId, Moment)>);

impl EarlyCancels {
    fn add(&mut self, request: JsonRpcId, now: Moment) {
        if self.0.len() >= MAX_EARLY_CANCELS {
            self.0.pop_front();
        }
        self.0.push_back((request, now));
    }

    /// True if the call was cancelled before it has come.
    fn take(&mut self, request: &JsonRpcId, now: Moment) -> bool {
        self.0.retain(|(_, at)| now.since(*at) <= EARLY_CANCEL_TTL);
        let before = self.0.len();
        self.0.retain(|(cancelled, _)| cancelled != request);
        self.0.len() < before
    }
}

/// What comes of a call that is added to a session.
#[derive(Debug)]
pub(super) enum AddedCall {
    New(AttachedCall),
    /// Its cancel has come before it: nothing is done for it, and no answer follows.
    CancelledBefore,
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
    pub(super) fn add_call(
        &self,
        followed: FollowedCall,
        now: Moment,
        is_active: &dyn Fn(&RunId) -> bool,
    ) -> Result<AddedCall, JsonRpcFailure> {
        let mut calls = self.lock_calls();
        if calls.early_cancels.take(&followed.request, now) {
            return Ok(AddedCall::CancelledBefore);
        }
        if calls.by_request.get(&followed.request).is_some_and(|call| call.is_open(is_active)) {
            let text = "a call with this id is not answered yet; take a new id";
            return Err(JsonRpcFailure::new(INVALID_REQUEST, text).with_status(StatusCode::BAD_REQUEST));
        }
        calls.make_room(is_active)?;
        let session_call = Arc::new(SessionCall {
            followed: followed.clone(),
            stream: Uuid::now_v7().simple().to_string(),
            is_primed: self.version == super::versions::SESSION_VERSIONS[0],
            cancelled: CancellationToken::new(),
            is_answered: AtomicBool::new(false),
            attached: AtomicUsize::new(0),
            lifetime: self.lifetime,
            order: calls.next_order,
        });
        calls.next_order += 1;
        calls.by_request.insert(followed.request, Arc::clone(&session_call));
        Ok(AddedCall::New(AttachedCall::attach(session_call)))
    }

    /// Forgets a call that has failed before it had a run.
    pub(super) fn remove_call(&self, request: &JsonRpcId) {
        self.lock_calls().by_request.remove(request);
    }

    /// The call to which an event belongs, and the number of the event.
    pub(super) fn find_stream(&self, event_id: &str) -> Option<(AttachedCall, u64)> {
        let (stream, seq) = event_id.rsplit_once('-')?;
        let seq = seq.parse().ok()?;
        let calls = self.lock_calls();
        let found = calls.by_request.values().find(|call| call.stream == stream && !call.cancelled.is_cancelled())?;
        Some((AttachedCall::attach(Arc::clone(found)), seq))
    }

    /// Cancels a call: its run is stopped before this returns, and no answer follows. The cancel of a call that has not
    /// come yet is kept for it. An answered call is left alone.
    pub(super) fn cancel_call(&self, call: &ApiCall, request: &JsonRpcId, reason: &StopReason) {
        if let Some(session_call) = self.find_cancelled(request, call.engine().clock().now()) {
            cancel(call, &session_call, reason);
        }
    }

    /// The unanswered call that a cancel names.
    fn find_cancelled(&self, request: &JsonRpcId, now: Moment) -> Option<Arc<SessionCall>> {
        let mut calls = self.lock_calls();
        let Some(session_call) = calls.by_request.get(request).cloned() else {
            calls.early_cancels.add(request.clone(), now);
            return None;
        };
        session_call.is_unanswered().then_some(session_call)
    }

    fn lock_calls(&self) -> MutexGuard<'_, SessionCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionCalls {
    /// Forgets an answer if there is no room for another call: the oldest that its client has got, else the oldest that
    /// nobody waits for.
    fn make_room(&mut self, is_active: &dyn Fn(&RunId) -> bool) -> Result<(), JsonRpcFailure> {
        if self.by_request.len() < MAX_CALLS {
            return Ok(());
        }
        let closed = self.by_request.iter().filter(|(_, call)| !call.is_open(is_active));
        let oldest = closed.min_by_key(|(_, call)| (call.is_unanswered(), call.order)).map(|(id, _)| id.clone());
        let Some(oldest) = oldest else {
            let text = format!("the session has {MAX_CALLS} open calls, which is the most; wait for some of them");
            return Err(JsonRpcFailure::new(INVALID_REQUEST, text).with_status(StatusCode::TOO_MANY_REQUESTS));
        };
        self.by_request.remove(&oldest);
        Ok(())
    }
}

fn cancel(call: &ApiCall, session_call: &SessionCall, reason: &StopReason) {
    // First, so that the end of the stopped run, which may come at once, is not answered.
    session_call.cancelled.cancel();
    if session_call.followed.purpose == CallPurpose::RunAgent {
        let scope = StopScope::run(session_call.followed.run.clone());
        stop_for_client(call.engine(), &call.caller, &scope, reason.clone());
    }
}

/// True while a run of this node is not over. One of another node counts as over: a call that nobody waits for is then
/// forgotten when its place is needed.
pub(super) fn is_active(engine: &Engine, run: &RunId) -> bool {
    engine.live_run(run).is_some_and(|live_run| live_run.progress() < RunProgress::Ended)
}

/// A session that a client begins.
#[derive(Debug)]
pub(super) struct NewSession {
    pub(super) principal: Principal,
    pub(super) version: &'static str,
    pub(super) lifetime: SessionLifetime,
    pub(super) now: Moment,
}

/// All sessions of MCP clients.
#[derive(Debug, Default)]
pub(crate) struct McpSessionTable(Mutex<HashMap<String, Arc<McpSession>>>);

impl McpSessionTable {
    /// `None` if there are too many sessions, and all that could go have open calls.
    pub(super) fn begin(&self, new: NewSession, is_active: &dyn Fn(&RunId) -> bool) -> Option<Arc<McpSession>> {
        let NewSession { principal, version, lifetime, now } = new;
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        make_room_for_session(&mut sessions, &principal, is_active)?;
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
            session.lock_calls().by_request.values().filter(|call| call.is_unanswered()).cloned().collect();
        for session_call in open {
            cancel(call, &session_call, &StopReason::Disconnect);
        }
    }
}

/// Forgets a session if there is no room for another one of this principal.
fn make_room_for_session(
    sessions: &mut HashMap<String, Arc<McpSession>>,
    principal: &Principal,
    is_active: &dyn Fn(&RunId) -> bool,
) -> Option<()> {
    let is_own = |session: &McpSession| session.principal == *principal;
    let has_most = sessions.values().filter(|session| is_own(session)).count() >= MAX_SESSIONS_OF_PRINCIPAL;
    if !has_most && sessions.len() < MAX_SESSIONS {
        return Some(());
    }
    let idle = sessions.values().filter(|session| is_own(session) || !has_most).filter_map(|session| {
        let calls = session.lock_calls();
        let is_idle = !calls.by_request.values().any(|call| call.is_open(is_active));
        is_idle.then(|| (!is_own(session), calls.last_used, session.id.clone()))
    });
    let (_, _, oldest) = idle.min()?;
    sessions.remove(&oldest);
    Some(())
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

    fn add(session: &McpSession, request: i64) -> Result<AttachedCall, JsonRpcFailure> {
        match session.add_call(followed(request), at(0), &|_| false)? {
            AddedCall::New(call) => Ok(call),
            AddedCall::CancelledBefore => panic!("{request} was cancelled before"),
        }
    }

    fn begin_as(name: &str, table: &McpSessionTable, at_ms: u64) -> Option<Arc<McpSession>> {
        let (principal, version) = (Principal::parse(name).unwrap(), super::super::versions::SESSION_VERSIONS[0]);
        let new = NewSession { principal, version, lifetime: SessionLifetime::Independent, now: at(at_ms) };
        table.begin(new, &|run| run.as_str() == "active")
    }

    fn begin(table: &McpSessionTable, at_ms: u64) -> Arc<McpSession> {
        begin_as("ann", table, at_ms).unwrap()
    }

    fn is_kept(table: &McpSessionTable, session: &McpSession) -> bool {
        table.find(session.id(), &session.principal, at(9999)).is_some()
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
        let first = add(&session, 1).unwrap();
        assert_eq!(add(&session, 1).unwrap_err().code, INVALID_REQUEST);
        first.set_answered();
        let second = add(&session, 1).unwrap();
        assert_ne!(first.event_id(3), second.event_id(3));
    }

    #[test]
    fn a_cancel_that_overtakes_its_call_is_kept_for_it() {
        let session = begin(&McpSessionTable::default(), 0);
        let cancelled_at = |id, ms| assert!(session.find_cancelled(&JsonRpcId::Number(id), at(ms)).is_none());
        let is_cancelled = |id, ms| match session.add_call(followed(id), at(ms), &|_| false).unwrap() {
            AddedCall::CancelledBefore => true,
            AddedCall::New(call) => {
                call.set_answered();
                false
            }
        };
        cancelled_at(1, 0);
        assert!(is_cancelled(1, 60_000), "for a minute");
        assert!(!is_cancelled(1, 60_000), "once");
        cancelled_at(2, 0);
        assert!(!is_cancelled(2, 60_001));
        // A late cancel is not kept for the next call with that id.
        cancelled_at(2, 60_002);
        assert!(!is_cancelled(2, 60_003));
        // Those that nobody asks for are bounded.
        (10..267).for_each(|id| cancelled_at(id, 60_004));
        assert!(!is_cancelled(10, 60_005) && is_cancelled(11, 60_005));
    }

    #[test]
    fn an_event_leads_to_its_call_until_the_call_is_cancelled() {
        let session = begin(&McpSessionTable::default(), 0);
        let call = add(&session, 1).unwrap();
        let (found, seq) = session.find_stream(&call.event_id(12)).unwrap();
        assert_eq!((found.followed.request.clone(), seq), (JsonRpcId::Number(1), 12));
        assert!(session.find_stream("other-12").is_none() && session.find_stream("nonsense").is_none());
        call.cancelled.cancel();
        assert!(session.find_stream(&call.event_id(12)).is_none());
    }

    #[test]
    fn open_calls_are_bounded_and_answered_ones_make_room() {
        let session = begin(&McpSessionTable::default(), 0);
        let calls: Vec<_> = (0..256).map(|id| add(&session, id).unwrap()).collect();
        assert_eq!(add(&session, 256).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        calls[7].set_answered();
        add(&session, 256).unwrap();
        assert!(session.find_stream(&calls[7].event_id(0)).is_none());
    }

    #[test]
    fn an_answer_that_nobody_waits_for_gives_way_after_its_run() {
        let session = begin(&McpSessionTable::default(), 0);
        let add_with = |request: i64, run: &str, purpose, is_active: bool| {
            let followed = FollowedCall { run: RunId::parse(run).unwrap(), purpose, ..followed(request) };
            session.add_call(followed, at(0), &|run| is_active && run.as_str() == "active")
        };
        let lost = add_with(0, "active", CallPurpose::RunAgent, true).unwrap();
        let watch = add_with(1, "active", CallPurpose::TaskResult, true).unwrap();
        let others: Vec<_> = (2..256).map(|id| add(&session, id).unwrap()).collect();
        let is_full = |is_active| add_with(256, "r", CallPurpose::RunAgent, is_active).is_err();
        assert!(is_full(true));
        drop((lost, watch));
        // The one that only looked on; the other has a run to stop.
        let added = add_with(256, "r", CallPurpose::RunAgent, true).unwrap();
        assert!(is_full(true));
        assert!(session.find_cancelled(&JsonRpcId::Number(0), at(0)).is_some());
        assert!(add_with(257, "r", CallPurpose::RunAgent, false).is_ok(), "its run has ended");
        drop((added, others));
    }

    #[test]
    fn a_call_of_a_program_that_has_ended_is_over() {
        let new = NewSession {
            principal: Principal::parse("ann").unwrap(),
            version: super::super::versions::SESSION_VERSIONS[0],
            lifetime: SessionLifetime::Connection,
            now: at(0),
        };
        let session = McpSessionTable::default().begin(new, &|_| true).unwrap();
        let call = add(&session, 1).unwrap();
        let shared = Arc::clone(&call.0);
        drop(call);
        assert!(!shared.is_unanswered() && session.find_cancelled(&JsonRpcId::Number(1), at(0)).is_none());
    }

    #[test]
    fn the_session_that_was_used_last_is_kept() {
        let table = McpSessionTable::default();
        let sessions: Vec<_> = (0..256).map(|at| begin(&table, at)).collect();
        assert!(is_kept(&table, &sessions[0]));
        begin(&table, 5000);
        assert!(is_kept(&table, &sessions[0]) && !is_kept(&table, &sessions[1]));
    }

    #[test]
    fn one_principal_locks_nobody_out() {
        let table = McpSessionTable::default();
        let other = begin_as("bob", &table, 0).unwrap();
        let busy: Vec<_> = (0..256).map(|at| begin(&table, at)).collect();
        let calls: Vec<_> = busy.iter().map(|session| add(session, 1).unwrap()).collect();
        assert!(begin_as("ann", &table, 1000).is_none(), "all have open calls");
        assert!(begin_as("bob", &table, 1000).is_some() && is_kept(&table, &other));
        drop(calls);
        assert!(begin_as("ann", &table, 1001).is_some());
    }

    #[test]
    fn the_own_session_gives_way_before_one_of_others() {
        let table = McpSessionTable::default();
        let old = begin_as("bob", &table, 0).unwrap();
        let own = begin_as("cy", &table, 10).unwrap();
        let names: Vec<String> = (0..16).map(|number| format!("p{number}")).collect();
        (0..4094).for_each(|number| drop(begin_as(&names[number / 256], &table, 100).unwrap()));
        begin_as("cy", &table, 200).unwrap();
        assert!(!is_kept(&table, &own) && is_kept(&table, &old));
    }
}
