//! What goes over a connection, seen in its order: which calls were answered, which still report progress, and what is heard
//! of a cancelled call for which nobody waits any more.
//!
//! The library forgets a call at the moment of its cancel, and hands notifications to tasks of their own. Here both are
//! still known, and a flood of notifications starts no task.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{Leftover, ResourceKind};
use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, GetMeta, JsonRpcMessage, ProgressNotificationParam, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerNotification, ServerResult,
};
use rmcp::service::TxJsonRpcMessage;
use rmcp::transport::Transport;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::late_calls::{LateListener, UnconfirmedCall};

/// Progress that waits to be shown; more is dropped.
const SHOWN: usize = 64;
/// Unconfirmed calls that are watched; beyond them the oldest is forgotten.
const WATCHED: usize = 64;

/// What was heard on one connection.
#[derive(Debug)]
pub(super) struct Wire {
    lines: Mutex<Lines>,
    listener: Arc<LateListener>,
    /// The list of tools is not what it was.
    pub(super) tools_changed: Notify,
    /// The server did not obey a cancel, which became known late.
    pub(super) disobeyed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Lines {
    of: HashMap<RequestId, Arc<Line>>,
    /// Calls that are unconfirmed, oldest first; some of them have been answered since.
    unconfirmed: VecDeque<RequestId>,
    /// Those of them with which the server went on.
    went_on: Vec<UnconfirmedCall>,
}

/// What was heard of one call.
#[derive(Debug, Default)]
pub(super) struct Line {
    facts: Mutex<Facts>,
    heard: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Facts {
    token: Option<ProgressToken>,
    answered: Option<Answered>,
    progressed: Option<Instant>,
    shown: VecDeque<String>,
    cancelled: bool,
    unconfirmed: Option<UnconfirmedCall>,
    /// It was told that the server goes on with it.
    went_on: bool,
}

/// How a call was answered after its cancel, which the library drops.
#[derive(Debug)]
pub(super) enum Answered {
    Result(Box<ServerResult>),
    Error,
}

impl Wire {
    /// Nothing was heard. What becomes known late goes to the listener.
    pub(super) fn new(listener: Arc<LateListener>) -> Self {
        let (tools_changed, disobeyed) = (Notify::new(), watch::Sender::new(false));
        Self { lines: Mutex::default(), listener, tools_changed, disobeyed }
    }

    /// The line of a call; made by whoever comes first.
    pub(super) fn line(&self, id: &RequestId) -> Arc<Line> {
        Arc::clone(self.lines().of.entry(id.clone()).or_default())
    }

    /// A call is over.
    pub(super) fn forget(&self, id: &RequestId) {
        self.lines().of.remove(id);
    }

    /// Nobody waits for the answer of a cancelled call any more: what is heard of it from now on goes to the listener.
    ///
    /// # Errors
    /// The answer that came before.
    pub(super) fn watch_late(&self, id: &RequestId, call: UnconfirmedCall) -> Result<(), Answered> {
        let mut lines = self.lines();
        let Some(line) = lines.of.get(id).cloned() else { return Ok(()) };
        let mut facts = line.facts();
        if let Some(answer) = facts.answered.take() {
            drop(facts);
            lines.of.remove(id);
            return Err(answer);
        }
        facts.unconfirmed = Some(call);
        drop(facts);
        lines.unconfirmed.push_back(id.clone());
        if lines.unconfirmed.len() > WATCHED
            && let Some(oldest) = lines.unconfirmed.pop_front()
        {
            lines.of.remove(&oldest);
        }
        Ok(())
    }

    /// The server is over: tells so of the calls with which it went on.
    pub(super) fn over(&self, how: &str, leftovers: &[String]) {
        let went_on = std::mem::take(&mut self.lines().went_on);
        for call in went_on {
            let leftover = |name: &String| Leftover { kind: ResourceKind::Process, name: name.clone() };
            self.listener.tell(call.ended(how, leftovers.iter().map(leftover).collect()));
        }
    }

