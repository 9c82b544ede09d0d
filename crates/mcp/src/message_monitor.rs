//! Observe the messages of a connection: progress, answers of cancelled calls, changed tool lists.
//!
//! The library forgets a call when it is cancelled, and starts a task for each notification. The monitor still knows
//! both: it records answers of cancelled calls, and a flood of notifications starts no tasks. Messages are seen in
//! their order on the wire.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{Leftover, ResourceKind};
use quell_scope::Release;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, GetMeta, JsonRpcMessage, ProgressNotificationParam, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerNotification, ServerResult,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::late_calls::{LateCallListener, UnconfirmedCall};
use super::questions::AskableCalls;

/// Progress reports that are queued per call; more are dropped.
const MAX_QUEUED_PROGRESS: usize = 64;
/// Unconfirmed calls that are watched; beyond this the oldest is forgotten.
const MAX_WATCHED_CALLS: usize = 64;

/// The state of all calls of one connection.
#[derive(Debug)]
pub(super) struct MessageMonitor {
    calls: Mutex<MonitoredCalls>,
    listener: Arc<LateCallListener>,
    /// How often the server said that its list of tools has changed.
    pub(super) tool_list_changes: watch::Sender<u64>,
    /// The calls for which the server may ask the user something.
    pub(super) askable_calls: AskableCalls,
    /// True when it became known late that the server ignored a cancel.
    pub(super) ignored_cancel: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct MonitoredCalls {
    by_id: HashMap<RequestId, Arc<CallMonitor>>,
    /// Unconfirmed calls, oldest first; some of them have been answered since.
    unconfirmed: VecDeque<RequestId>,
    /// The unconfirmed calls that the server went on with.
    continued: Vec<UnconfirmedCall>,
}

/// The state of one call.
#[derive(Debug, Default)]
pub(super) struct CallMonitor {
    state: Mutex<CallMonitorState>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct CallMonitorState {
    token: Option<ProgressToken>,
    late_answer: Option<CancelledCallAnswer>,
    last_progress: Option<Instant>,
    queued_progress: VecDeque<String>,
    cancelled: bool,
    unconfirmed: Option<UnconfirmedCall>,
    /// It was reported that the server goes on with the call.
    reported_as_continued: bool,
}

/// The answer of a cancelled call. The library drops it.
#[derive(Debug)]
pub(super) enum CancelledCallAnswer {
    Result(Box<ServerResult>),
    Error,
}

impl MessageMonitor {
    /// Updates after the end of a run go to `listener`.
    pub(super) fn new(listener: Arc<LateCallListener>) -> Self {
        let (tool_list_changes, ignored_cancel) = (watch::Sender::new(0), watch::Sender::new(false));
        let askable_calls = AskableCalls::default();
        Self { calls: Mutex::default(), listener, tool_list_changes, askable_calls, ignored_cancel }
    }

    /// The monitor of a call; created at the first use.
    pub(super) fn call_monitor(&self, id: &RequestId) -> Arc<CallMonitor> {
        Arc::clone(self.lock_calls().by_id.entry(id.clone()).or_default())
    }

    /// True while the server may still be at work for a call that was cancelled.
    pub(super) fn has_cancelled_call(&self) -> bool {
        let calls = self.lock_calls();
        calls.by_id.values().any(|monitor| {
            let state = monitor.lock_state();
            state.cancelled && state.late_answer.is_none()
        })
    }

    /// Forgets a call that is over.
    pub(super) fn forget_call(&self, id: &RequestId) {
        self.lock_calls().by_id.remove(id);
    }

    /// Watches for the answer of a cancelled call after its run has ended; it then goes to the listener.
    ///
    /// # Errors
    /// The answer, if it has come already.
    pub(super) fn watch_for_late_answer(
        &self,
        id: &RequestId,
        call: UnconfirmedCall,
    ) -> Result<(), CancelledCallAnswer> {
        let mut calls = self.lock_calls();
        let Some(monitor) = calls.by_id.get(id).cloned() else { return Ok(()) };
        let mut state = monitor.lock_state();
        if let Some(answer) = state.late_answer.take() {
            drop(state);
            calls.by_id.remove(id);
            return Err(answer);
        }
        state.unconfirmed = Some(call);
        drop(state);
        calls.unconfirmed.push_back(id.clone());
        if calls.unconfirmed.len() > MAX_WATCHED_CALLS
            && let Some(oldest) = calls.unconfirmed.pop_front()
        {
            calls.by_id.remove(&oldest);
        }
        Ok(())
    }

