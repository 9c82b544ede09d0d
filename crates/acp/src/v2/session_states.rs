//! The states of the sessions, as the editor knows them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use quell_protocol::RunId;

use crate::editor::RunActivity;
use crate::wire::RpcError;
use crate::wire::v2::*;

/// What the runs of this editor do, by their sessions.
///
/// A state is sent under the lock, so that the last one that the editor reads is the true one.
#[derive(Default)]
pub(super) struct SessionStates(Mutex<HashMap<SessionId, ActiveRuns>>);

/// The runs of a session that have begun and have not ended.
#[derive(Default)]
struct ActiveRuns(HashMap<RunId, RunActivity>);

impl SessionStates {
    /// Tells the editor what a run does.
    pub(super) fn report(
        &self,
        editor: &EditorConnection,
        session: &SessionId,
        run: &RunId,
        activity: RunActivity,
    ) -> Result<(), RpcError> {
        self.change(editor, session, |runs| {
            runs.0.insert(run.clone(), activity);
            runs.state(IdleStateUpdate::new())
        })
    }

    /// Tells the editor that a run has ended. `idle` says how.
    pub(super) fn end(
        &self,
        editor: &EditorConnection,
        session: &SessionId,
        run: &RunId,
        idle: IdleStateUpdate,
    ) -> Result<(), RpcError> {
        self.change(editor, session, |runs| {
            runs.0.remove(run);
            runs.state(idle)
        })
    }

    /// Sends the current state again.
    pub(super) fn repeat(&self, editor: &EditorConnection, session: &SessionId) -> Result<(), RpcError> {
        self.change(editor, session, |runs| runs.state(IdleStateUpdate::new()))
    }

    fn change(
        &self,
        editor: &EditorConnection,
        session: &SessionId,
        change: impl FnOnce(&mut ActiveRuns) -> StateUpdate,
    ) -> Result<(), RpcError> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = sessions.entry(session.clone()).or_default();
        let update = SessionUpdate::StateUpdate(change(runs));
        if runs.0.is_empty() {
            sessions.remove(session);
        }
        editor.send_notification(UpdateSessionNotification::new(session.clone(), update))
    }
}

impl ActiveRuns {
    /// The state of the session: `idle` only if no other run has begun meanwhile.
    fn state(&self, idle: IdleStateUpdate) -> StateUpdate {
        if self.0.is_empty() {
            StateUpdate::Idle(idle)
        } else if self.0.values().all(|activity| *activity == RunActivity::WaitsForPerson) {
            StateUpdate::RequiresAction(RequiresActionStateUpdate::new())
        } else {
            StateUpdate::Running(RunningStateUpdate::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_idle_when_its_last_run_has_ended() {
        let mut runs = ActiveRuns::default();
        let state = |runs: &ActiveRuns| {
            let idle = IdleStateUpdate::new().stop_reason(StopReason::EndTurn);
            serde_json::to_value(runs.state(idle)).unwrap()["state"].as_str().unwrap().to_owned()
        };
        let (first, second) = (RunId::parse("r1").unwrap(), RunId::parse("r2").unwrap());
        runs.0.insert(first.clone(), RunActivity::WaitsForPerson);
        assert_eq!(state(&runs), "requires_action");
        // The next run has begun before the end of this one is known here.
        runs.0.insert(second.clone(), RunActivity::Working);
        assert_eq!(state(&runs), "running");
        runs.0.remove(&first);
        assert_eq!(state(&runs), "running");
        runs.0.remove(&second);
        assert_eq!(state(&runs), "idle");
    }
}
