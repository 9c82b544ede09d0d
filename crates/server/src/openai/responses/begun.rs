//! A response that the database has as begun. Its end is stored once, also when the database refuses for a while.

use std::time::Duration;

use quell_engine::Engine;
use quell_protocol::ErrorCode;
use quell_store::{BeginResponseOutcome, EndedResponse, StoreError, StoredResponse};
use tokio::time::sleep;

use crate::http::{ProblemResponse, problem_response};

/// Pauses before the attempts to store an end for which a client waits.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// Pause between two attempts for which nobody waits.
const LATER: Duration = Duration::from_secs(2);

/// While it is open, its conversation takes no other response. Dropped, it stores how the response ended.
#[derive(Debug)]
pub(super) struct BegunResponse {
    engine: Engine,
    id: String,
    on_drop: OnDrop,
}

#[derive(Debug)]
enum OnDrop {
    /// Nothing has run: there is no such response.
    Delete,
    End(Box<EndedResponse>),
    Nothing,
}

impl BegunResponse {
    /// Stores a response that begins.
    ///
    /// # Errors
    /// Its conversation has one that is not over, or the database refuses.
    ///
    /// # Cancel safety
    /// Dropped while it stores, the response is deleted again.
    pub(super) async fn begin(engine: &Engine, response: StoredResponse) -> Result<Self, ProblemResponse> {
        let mut begun = Self { engine: engine.clone(), id: response.id.clone(), on_drop: OnDrop::Delete };
        match engine.responses().begin(response).await {
            Ok(BeginResponseOutcome::Begun) => Ok(begun),
            Ok(BeginResponseOutcome::ConversationLocked) => {
                begun.on_drop = OnDrop::Nothing;
                let detail = "another response is being made in this conversation; wait for its end, or stop it";
                Err(problem_response(ErrorCode::ConversationLocked, detail).field("conversation"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nothing is stored yet of its end.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.on_drop, OnDrop::Nothing)
    }

    /// Sets what is stored if the run ends without an end of its response, by a panic.
    pub(super) fn set_end(&mut self, ended: EndedResponse) {
        self.on_drop = OnDrop::End(Box::new(ended));
    }

    /// Deletes it: nothing has run.
    pub(super) async fn delete(mut self) {
        if self.engine.responses().delete(self.id.clone()).await.is_ok() {
            self.on_drop = OnDrop::Nothing;
        }
    }

    /// Stores its end, with some patience. After an error, dropping this stores that it has failed.
    ///
    /// # Errors
    /// The store's last error.
    ///
    /// # Cancel safety
    /// Dropped before its end, the response may be stored as failed.
    pub(super) async fn end(&mut self, ended: EndedResponse) -> Result<(), StoreError> {
        let mut stored = Ok(());
        for pause in PAUSES {
            // waits: two seconds in all, after the end of the run.
            sleep(pause).await;
            // waits: for the database, after the end of the run.
            stored = self.engine.responses().end(ended.clone()).await.map(drop);
            if stored.is_ok() {
                self.on_drop = OnDrop::Nothing;
                break;
            }
        }
        stored
    }

    /// Stores that it has failed as soon as the database takes it. Without an end to store, returns at once.
    pub(super) async fn settle(mut self) {
        if let OnDrop::End(ended) = std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            // waits: for the database; a shutdown ends it.
            store_later(&self.engine, *ended).await;
        }
    }
}

impl Drop for BegunResponse {
    fn drop(&mut self) {
        let (engine, id) = (self.engine.clone(), std::mem::take(&mut self.id));
        match std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            OnDrop::Nothing => {}
            OnDrop::Delete => self.engine.spawn_until_run_ends(async move {
                // waits: for the database; a shutdown ends it.
                delete_later(&engine, id).await;
            }),
            OnDrop::End(ended) => self.engine.spawn_until_run_ends(async move {
                // waits: for the database; a shutdown ends it.
                store_later(&engine, *ended).await;
            }),
        }
    }
}

/// Tries until the daemon ends: else its conversation would be locked.
async fn delete_later(engine: &Engine, id: String) {
    // waits: for the database; no run is left that could be stopped.
    while let Err(error) = engine.responses().delete(id.clone()).await {
        tracing::error!(%error, response = id, "a response that has not begun could not be deleted; it is tried again");
        tokio::select! {
            biased;
            () = engine.wait_for_close() => return,
            () = sleep(LATER) => {}
        }
    }
}

/// Tries until the daemon ends. What it leaves behind is abandoned, which has failed, too.
async fn store_later(engine: &Engine, ended: EndedResponse) {
    // waits: for the database; no run is left that could be stopped.
    while let Err(error) = engine.responses().end(ended.clone()).await {
        tracing::error!(%error, response = ended.id, "the end of a response could not be stored; it is tried again");
        tokio::select! {
            biased;
            () = engine.wait_for_close() => return,
            () = sleep(LATER) => {}
        }
    }
}
