//! History of sessions: sealed turns in the order of their recording, and reset marks.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};

use crate::{StoreFuture, StorePage};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedTurn {
    pub session: SessionKey,
    pub run: RunId,
    /// JSON.
    pub turn: String,
    /// JSON of the run's view.
    pub view: String,
}

/// An item of a session's history, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryItem {
    Turn {
        /// JSON, as stored.
        turn: String,
        agent: AgentId,
        /// The principal whose message began the run.
        principal: Principal,
    },
    /// The session was reset: the model sees nothing from before.
    Reset {
        /// RFC 3339.
        at: String,
    },
}

pub trait HistoryStore: Send + Sync {
    /// Records the sealed turn of a run, and the run's view unless the run has ended, and deletes the run's journal. A
    /// turn that is already recorded is not changed. Fails with
    /// [`StoreError::NoSuchRun`](crate::StoreError::NoSuchRun) if the session has no such run.
    fn append_turn(&self, sealed: SealedTurn) -> StoreFuture<'_, ()>;

    /// Lists the turns of a session after its last reset, oldest first; none when there is no such session.
    fn turns(&self, session: SessionKey) -> StoreFuture<'_, Vec<String>>;

    /// Lists the newest `limit` items of a session's whole history before `cursor`, oldest first, and the cursor of
    /// the page before them.
    fn page(
        &self,
        session: SessionKey,
        limit: usize,
        cursor: Option<String>,
    ) -> StoreFuture<'_, StorePage<HistoryItem>>;

    /// Lists the newest `limit` turns of a session after its last reset and before number `before`, newest first,
    /// each with its number. Numbers rise with time and can have gaps.
    fn newest_turns(&self, session: SessionKey, before: i64, limit: usize) -> StoreFuture<'_, Vec<(i64, String)>>;

    /// Returns the first turn of a session after its last reset.
    fn first_turn(&self, session: SessionKey) -> StoreFuture<'_, Option<String>>;

    /// Adds a reset mark to the history, unless there is no turn after the last one, and deletes the session's notes.
    /// `at` is the time of the reset, RFC 3339. Returns false when there is no such session.
    fn reset(&self, session: SessionKey, at: String) -> StoreFuture<'_, bool>;
}
