//! Ending sessions: their history emptied, or all of them gone. Never under a run that somebody else has at work there.

use quell_kernel::registry::{StopAsk, StopScope};
use quell_protocol::{RunId, SessionKey};

use super::{Caller, Engine};
use crate::cell::Notice;
use crate::store::{Deleted, StoreError};

/// Why a session was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A run that the caller may not stop is at work or waits in it. Nothing was stopped.
    #[error("the session {0:?} has an active run of somebody else; an admin token can do that")]
    SomebodyElses(SessionKey),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Stops the session's runs, then empties its history; the old turns stay under a boundary. False if there is none.
    ///
    /// # Errors
    /// [`SessionError`]: not the caller's to empty, or the store's error.
    ///
    /// # Cancel safety
    /// The stop is done at once; a caller who leaves before the end may have to ask again for the reset.
    pub async fn reset_session(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<bool, SessionError> {
        self.stop_own(caller, key, ask).await?;
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        let reset = self.inner().store.reset_session(key.clone(), at).await?;
        self.inner().sessions.forget_history(key);
        if reset {
            self.inner().hub.publish(&Notice::Session { key: key.clone(), reason: "reset" });
        }
        Ok(reset)
    }

    /// Stops the session's runs, then deletes it with all it left. False if there is none.
    ///
    /// # Errors
    /// [`SessionError`]: not the caller's to delete, or the store's error.
    ///
    /// # Cancel safety
    /// The stop is done at once; a caller who leaves before the end may have to ask again for the deletion.
    pub async fn delete_session(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<bool, SessionError> {
        let mut orphans = Vec::new();
        let deleted = loop {
            let mut over = self.stop_own(caller, key, ask).await?;
            over.extend(orphans);
            match self.inner().store.delete_session(key.clone(), over).await? {
                Deleted::Yes => break true,
                Deleted::Unknown => break false,
                // Runs that came in behind the stop are stopped, too, if they are the caller's. Those that nobody knows are
                // rows that an earlier write failed to close.
                Deleted::InUse(open) => orphans = self.inner().runs.unknown_of(open),
            }
        };
        self.inner().sessions.forget_history(key);
        if deleted {
            tracing::info!(session = %key, principal = %caller.principal, "session deleted");
            self.inner().hub.publish(&Notice::Session { key: key.clone(), reason: "delete" });
        }
        Ok(deleted)
    }

    /// Stops everything of a session, unless something there is not the caller's to stop, and once more what came in while
    /// that was waited for; answers its runs that are over and may not be stored as such yet.
    async fn stop_own(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<Vec<RunId>, SessionError> {
        loop {
            let active = self.active_runs_of(key);
            if !caller.is_admin() && active.iter().any(|run| run.principal != caller.principal) {
                return Err(SessionError::SomebodyElses(key.clone()));
            }
            let stop = self.stop(caller, &StopScope::whole_session(key.clone()), ask);
            stop.settled().await;
            if !stop.did_something() {
                return Ok(self.inner().runs.over_of_session(key));
            }
        }
    }
}
