//! What the server saw of each request, and conditions on it that a test can await.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::stage::Stage;
use crate::history::Violation;
use crate::history::corpus::Dialect;

/// Longest wait for any condition. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the server's part in a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// Everything of the behaviour was sent.
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

/// How far the answer to a request has come.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// When the status line and headers were out.
    pub headers_sent: Option<Instant>,
    /// When the first byte of the body was out.
    pub first_byte: Option<Instant>,
    /// Bytes of the body written so far, without the framing of HTTP chunks.
    pub bytes_sent: u64,
    /// True while the behaviour waits at a gate or is silent: all it had to send before is out.
    pub resting: bool,
    /// When the server noticed that the client had closed its side while an answer was owed.
    pub client_left: Option<Instant>,
    /// How it ended, once it has.
    pub finish: Option<Finish>,
}

/// A request as it arrived.
#[derive(Debug)]
pub struct Recorded {
    /// Its place in the order of arrival, from 0.
    pub index: usize,
    /// When its last byte had been read.
    pub arrived: Instant,
    /// The dialect, which its path told.
    pub dialect: Dialect,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Value,
    /// Text of the last user message.
    pub last_user_text: String,
    /// Every word `marker:NAME` in user messages, as NAME, in order: names the run that a request belongs to.
    pub markers: Vec<String>,
    /// What is wrong with its history.
    pub violations: Vec<Violation>,
    pub(super) progress: watch::Sender<Progress>,
}

impl Recorded {
    /// The header of this lower-case name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The messages of the request.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body.get("messages").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// How far the answer has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_modify(change);
    }
}

/// A request that has arrived. Conditions are levels: one that came true before the call returns at once.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    pub(super) recorded: Arc<Recorded>,
    pub(super) waiting: Waiting,
}

impl std::ops::Deref for ModelRequest {
    type Target = Recorded;

    fn deref(&self) -> &Recorded {
        &self.recorded
    }
}

impl ModelRequest {
    /// Waits until the status line and headers are out.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn headers_sent(&self) -> Instant {
        self.reach("headers sent", |p| p.headers_sent).await
    }

    /// Waits until the first byte of the body is out.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn streaming(&self) -> Instant {
        self.reach("streaming", |p| p.first_byte).await
    }

    /// Waits until the behaviour waits at a gate or is silent.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn resting(&self) {
        self.reach("resting", |p| p.resting.then_some(())).await;
    }

    /// Waits until this many bytes of the body are out.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn bytes_sent(&self, at_least: u64) {
        self.reach("that many bytes sent", |p| (p.bytes_sent >= at_least).then_some(())).await;
    }

    /// Waits until the client has left, and says when the server noticed.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time, or the answer ended some other way.
    pub async fn client_left(&self) -> Instant {
        let left = |p: &Progress| match (&p.client_left, &p.finish) {
            (Some(at), _) => Some(Ok(*at)),
            (None, Some(finish)) => Some(Err(finish.clone())),
            (None, None) => None,
        };
        match self.reach("left by its client", left).await {
            Ok(at) => at,
            Err(finish) => panic!("the client did not leave request {}: it ended as {finish:?}", self.index),
        }
    }

    /// Waits until the server's part is over, and says how it ended.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn finished(&self) -> Finish {
        self.reach("finished", |p| p.finish.clone()).await
    }

    async fn reach<T>(&self, what: &str, condition: impl Fn(&Progress) -> Option<T>) -> T {
        let what = format!("request {} to be {what}", self.index);
        self.waiting.until(self.recorded.progress.subscribe(), &what, condition).await
    }
}

/// A request by its place, whether or not it has arrived yet.
#[derive(Debug, Clone)]
pub struct RequestAt {
    pub(super) index: usize,
    pub(super) waiting: Waiting,
}

impl RequestAt {
    /// Waits until it has arrived.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn arrived(self) -> ModelRequest {
        let what = format!("request {} to arrive", self.index);
        let stage = &self.waiting.stage;
        self.waiting.until(stage.arrived(), &what, |_| stage.record(self.index)).await.with(&self.waiting)
    }

    /// [`ModelRequest::streaming`], once it has arrived.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub async fn streaming(self) -> Instant {
        self.arrived().await.streaming().await
    }

    /// [`ModelRequest::resting`], once it has arrived.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub async fn resting(self) {
        self.arrived().await.resting().await;
    }

    /// [`ModelRequest::client_left`], once it has arrived.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub async fn client_left(self) -> Instant {
        self.arrived().await.client_left().await
    }

    /// [`ModelRequest::finished`], once it has arrived.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub async fn finished(self) -> Finish {
        self.arrived().await.finished().await
    }
}

pub(super) trait Handed {
    fn with(self, waiting: &Waiting) -> ModelRequest;
}

impl Handed for Arc<Recorded> {
    fn with(self, waiting: &Waiting) -> ModelRequest {
        ModelRequest { recorded: self, waiting: waiting.clone() }
    }
}

/// Waits for conditions, with a limit that runs on the server's clock: a test that holds its own runtime's clock still, or
/// whose idle runtime would skip ahead, waits in real time all the same.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) stage: Arc<Stage>,
    pub(super) server: Handle,
}

impl Waiting {
    pub(super) async fn until<S, T>(
        &self,
        mut facts: watch::Receiver<S>,
        what: &str,
        condition: impl Fn(&S) -> Option<T>,
    ) -> T {
        let limit = {
            let _entered = self.server.enter();
            tokio::time::sleep(PATIENCE)
        };
        let reached = async {
            loop {
                if let Some(value) = condition(&facts.borrow_and_update()) {
                    return Some(value);
                }
                facts.changed().await.ok()?;
            }
        };
        // Both sides only look, so either may be dropped.
        let value = tokio::select! {
            biased;
            value = reached => value,
            () = limit => None,
        };
        match value {
            Some(value) => value,
            None => panic!("waited {PATIENCE:?} for {what}\n{}", self.stage.describe()),
        }
    }
}
