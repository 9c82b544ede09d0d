//! Runs: accepted once per id, with a state that only moves forward, and the hold on new ones.

use quell_protocol::api::Hold;
use quell_protocol::{AgentId, Amendment, Principal, RunId, SessionKey};
use serde_json::Value;

use crate::{RunSpend, StoreFuture, StorePage};

/// State of a run as stored. It never goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredRunState {
    Accepted,
    Started,
    /// Over; the view contains the receipt.
    Ended,
    /// Another run took its text, and it never ran itself.
    Steered {
        into: RunId,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub id: RunId,
    pub session: SessionKey,
    pub agent: AgentId,
    pub principal: Principal,
    /// Hash of the fields in which a repeat with the same id must agree.
    pub fingerprint: String,
    pub state: StoredRunState,
    /// RFC 3339.
    pub accepted_at: String,
    /// JSON of the protocol's `RunView`, as of the last write.
    pub view: String,
}

impl RunRow {
    /// What is kept of a run whose session is deleted. `None` when its view is not JSON.
    pub(crate) fn without_texts(&self) -> Option<Self> {
        let mut view: Value = serde_json::from_str(&self.view).ok()?;
        let fields = view.as_object_mut()?;
        fields.remove("output");
        fields.insert("text".to_owned(), "".into());
        Some(Self { view: view.to_string(), ..self.clone() })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptRunOutcome {
    New,
    /// A run with this id exists; nothing was written.
    Existing(RunRow),
    /// The firing of a schedule that was changed, paused or deleted meanwhile, or that is held. Nothing was written.
    NotDue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunListFilter {
    pub session: Option<SessionKey>,
    pub principal: Option<Principal>,
    /// Only runs of this principal, and those in its sessions and in shared ones.
    pub visible_to: Option<Principal>,
    /// Rows of a page, at most.
    pub limit: usize,
    /// End of the previous page; `None` for the first page.
    pub cursor: Option<String>,
}

/// A run whose daemon died, with its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRun {
    pub session: SessionKey,
    pub run: RunId,
    /// JSON, if the run had begun.
    pub turn: Option<String>,
    /// JSON.
    pub view: String,
    pub spent: RunSpend,
}

/// Operations on runs. Those that change one run fail with [`StoreError::NoSuchRun`](crate::StoreError::NoSuchRun) if
/// it is not stored.
pub trait RunStore: Send + Sync {
    /// Inserts an accepted run, and creates its session or records its use, unless a run with this id exists. The
    /// receipt of a run whose session was deleted counts as a run.
    fn accept(&self, row: RunRow) -> StoreFuture<'_, AcceptRunOutcome>;

    /// Inserts a run that was not stored while it worked, with its turn, unless it is stored already. Creates its session
    /// or records its use. Any node of a cluster may do so, whoever has the session.
    fn insert_with_turn(&self, row: RunRow, turn: String) -> StoreFuture<'_, ()>;

    /// Records that an accepted run has started. Changes nothing if the run is in a later state.
    fn record_start(&self, id: RunId, view: String) -> StoreFuture<'_, ()>;

    /// Records the end of a run with its last view, counts its tokens and deletes its journal. Can be called again to
    /// amend view and tokens; amendments that only the stored view has are kept. A steered run is not changed. The
    /// tokens count even if the run was deleted.
    fn record_end(&self, id: RunId, view: String, spent: RunSpend) -> StoreFuture<'_, ()>;

    /// Records that another run took the text of an accepted run. Changes nothing if the run is in a later state.
    fn record_steered(&self, id: RunId, into: RunId) -> StoreFuture<'_, ()>;

    /// Adds an amendment to the stored receipt of an ended run. Returns the session of the run, and the amendment as
    /// written: with its milliseconds since the stop. Fails as for an unknown run if the run has no receipt.
    fn amend(&self, run: RunId, amendment: Amendment) -> StoreFuture<'_, (SessionKey, Amendment)>;

    /// Ends runs whose daemon died, in this order and in one transaction. Writes the turn of each run that had begun,
    /// and its last view.
    fn seal(&self, runs: Vec<SealedRun>) -> StoreFuture<'_, ()>;

    /// Finds a run, or the receipt of a run whose session was deleted. The receipt comes before an imported run with
    /// the same id.
    fn find(&self, id: RunId) -> StoreFuture<'_, Option<RunRow>>;

    /// Lists runs, newest first, and the cursor of the next page.
    fn list(&self, filter: RunListFilter) -> StoreFuture<'_, StorePage<RunRow>> {
        Box::pin(async move {
            let (rows, next) = self.list_with_cursors(filter).await?;
            Ok((rows.into_iter().map(|(row, _)| row).collect(), next))
        })
    }

    /// As [`RunStore::list`], each row with the cursor of a page that begins behind it.
    fn list_with_cursors(&self, filter: RunListFilter) -> StoreFuture<'_, StorePage<(RunRow, String)>>;

    /// Lists the runs that have not ended, oldest first. When a daemon starts, these are the runs that the previous
    /// one left.
    fn list_open(&self) -> StoreFuture<'_, Vec<RunRow>>;

    /// Deletes the receipts of sessions that were deleted before this time, RFC 3339. Not synced.
    fn delete_receipts_before(&self, before: String) -> StoreFuture<'_, ()>;

    /// Deletes at most `limit` receipts of deleted sessions, oldest first. Returns the number of deleted receipts. Not
    /// synced.
    fn delete_oldest_receipts(&self, limit: u32) -> StoreFuture<'_, usize>;

    /// Deletes the ended runs of an agent that were accepted before this time, RFC 3339, with their turns; their sessions
    /// stay. Not synced.
    fn delete_runs_of_agent_before(&self, agent: AgentId, before: String) -> StoreFuture<'_, ()>;

    /// Sets or lifts the hold on new runs, if the stored one has the revision `after` or none is given. Returns the new
    /// revision; `None` if somebody has changed the hold since.
    fn set_hold(&self, hold: &Hold, after: Option<u64>) -> StoreFuture<'_, Option<u64>>;

    /// Returns the hold as last set, or the default (not held).
    fn hold(&self) -> StoreFuture<'_, Hold>;
}
