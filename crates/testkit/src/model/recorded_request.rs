//! Requests as the server received them, and conditions on them that a test can await.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::shared_state::ModelServerState;
use crate::history_check::HistoryViolation;
use crate::history_check::corpus::ModelDialect;

/// Longest wait for a condition. It decides only how late a failing test fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How the response to a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// The whole response was sent.
    Complete,
    /// The server broke off, as scripted.
    Cut,
    /// A plain status was sent.
    Status(u16),
    /// The history was invalid: 400.
    Refused,
    /// The client closed its connection first.
    ClientLeft,
}

#[derive(Debug, Clone, Default)]
pub struct ResponseProgress {
    /// When the status line and headers were sent.
    pub headers_sent: Option<Instant>,
    /// When the first byte of the body was sent.
    pub first_byte: Option<Instant>,
    /// Bytes of the body written so far, without the framing of HTTP chunks.
    pub bytes_sent: u64,
    /// True while the response waits at a gate or is silent; everything before that is sent.
    pub paused: bool,
    /// When the server noticed that the client had disconnected before the end of the response.
    pub client_left: Option<Instant>,
    /// None while it has not ended.
    pub outcome: Option<ResponseOutcome>,
}

#[derive(Debug)]
pub struct RecordedRequest {
    /// Index in the order of arrival, from 0.
    pub index: usize,
    /// When its last byte was read.
    pub arrived: Instant,
    /// Decided by its path.
    pub dialect: ModelDialect,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// Text of the last user message.
    pub last_user_text: String,
    /// Every word `marker:NAME` in user messages, as NAME, in order. A marker names the run of a request.
    pub markers: Vec<String>,
    /// Violations in its history.
    pub violations: Vec<HistoryViolation>,
    pub(super) progress: watch::Sender<ResponseProgress>,
}

impl RecordedRequest {
    /// The header of this lower-case name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body.get("messages").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    #[must_use]
    pub fn progress(&self) -> ResponseProgress {
        self.progress.borrow().clone()
    }

    pub(super) fn update_progress(&self, change: impl FnOnce(&mut ResponseProgress)) {
        self.progress.send_modify(change);
    }
}

/// A request that has arrived. A condition that came true before the call returns at once.
#[derive(Debug, Clone)]
pub struct ModelRequestHandle {
    pub(super) recorded: Arc<RecordedRequest>,
    pub(super) waiter: ConditionWaiter,
}

impl std::ops::Deref for ModelRequestHandle {
    type Target = RecordedRequest;

    fn deref(&self) -> &RecordedRequest {
        &self.recorded
    }
}

impl ModelRequestHandle {
    /// Waits until the status line and headers are sent.
    pub async fn wait_headers_sent(&self) -> Instant {
        self.wait_progress("headers sent", |p| p.headers_sent).await
    }

    /// Waits until the first byte of the body is sent.
    pub async fn wait_streaming(&self) -> Instant {
        self.wait_progress("streaming", |p| p.first_byte).await
    }

    /// Waits until the response waits at a gate or is silent.
    pub async fn wait_paused(&self) {
        self.wait_progress("resting", |p| p.paused.then_some(())).await;
    }

    /// Waits until this many bytes of the body are sent.
    pub async fn wait_bytes_sent(&self, at_least: u64) {
        self.wait_progress("that many bytes sent", |p| (p.bytes_sent >= at_least).then_some(())).await;
    }

    /// Waits until the client has disconnected; returns when the server noticed.
    pub async fn wait_client_left(&self) -> Instant {
        let left = |p: &ResponseProgress| match (&p.client_left, &p.outcome) {
            (Some(at), _) => Some(Ok(*at)),
            (None, Some(finish)) => Some(Err(finish.clone())),
            (None, None) => None,
        };
        match self.wait_progress("left by its client", left).await {
            Ok(at) => at,
            Err(finish) => panic!("the client did not leave request {}: it ended as {finish:?}", self.index),
        }
    }

    /// Waits until the response has ended; returns how.
    pub async fn wait_finished(&self) -> ResponseOutcome {
        self.wait_progress("finished", |p| p.outcome.clone()).await
    }

    async fn wait_progress<T>(&self, what: &str, condition: impl Fn(&ResponseProgress) -> Option<T>) -> T {
        let what = format!("request {} to be {what}", self.index);
        self.waiter.wait_for(self.recorded.progress.subscribe(), &what, condition).await
    }
}

/// A request by its index, whether or not it has arrived.
#[derive(Debug, Clone)]
pub struct ExpectedRequest {
    pub(super) index: usize,
    pub(super) waiter: ConditionWaiter,
}

impl ExpectedRequest {
    /// Waits until it has arrived.
    pub async fn wait_arrived(self) -> ModelRequestHandle {
        let what = format!("request {} to arrive", self.index);
        let stage = &self.waiter.shared;
        self.waiter
            .wait_for(stage.watch_arrivals(), &what, |_| stage.record(self.index))
            .await
            .into_handle(&self.waiter)
    }

    /// [`ModelRequestHandle::wait_streaming`] after its arrival.
    pub async fn wait_streaming(self) -> Instant {
        self.wait_arrived().await.wait_streaming().await
    }

    /// [`ModelRequestHandle::wait_paused`] after its arrival.
    pub async fn wait_paused(self) {
        self.wait_arrived().await.wait_paused().await;
    }

    /// [`ModelRequestHandle::wait_client_left`] after its arrival.
    pub async fn wait_client_left(self) -> Instant {
        self.wait_arrived().await.wait_client_left().await
    }

    /// [`ModelRequestHandle::wait_finished`] after its arrival.
    pub async fn wait_finished(self) -> ResponseOutcome {
        self.wait_arrived().await.wait_finished().await
    }
}

pub(super) trait IntoRequestHandle {
    fn into_handle(self, waiting: &ConditionWaiter) -> ModelRequestHandle;
}

impl IntoRequestHandle for Arc<RecordedRequest> {
    fn into_handle(self, waiting: &ConditionWaiter) -> ModelRequestHandle {
        ModelRequestHandle { recorded: self, waiter: waiting.clone() }
    }
}

/// Waits for conditions, with a limit on the server's clock: a test with a paused clock waits in real time too.
#[derive(Debug, Clone)]
pub(super) struct ConditionWaiter {
    pub(super) shared: Arc<ModelServerState>,
    pub(super) server_runtime: Handle,
}

impl ConditionWaiter {
    pub(super) async fn wait_for<S, T>(
        &self,
        mut facts: watch::Receiver<S>,
        what: &str,
        condition: impl Fn(&S) -> Option<T>,
    ) -> T {
        let limit = {
            let _entered = self.server_runtime.enter();
            tokio::time::sleep(WAIT_TIMEOUT)
        };
        let reached = async {
            loop {
                if let Some(value) = condition(&facts.borrow_and_update()) {
                    return Some(value);
                }
                facts.changed().await.ok()?;
            }
        };
        // Cancel safe: both sides only read.
        let value = tokio::select! {
            biased;
            value = reached => value,
            () = limit => None,
        };
        match value {
            Some(value) => value,
            None => panic!("waited {WAIT_TIMEOUT:?} for {what}\n{}", self.shared.describe()),
        }
    }
}
