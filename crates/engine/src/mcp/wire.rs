//! What goes over a connection, seen in its order: which calls were answered, which still report progress.
//!
//! The library forgets a call at the moment of its cancel, and hands notifications to tasks of their own. Here both are
//! still known, and a flood of notifications starts no task.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, GetMeta, JsonRpcMessage, ProgressNotificationParam, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerNotification, ServerResult,
};
use rmcp::service::TxJsonRpcMessage;
use rmcp::transport::Transport;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Progress that waits to be shown; more is dropped.
const SHOWN: usize = 64;
/// Cancelled calls that are remembered in case that the server still works on them.
const ABANDONED: usize = 64;

/// What was heard on one connection.
#[derive(Debug, Default)]
pub(super) struct Wire {
    lines: Mutex<HashMap<RequestId, Arc<Line>>>,
    /// The list of tools is not what it was.
    pub(super) tools_changed: Notify,
    /// A call that was cancelled and given up is still worked on.
    pub(super) haunted: watch::Sender<bool>,
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
    abandoned: bool,
}

/// How a call was answered after its cancel, which the library drops.
#[derive(Debug)]
pub(super) enum Answered {
    Result(Box<ServerResult>),
    Error,
}

impl Wire {
    /// The line of a call; made by whoever comes first.
    pub(super) fn line(&self, id: &RequestId) -> Arc<Line> {
        Arc::clone(self.lines().entry(id.clone()).or_default())
    }

    /// A call is over.
    pub(super) fn forget(&self, id: &RequestId) {
        self.lines().remove(id);
    }

    /// A cancelled call was given up without an answer. Further progress of it says that the server does not obey.
    pub(super) fn abandon(&self, id: &RequestId) {
        let mut lines = self.lines();
        if lines.values().filter(|line| line.facts().abandoned).count() >= ABANDONED {
            lines.retain(|_, line| !line.facts().abandoned);
        }
        if let Some(line) = lines.get(id) {
            line.facts().abandoned = true;
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
        let found = self.lines().get(id).cloned();
        let Some(line) = found else { return };
        let mut facts = line.facts();
        if facts.abandoned {
            drop(facts);
            return self.forget(id);
        }
        if facts.cancelled {
            facts.answered = Some(how());
            drop(facts);
            line.heard.send_modify(|count| *count += 1);
        }
    }

    fn progress(&self, progress: &ProgressNotificationParam) {
        let of_token = |line: &&Arc<Line>| line.facts().token.as_ref() == Some(&progress.progress_token);
        let Some(line) = self.lines().values().find(of_token).cloned() else { return };
        let mut facts = line.facts();
        facts.progressed = Some(Instant::now());
        if facts.abandoned {
            drop(facts);
            self.haunted.send_replace(true);
            return;
        }
        if facts.shown.len() < SHOWN {
            facts.shown.push_back(words(progress));
        }
        drop(facts);
        line.heard.send_modify(|count| *count += 1);
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Line>>> {
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