    /// Reports the end of the server for the calls that it went on with.
    pub(super) fn report_server_ended(&self, how: Release, leftovers: &[String]) {
        let continued = std::mem::take(&mut self.lock_calls().continued);
        for call in continued {
            let leftover = |name: &String| Leftover { kind: ResourceKind::Process, name: name.clone() };
            self.listener.report(call.server_ended(how, leftovers.iter().map(leftover).collect()));
        }
    }

    pub(super) fn note_outgoing(&self, message: &ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(request) = message else { return };
        if matches!(request.request, ClientRequest::CallToolRequest(_)) {
            self.call_monitor(&request.id).lock_state().token = request.request.get_meta().get_progress_token();
        }
    }

    /// Records an incoming message. Returns true if the library need not see it.
    pub(super) fn consume_incoming(&self, message: &ServerJsonRpcMessage) -> bool {
        match message {
            JsonRpcMessage::Response(response) => {
                self.note_answer(&response.id, || CancelledCallAnswer::Result(Box::new(response.result.clone())));
            }
            JsonRpcMessage::Error(error) => {
                if let Some(id) = &error.id {
                    self.note_answer(id, || CancelledCallAnswer::Error);
                }
            }
            JsonRpcMessage::Notification(notification) => {
                match &notification.notification {
                    ServerNotification::ProgressNotification(progress) => self.note_progress(&progress.params),
                    ServerNotification::ToolListChangedNotification(_) => {
                        self.tool_list_changes.send_modify(|count| *count += 1);
                        // The library updates its own copy of the list.
                        return false;
                    }
                    _ => {}
                }
                return true;
            }
            JsonRpcMessage::Request(_) => {}
        }
        false
    }

    /// Records the answer of a cancelled call; other answers reach their callers through the library.
    fn note_answer(&self, id: &RequestId, answer: impl FnOnce() -> CancelledCallAnswer) {
        let found = self.lock_calls().by_id.get(id).cloned();
        let Some(monitor) = found else { return };
        let mut state = monitor.lock_state();
        if let Some(call) = state.unconfirmed.take() {
            drop(state);
            self.forget_call(id);
            return self.note_late_answer(&call, &answer());
        }
        if state.cancelled {
            state.late_answer = Some(answer());
            drop(state);
            monitor.changes.send_modify(|count| *count += 1);
        }
    }

    fn note_late_answer(&self, call: &UnconfirmedCall, answer: &CancelledCallAnswer) {
        match answer {
            CancelledCallAnswer::Error => self.listener.report(call.cancel_confirmed()),
            CancelledCallAnswer::Result(_) => {
                self.listener.report(call.finished_anyway());
                self.ignored_cancel.send_replace(true);
            }
        }
    }

    fn note_progress(&self, progress: &ProgressNotificationParam) {
        let has_token = |line: &&Arc<CallMonitor>| line.lock_state().token.as_ref() == Some(&progress.progress_token);
        let Some(monitor) = self.lock_calls().by_id.values().find(has_token).cloned() else { return };
        let mut state = monitor.lock_state();
        let now = Instant::now();
        state.last_progress = Some(now);
        if let Some(call) = state.unconfirmed.clone() {
            let is_first_report = now >= call.late_from && !state.reported_as_continued;
            state.reported_as_continued |= is_first_report;
            drop(state);
            if is_first_report {
                self.lock_calls().continued.push(call.clone());
                self.listener.report(call.continued_after_cancel());
                self.ignored_cancel.send_replace(true);
            }
            return;
        }
        if state.queued_progress.len() < MAX_QUEUED_PROGRESS {
            state.queued_progress.push_back(progress_text(progress));
        }
        drop(state);
        monitor.changes.send_modify(|count| *count += 1);
    }

    fn lock_calls(&self) -> MutexGuard<'_, MonitoredCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallMonitor {
    /// Changes at every message about the call.
    pub(super) fn watch_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Marks the call as cancelled: from now on its answer is recorded here.
    pub(super) fn mark_cancelled(&self) {
        self.lock_state().cancelled = true;
    }

    /// The answer of the cancelled call, if it has come.
    pub(super) fn take_answer(&self) -> Option<CancelledCallAnswer> {
        self.lock_state().late_answer.take()
    }

    /// When the call last reported progress.
    pub(super) fn last_progress(&self) -> Option<Instant> {
        self.lock_state().last_progress
    }

    /// Progress reports that are not shown yet.
    pub(super) fn take_progress(&self) -> Vec<String> {
        self.lock_state().queued_progress.drain(..).collect()
    }

