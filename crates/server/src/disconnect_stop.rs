//! Stop a run because its client has gone away.

use quell_engine::Engine;
use quell_engine::access::Caller;
use quell_kernel::StopLevel;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_protocol::{RunId, SessionKey, StopReason};

/// Stops its run when it is dropped before it is disarmed. Made before the run is submitted, so that no moment is without
/// it: a run that is not accepted yet is stopped as soon as it is.
#[derive(Debug)]
pub(crate) struct DisconnectStop {
    engine: Engine,
    caller: Caller,
    scope: StopScope,
    is_armed: bool,
}

impl DisconnectStop {
    /// With a session, only a run of that session is stopped.
    pub(crate) fn arm(engine: &Engine, caller: &Caller, run: RunId, session: Option<SessionKey>) -> Self {
        let scope = StopScope::Run { id: run, session };
        Self { engine: engine.clone(), caller: caller.clone(), scope, is_armed: true }
    }

    /// From now on the run goes on without the client.
    pub(crate) fn disarm(&mut self) {
        self.is_armed = false;
    }

    /// Stops the run now, as the drop does.
    pub(crate) fn stop(&self) {
        let (level, reason, surface) = (StopLevel::Gentle, StopReason::Disconnect, self.caller.surface);
        // Nobody is there to read the answer.
        let _stopped = self.engine.stop(&self.caller, &self.scope, &StopRequest { level, reason, surface });
    }
}

impl Drop for DisconnectStop {
    fn drop(&mut self) {
        if self.is_armed {
            self.stop();
        }
    }
}
