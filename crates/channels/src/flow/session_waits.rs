//! Wait until the conversation of a message belongs to this node. In a cluster, another node may have it: somebody has
//! used it there, or its node has died.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_engine::engine::SessionTransferError;
use quell_protocol::{RunId, SessionKey};
use tokio_util::sync::CancellationToken;

use super::Channels;

/// The messages that wait for their sessions, by the runs that will be made of them.
#[derive(Default)]
pub(super) struct SessionWaits(Mutex<HashMap<RunId, CancellationToken>>);

impl SessionWaits {
    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) enum SessionWaitOutcome {
    Ready,
    /// A stop has withdrawn the message.
    Stopped,
    Failed(SessionTransferError),
}

struct WaitGuard<'a> {
    waits: &'a SessionWaits,
    run: &'a RunId,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waits.lock().remove(self.run);
    }
}

impl Channels {
    /// Ends the wait of a message for its session.
    pub(super) fn cancel_session_wait(&self, run: &RunId) {
        if let Some(wait) = self.0.session_waits.lock().get(run) {
            wait.cancel();
        }
    }

    pub(super) async fn wait_for_session(&self, run: &RunId, session: &SessionKey) -> SessionWaitOutcome {
        if self.engine().cluster().is_none_or(|cluster| cluster.owns_session(session)) {
            return SessionWaitOutcome::Ready;
        }
        let (waits, cancelled) = (&self.0.session_waits, CancellationToken::new());
        waits.lock().insert(run.clone(), cancelled.clone());
        let _guard = WaitGuard { waits, run };
        tokio::select! {
            () = cancelled.cancelled() => SessionWaitOutcome::Stopped,
            acquired = self.engine().acquire_session(session) => match acquired {
                Ok(()) => SessionWaitOutcome::Ready,
                Err(error) => SessionWaitOutcome::Failed(error),
            },
        }
    }
}
