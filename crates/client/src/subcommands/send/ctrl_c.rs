//! Map presses of Ctrl-C to stop, force and leave, and send the stop requests while the run is still followed.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use quell_protocol::RunId;
use quell_protocol::api::StopRunRequest;
use tokio::time::timeout;

use crate::daemon_client::{ClientError, DaemonClient, StopWait};

/// How long an ending process waits for the answer to its stop. `timeout --kill-after` and service managers usually leave
/// some seconds.
const STOP_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CtrlCAction {
    Stop,
    Force,
    Leave,
}

/// The last press and the stop requests without an answer.
pub(super) struct CtrlCStops {
    client: DaemonClient,
    run_id: RunId,
    last_action: Option<CtrlCAction>,
    pending_requests: FuturesUnordered<BoxFuture<'static, Result<(), ClientError>>>,
}

impl CtrlCStops {
    pub(super) fn new(client: &DaemonClient, run_id: RunId) -> Self {
        Self { client: client.clone(), run_id, last_action: None, pending_requests: FuturesUnordered::new() }
    }

    pub(super) fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Sets the run id that the daemon answered. A stop that was already requested is requested again: it may have
    /// named another run, if the message was handed to an active one. Repeating a stop changes nothing.
    pub(super) fn set_run(&mut self, run: &RunId) {
        self.run_id = run.clone();
        self.pending_requests.clear();
        if self.last_action.is_some() {
            self.request_stop();
        }
    }

    pub(super) fn handle_press(&mut self) -> CtrlCAction {
        let press = match self.last_action {
            None => CtrlCAction::Stop,
            Some(CtrlCAction::Stop) => CtrlCAction::Force,
            Some(CtrlCAction::Force | CtrlCAction::Leave) => CtrlCAction::Leave,
        };
        self.last_action = Some(press);
        if press != CtrlCAction::Leave {
            self.request_stop();
        }
        press
    }

    /// Requests a stop, unless one was requested, and waits until the daemon has it. Afterwards this process may end.
    pub(super) async fn stop_before_end(&mut self) {
        if self.last_action.is_none() {
            self.handle_press();
        }
        let answers = async { while self.pending_requests.next().await.is_some() {} };
        // A daemon that does not answer cannot be waited for: whoever ends this process may kill it soon.
        let _ = timeout(STOP_ANSWER_TIMEOUT, answers).await;
    }

    fn request_stop(&self) {
        let (client, run) = (self.client.clone(), self.run_id.clone());
        let force = self.last_action != Some(CtrlCAction::Stop);
        let sending = async move {
            let request = StopRunRequest { force, ..StopRunRequest::default() };
            client.stop_run(&run, &request, StopWait::UntilRequested).await.map(drop)
        };
        self.pending_requests.push(sending.boxed());
    }

    /// Waits for the answer to the next stop request; waits forever while there is none.
    ///
    /// # Cancel safety
    /// Safe: the requests continue in the next call.
    pub(super) async fn next_stop_result(&mut self) -> Result<(), ClientError> {
        match self.pending_requests.next().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}
