//! Conditions on requests that a test can await.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::recorded_request::{RecordedRequest, ResponseOutcome, ResponseProgress};
use super::shared_state::ModelServerState;
use crate::WAIT_TIMEOUT;

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
    /// Waits until the first byte of the body is sent.
    pub async fn wait_streaming(&self) -> Instant {
        self.wait_progress("streaming", |p| p.first_byte).await
    }

    /// Waits until the response waits at a gate or is silent.
    pub async fn wait_paused(&self) {
        self.wait_progress("resting", |p| p.paused.then_some(())).await;
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
    pub async fn wait_arrived(self) -> ModelRequestHandle {
        let what = format!("request {} to arrive", self.index);
        let stage = &self.waiter.shared;
        let record = self.waiter.wait_for(stage.watch_arrivals(), &what, |_| stage.record(self.index)).await;
        self.waiter.handle(record)
    }

    pub async fn wait_streaming(self) -> Instant {
        self.wait_arrived().await.wait_streaming().await
    }

    pub async fn wait_paused(self) {
        self.wait_arrived().await.wait_paused().await;
    }

    pub async fn wait_client_left(self) -> Instant {
        self.wait_arrived().await.wait_client_left().await
    }

    pub async fn wait_finished(self) -> ResponseOutcome {
        self.wait_arrived().await.wait_finished().await
    }
}

/// Waits for conditions, with a limit on the server's clock: a test with a paused clock waits in real time too.
#[derive(Debug, Clone)]
pub(super) struct ConditionWaiter {
    pub(super) shared: Arc<ModelServerState>,
    pub(super) server_runtime: Handle,
}

impl ConditionWaiter {
    pub(super) fn handle(&self, recorded: Arc<RecordedRequest>) -> ModelRequestHandle {
        ModelRequestHandle { recorded, waiter: self.clone() }
    }

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