    fn sending(&self, message: &ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(request) = message else { return };
        if matches!(request.request, ClientRequest::CallToolRequest(_)) {
            self.line(&request.id).facts().token = request.request.get_meta().get_progress_token();
        }
    }

    /// True for what the library need not see.
    fn takes(&self, message: &ServerJsonRpcMessage) -> bool {
        match message {
            JsonRpcMessage::Response(response) => {
                self.answered(&response.id, || Answered::Result(Box::new(response.result.clone())));
            }
            JsonRpcMessage::Error(error) => {
                if let Some(id) = &error.id {
                    self.answered(id, || Answered::Error);
                }
            }
            JsonRpcMessage::Notification(notification) => {
                match &notification.notification {
                    ServerNotification::ProgressNotification(progress) => self.progress(&progress.params),
                    ServerNotification::ToolListChangedNotification(_) => {
                        self.tools_changed.notify_one();
                        // The library forgets its own copy of the list.
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

    /// Notes the answer of a cancelled call; any other reaches its caller by itself.
    fn answered(&self, id: &RequestId, how: impl FnOnce() -> Answered) {
        let found = self.lines().of.get(id).cloned();
        let Some(line) = found else { return };
        let mut facts = line.facts();
        if let Some(call) = facts.unconfirmed.take() {
            drop(facts);
            self.forget(id);
            return self.answered_late(&call, &how());
        }
        if facts.cancelled {
            facts.answered = Some(how());
            drop(facts);
            line.heard.send_modify(|count| *count += 1);
        }
    }

    fn answered_late(&self, call: &UnconfirmedCall, answer: &Answered) {
        match answer {
            Answered::Error => self.listener.tell(call.confirmed()),
            Answered::Result(_) => {
                self.listener.tell(call.finished());
                self.disobeyed.send_replace(true);
            }
        }
    }

    fn progress(&self, progress: &ProgressNotificationParam) {
        let of_token = |line: &&Arc<Line>| line.facts().token.as_ref() == Some(&progress.progress_token);
        let Some(line) = self.lines().of.values().find(of_token).cloned() else { return };
        let mut facts = line.facts();
        let now = Instant::now();
        facts.progressed = Some(now);
        if let Some(call) = facts.unconfirmed.clone() {
            let is_news = now >= call.late_from && !facts.went_on;
            facts.went_on |= is_news;
            drop(facts);
            if is_news {
                self.lines().went_on.push(call.clone());
                self.listener.tell(call.went_on());
                self.disobeyed.send_replace(true);
            }
            return;
        }
        if facts.shown.len() < SHOWN {
            facts.shown.push_back(words(progress));
        }
        drop(facts);
        line.heard.send_modify(|count| *count += 1);
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Wakes at everything that is heard.
    pub(super) fn listen(&self) -> watch::Receiver<u64> {
        self.heard.subscribe()
    }

    /// The call is being cancelled: from now on its answer is noted here.
    pub(super) fn cancelled(&self) {
        self.facts().cancelled = true;
    }

    /// The answer of the cancelled call, if one came.
    pub(super) fn take_answer(&self) -> Option<Answered> {
        self.facts().answered.take()
    }

    /// When the call reported progress last.
    pub(super) fn progressed(&self) -> Option<Instant> {
        self.facts().progressed
    }

    /// Progress that was not shown yet.
    pub(super) fn take_shown(&self) -> Vec<String> {
        self.facts().shown.drain(..).collect()
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn words(progress: &ProgressNotificationParam) -> String {
    let done = match progress.total {
        Some(total) => format!("{} of {total}", progress.progress),
        None => progress.progress.to_string(),
    };
    match &progress.message {
        Some(message) => format!("{message} ({done})\n"),
        None => format!("progress: {done}\n"),
    }
}

/// A transport whose messages are seen by a [`Wire`].
pub(super) struct Tapped<T> {
    pub(super) inner: T,
    pub(super) wire: Arc<Wire>,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Tapped<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.wire.sending(&item);
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            // waits: in the task of the connection; no run waits here.
            let message = self.inner.receive().await?;
            if !self.wire.takes(&message) {
                return Some(message);
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_protocol::{AmendmentKind, RunId};
    use serde_json::{Value, json};

    use super::*;
    use crate::mcp::LateFact;

    /// A wire, and what its listener was told.
    fn wire() -> (Wire, Arc<Mutex<Vec<LateFact>>>) {
        let (listener, told) = (LateListener::default(), Arc::<Mutex<Vec<LateFact>>>::default());
        let facts = Arc::clone(&told);
        listener.set(move |fact| facts.lock().unwrap().push(fact));
        (Wire::new(Arc::new(listener)), told)
    }

    fn hear(wire: &Wire, message: Value) {
        wire.takes(&serde_json::from_value(message).unwrap());
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

    fn cancelled(wire: &Wire, id: i64) {
        wire.line(&RequestId::Number(id)).cancelled();
    }

    #[test]
    fn an_answer_that_crosses_the_end_of_the_wait_is_no_late_one() {
        let (wire, told) = wire();
        cancelled(&wire, 1);
        hear(&wire, result(1));
        assert!(matches!(wire.watch_late(&RequestId::Number(1), call(1)), Err(Answered::Result(_))));
        hear(&wire, result(1));
        assert!(told.lock().unwrap().is_empty() && !*wire.disobeyed.borrow());
    }

    #[test]
    fn each_late_answer_is_told_once_and_only_a_result_is_disobedience() {
        let (wire, told) = wire();
        for id in [1, 2] {
            cancelled(&wire, id);
            assert!(wire.watch_late(&RequestId::Number(id), call(id.unsigned_abs())).is_ok());
        }
        hear(&wire, refusal(1));
        assert!(!*wire.disobeyed.borrow());
        hear(&wire, result(2));
        hear(&wire, result(2));
        hear(&wire, refusal(1));
        let told: Vec<_> = told.lock().unwrap().iter().map(|fact| (fact.resource, fact.kind)).collect();
        assert_eq!(told, [(1, AmendmentKind::Confirmed), (2, AmendmentKind::LateResult)]);
        assert!(*wire.disobeyed.borrow());
    }

    #[test]
    fn progress_that_may_have_crossed_the_cancel_says_nothing() {
        let (wire, told) = wire();
        let progress = || {
            let token = ProgressToken(rmcp::model::NumberOrString::Number(7));
            wire.progress(&ProgressNotificationParam::new(token, 1.0));
        };
        let line = wire.line(&RequestId::Number(1));
        line.facts().token = Some(ProgressToken(rmcp::model::NumberOrString::Number(7)));
        line.cancelled();
        let late_from = Instant::now() + Duration::from_secs(60);
        assert!(wire.watch_late(&RequestId::Number(1), UnconfirmedCall { late_from, ..call(1) }).is_ok());
        progress();
        assert!(told.lock().unwrap().is_empty());
        line.facts().unconfirmed = Some(call(1));
        progress();
        progress();
        wire.over("term", &["pid 42".to_owned()]);
        let told = told.lock().unwrap();
        let kinds: Vec<_> = told.iter().map(|fact| fact.kind).collect();
        assert_eq!(kinds, [AmendmentKind::LateProgress, AmendmentKind::ServerEnded]);
        assert_eq!(told[1].leftovers[0].name, "pid 42");
    }

    #[test]
    fn calls_of_which_nothing_is_heard_are_not_watched_without_end() {
        let (wire, told) = wire();
        for id in 1..=100 {
            cancelled(&wire, id);
            assert!(wire.watch_late(&RequestId::Number(id), call(id.unsigned_abs())).is_ok());
        }
        assert_eq!(wire.lines().of.len(), WATCHED);
        hear(&wire, result(1));
        hear(&wire, result(100));
        assert_eq!(told.lock().unwrap().iter().map(|fact| fact.resource).collect::<Vec<_>>(), [100]);
    }
}
