//! The database of Quell: runs, sessions, journals, notes, tokens.
//!
//! Each area of the store is a trait, such as [`RunStore`]. An implementation has all areas; [`sqlite`] is the one that
//! daemons use, and `memory` one for tests. A store keeps turns and views as JSON text and
//! interprets only the receipt in a view.

mod access;
mod agents;
mod amendments;
mod archive;
mod audit;
mod batch_writer;
mod channels;
mod cluster;
#[cfg(test)]
mod conformance;
mod copy;
mod cursor;
mod error;
mod file_changes;
mod history;
mod journal;
mod location;
mod lock;
mod maintenance;
#[cfg(any(test, feature = "test-support"))]
pub mod memory;
mod note_words;
mod notes;
pub mod postgres;
mod push_targets;
mod reader_threads;
mod responses;
mod runs;
mod schedules;
mod sessions;
mod spend;
pub mod sqlite;
mod temp_file;
#[cfg(feature = "test-support")]
pub mod test_support;
mod webhooks;
mod worker_threads;

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use access::{AccessStore, StoredCookie, StoredToken};
pub use agents::{AgentStore, StoredAgent};
pub use archive::{ArchiveStore, ArchivedHistoryItem, ImportOutcome, SessionArchive};
pub use audit::{AuditEntry, AuditStore};
pub use channels::{ChannelStore, PendingReply, StaleReply};
pub use cluster::{
    ChangeCount, ClaimOutcome, ClusterSettings, ClusterStore, DutyClaim, DutyOutcome, Membership, NodeDuty, NodeRow,
    RenewalAnswer, RenewalRequest, RequestedStop, SessionLocation, StoredLetter, WaitingStop,
};
pub use copy::{CopyError, CopyLocation, CopyProgress, CopyStep, TableCopy, copy_store};
pub use error::StoreError;
pub use file_changes::{FileBefore, FileChange, FileChangeStore, StoredFileChange};
pub use history::{HistoryItem, HistoryStore, SealedTurn};
pub use journal::{JournalRow, JournalStore};
pub use location::{DatabaseInspection, DatabaseServer, DatabaseState, StoreLocation};
pub use lock::{LockHolder, find_running_daemon};
pub use maintenance::MaintenanceStore;
pub use notes::{FoundNote, Note, NoteScope, NoteStore, NoteWriteCheck, SaveNoteOutcome};
pub use push_targets::{PushTargetKey, PushTargetStore, PutPushTargetOutcome, StoredPushTarget};
pub use responses::{
    BeginResponseOutcome, ConversationItem, DeletedResponses, EndedResponse, ItemOrder, ItemQuery,
    RESPONSE_RETENTION_SECONDS, ResponseOwner, ResponseStore, StoredConversation, StoredResponse, StoredResponseState,
};
pub use runs::{AcceptRunOutcome, RunListFilter, RunRow, RunStore, SealedRun, StoredRunState};
pub use schedules::{CreateScheduleOutcome, ScheduleQuota, ScheduleStore, StoredSchedule};
pub use sessions::{
    DeleteSessionOutcome, IdleSession, PrivateEndpoints, SessionListFilter, SessionSetup, SessionSetupAccess,
    SessionSetupOutcome, SessionStore, StoredOwnership, StoredSession,
};
pub use spend::{RunSpend, SpendStore};
pub use temp_file::TempFile;
pub use webhooks::{QueuedWebhook, StoredWebhook, WebhookStore};

pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Rows of a page, and the cursor of the next page.
pub type StorePage<T> = (Vec<T>, Option<String>);

/// An implementation of the store: all areas.
///
/// # Cancel safety
/// Every operation is queued as soon as its future is polled and the queue has room. From then on it is carried out
/// whether or not the caller waits; before, it is not carried out at all. A write is one transaction: it changes
/// everything or nothing. A write that was answered is durable, unless its documentation says otherwise.
pub trait StoreBackend:
    RunStore
    + HistoryStore
    + JournalStore
    + SessionStore
    + ArchiveStore
    + NoteStore
    + ChannelStore
    + WebhookStore
    + AgentStore
    + AccessStore
    + AuditStore
    + SpendStore
    + ScheduleStore
    + ResponseStore
    + PushTargetStore
    + FileChangeStore
    + MaintenanceStore
{
    /// The operations of a node; `None` if the daemon has the database for itself.
    fn cluster(&self) -> Option<Arc<dyn ClusterStore>> {
        None
    }
}

/// The store of one daemon. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<dyn StoreBackend>);

impl Store {
    #[must_use]
    pub fn new(backend: impl StoreBackend + 'static) -> Self {
        Self(Arc::new(backend))
    }

    /// Opens the SQLite database `file` in a data directory, see [`sqlite::SqliteStore::open`].
    ///
    /// # Errors
    /// [`StoreError`] names the process that holds the directory, or the defect of the file.
    pub fn open(data_dir: &Path, file: &str) -> Result<Self, StoreError> {
        Ok(Self::new(sqlite::SqliteStore::open(data_dir, file)?))
    }

    /// Cancelled once a write was refused because another daemon has taken over the database. All later writes are
    /// refused, too.
    #[must_use]
    pub fn fenced(&self) -> &CancellationToken {
        self.0.fenced()
    }

    /// Finishes the queued operations and releases the database. From now on operations of other clones are refused.
    ///
    /// # Cancel safety
    /// Safe: the close continues by itself. Dropped before its first poll it does nothing.
    pub async fn close(self) {
        self.0.close().await;
    }

    #[must_use]
    pub fn runs(&self) -> &dyn RunStore {
        &*self.0
    }

    #[must_use]
    pub fn history(&self) -> &dyn HistoryStore {
        &*self.0
    }

    #[must_use]
    pub fn file_changes(&self) -> &dyn FileChangeStore {
        &*self.0
    }

    #[must_use]
    pub fn journal(&self) -> &dyn JournalStore {
        &*self.0
    }

    #[must_use]
    pub fn sessions(&self) -> &dyn SessionStore {
        &*self.0
    }

    #[must_use]
    pub fn archive(&self) -> &dyn ArchiveStore {
        &*self.0
    }

    #[must_use]
    pub fn notes(&self) -> &dyn NoteStore {
        &*self.0
    }

    #[must_use]
    pub fn channels(&self) -> &dyn ChannelStore {
        &*self.0
    }

    #[must_use]
    pub fn webhooks(&self) -> &dyn WebhookStore {
        &*self.0
    }

    #[must_use]
    pub fn agents(&self) -> &dyn AgentStore {
        &*self.0
    }

    #[must_use]
    pub fn access(&self) -> &dyn AccessStore {
        &*self.0
    }

    #[must_use]
    pub fn audit(&self) -> &dyn AuditStore {
        &*self.0
    }

    #[must_use]
    pub fn spend(&self) -> &dyn SpendStore {
        &*self.0
    }

    #[must_use]
    pub fn schedules(&self) -> &dyn ScheduleStore {
        &*self.0
    }

    #[must_use]
    pub fn push_targets(&self) -> &dyn PushTargetStore {
        &*self.0
    }

    #[must_use]
    pub fn responses(&self) -> &dyn ResponseStore {
        &*self.0
    }

    /// The operations of a node; `None` if the daemon has the database for itself.
    #[must_use]
    pub fn cluster(&self) -> Option<Arc<dyn ClusterStore>> {
        self.0.cluster()
    }

    #[must_use]
    pub fn maintenance(&self) -> &dyn MaintenanceStore {
        &*self.0
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}
