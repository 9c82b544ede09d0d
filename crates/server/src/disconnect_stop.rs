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
        let scope = StopScope::Run { id: run, session, agent: None };
        Self { engine: engine.clone(), caller: caller.clone(), scope, is_armed: true }
    }

    /// From now on the run goes on without the client.
    pub(crate) fn disarm(&mut self) {
        self.is_armed = false;
    }

    /// Stops the run now, as the drop does.
    pub(crate) fn stop(&self) {
        stop_for_client(&self.engine, &self.caller, &self.scope, StopReason::Disconnect);
    }
}

impl Drop for DisconnectStop {
    fn drop(&mut self) {
        if self.is_armed {
            self.stop();
        }
    }
}

/// Stops the run of a client that waits for no answer to the stop. The run may not be accepted yet.
pub(crate) fn stop_for_client(engine: &Engine, caller: &Caller, scope: &StopScope, reason: StopReason) {
    let request = StopRequest { level: StopLevel::Gentle, reason, surface: caller.surface };
    let _stopped = engine.stop(caller, scope, &request);
}