    fn lock_state(&self) -> MutexGuard<'_, CallMonitorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn progress_text(progress: &ProgressNotificationParam) -> String {
    let done = match progress.total {
        Some(total) => format!("{} of {total}", progress.progress),
        None => progress.progress.to_string(),
    };
    match &progress.message {
        Some(message) => format!("{message} ({done})\n"),
        None => format!("progress: {done}\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_protocol::{AmendmentKind, RunId};
    use serde_json::{Value, json};

    use super::*;
    use crate::LateCallUpdate;

    /// A monitor, and the updates that its listener received.
    fn monitor_and_updates() -> (MessageMonitor, Arc<Mutex<Vec<LateCallUpdate>>>) {
        let (listener, updates) = (LateCallListener::default(), Arc::<Mutex<Vec<LateCallUpdate>>>::default());
        let received = Arc::clone(&updates);
        listener.set_callback(move |fact| received.lock().unwrap().push(fact));
        (MessageMonitor::new(Arc::new(listener)), updates)
    }

    fn receive_message(monitor: &MessageMonitor, message: Value) {
        monitor.consume_incoming(&serde_json::from_value(message).unwrap());
    }

    fn result(id: i64) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "done"}]}})
    }

    fn refusal(id: i64) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": 0, "message": "cancelled"}})
    }

    fn call(resource: u64) -> UnconfirmedCall {
        let (run, server) = (RunId::parse("r1").unwrap(), "files".to_owned());
        UnconfirmedCall { run, resource, server, is_url: false, late_from: Instant::now() }
    }

    fn cancel(monitor: &MessageMonitor, id: i64) {
        monitor.call_monitor(&RequestId::Number(id)).mark_cancelled();
    }

    #[test]
    fn an_answer_that_crosses_the_end_of_the_wait_is_no_late_one() {
        let (monitor, updates) = monitor_and_updates();
        cancel(&monitor, 1);
        receive_message(&monitor, result(1));
        assert!(matches!(
            monitor.watch_for_late_answer(&RequestId::Number(1), call(1)),
            Err(CancelledCallAnswer::Result(_))
        ));
        receive_message(&monitor, result(1));
        assert!(updates.lock().unwrap().is_empty() && !*monitor.ignored_cancel.borrow());
    }

    #[test]
    fn each_late_answer_is_told_once_and_only_a_result_is_disobedience() {
        let (monitor, updates) = monitor_and_updates();
        for id in [1, 2] {
            cancel(&monitor, id);
            assert!(monitor.watch_for_late_answer(&RequestId::Number(id), call(id.unsigned_abs())).is_ok());
        }
        receive_message(&monitor, refusal(1));
        assert!(!*monitor.ignored_cancel.borrow());
        receive_message(&monitor, result(2));
        receive_message(&monitor, result(2));
        receive_message(&monitor, refusal(1));
        let updates: Vec<_> = updates.lock().unwrap().iter().map(|fact| (fact.resource, fact.kind)).collect();
        assert_eq!(updates, [(1, AmendmentKind::Confirmed), (2, AmendmentKind::LateResult)]);
        assert!(*monitor.ignored_cancel.borrow());
    }

    #[test]
    fn progress_that_may_have_crossed_the_cancel_says_nothing() {
        let (monitor, updates) = monitor_and_updates();
        let progress = || {
            let token = ProgressToken(rmcp::model::NumberOrString::Number(7));
            monitor.note_progress(&ProgressNotificationParam::new(token, 1.0));
        };
        let line = monitor.call_monitor(&RequestId::Number(1));
        line.lock_state().token = Some(ProgressToken(rmcp::model::NumberOrString::Number(7)));
        line.mark_cancelled();
        let late_from = Instant::now() + Duration::from_secs(60);
        assert!(monitor.watch_for_late_answer(&RequestId::Number(1), UnconfirmedCall { late_from, ..call(1) }).is_ok());
        progress();
        assert!(updates.lock().unwrap().is_empty());
        line.lock_state().unconfirmed = Some(call(1));
        progress();
        progress();
        monitor.report_server_ended(Release::Term, &["pid 42".to_owned()]);
        let updates = updates.lock().unwrap();
        let kinds: Vec<_> = updates.iter().map(|fact| fact.kind).collect();
        assert_eq!(kinds, [AmendmentKind::LateProgress, AmendmentKind::ServerEnded]);
        assert_eq!(updates[1].leftovers[0].name, "pid 42");
    }

    #[test]
    fn calls_of_which_nothing_is_heard_are_not_watched_without_end() {
        let (monitor, updates) = monitor_and_updates();
        for id in 1..=100 {
            cancel(&monitor, id);
            assert!(monitor.watch_for_late_answer(&RequestId::Number(id), call(id.unsigned_abs())).is_ok());
        }
        assert_eq!(monitor.lock_calls().by_id.len(), MAX_WATCHED_CALLS);
        receive_message(&monitor, result(1));
        receive_message(&monitor, result(100));
        assert_eq!(updates.lock().unwrap().iter().map(|fact| fact.resource).collect::<Vec<_>>(), [100]);
    }
}
