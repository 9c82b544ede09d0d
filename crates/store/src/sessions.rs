//! Sessions: use, settings, ownership, lists, deletion.

use quell_protocol::{AgentId, Principal, RunId, SessionKey};

use crate::{AuditEntry, StoreFuture, StorePage};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionListFilter {
    /// Only sessions whose key or agent contains this text, ignoring the case of ASCII letters.
    pub search: Option<String>,
    /// Rows of a page, at most.
    pub limit: usize,
    /// End of the previous page; `None` for the first page.
    pub cursor: Option<String>,
    /// Only sessions of this principal, and shared ones.
    pub visible_to: Option<Principal>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    pub key: SessionKey,
    /// The agent of its last run.
    pub agent: AgentId,
    /// RFC 3339: acceptance of its first run.
    pub created_at: String,
    /// RFC 3339: acceptance of its last run.
    pub last_used_at: String,
    /// Sealed turns after the last reset.
    pub turns: u64,
    /// Its own settings: JSON of the protocol's `SessionRequest` without the secrets.
    pub config: Option<String>,
    /// Encrypted.
    pub secrets: Option<Vec<u8>>,
    pub private_endpoints: PrivateEndpoints,
    /// The principal that created or imported it, where known.
    pub owner: Option<Principal>,
    /// RFC 3339, if it was imported.
    pub imported_at: Option<String>,
    /// Whether every token may read it and send to it.
    pub shared: bool,
}

/// To whom a session belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOwnership {
    pub key: SessionKey,
    pub owner: Option<Principal>,
    pub shared: bool,
}

/// A session to create or configure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSetup {
    pub key: SessionKey,
    pub agent: AgentId,
    /// RFC 3339: the current time.
    pub at: String,
    /// Its own settings, without the secrets: JSON.
    pub config: String,
    /// Encrypted.
    pub secrets: Option<Vec<u8>>,
    pub private_endpoints: PrivateEndpoints,
    pub requested_by: Principal,
    pub access: SessionSetupAccess,
}

/// Which of a session's own endpoints may have private addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrivateEndpoints {
    pub base_url: bool,
    pub mcp_url: bool,
}

/// Access of a request to the settings of an existing session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionSetupAccess {
    /// For an admin, or a request that changes nothing.
    Anyone,
    OwnerOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionSetupOutcome {
    New,
    Updated,
    /// Another principal owns the session; nothing was written.
    NotOwner,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteSessionOutcome {
    Deleted,
    Unknown,
    /// The session has these open runs; nothing was deleted.
    InUse(Vec<RunId>),
}

/// A session that may be deleted, as read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleSession {
    pub key: SessionKey,
    /// RFC 3339: the last use, or the import if that is later.
    pub used_at: String,
}

pub trait SessionStore: Send + Sync {
    fn find(&self, key: SessionKey) -> StoreFuture<'_, Option<StoredSession>>;

    /// Lists sessions, the most recently used first, and the cursor of the next page.
    fn list(&self, filter: SessionListFilter) -> StoreFuture<'_, StorePage<StoredSession>>;

    fn count(&self) -> StoreFuture<'_, u64>;

    /// Lists to whom each session belongs.
    fn list_ownership(&self) -> StoreFuture<'_, Vec<StoredOwnership>>;

    /// Shares a session, or makes it private again. False if it does not exist.
    fn set_shared(&self, key: SessionKey, shared: bool) -> StoreFuture<'_, bool>;

    /// Creates a session without a message, or configures an existing one, which counts as a use.
    fn set_up(&self, setup: SessionSetup) -> StoreFuture<'_, SessionSetupOutcome>;

    /// Records the last use of a session without waiting for a sync of the disk. Changes nothing if the session does
    /// not exist or has a later use.
    fn touch(&self, key: SessionKey, at: String) -> StoreFuture<'_, ()>;

    /// Deletes a session with its turns, runs and notes. Keeps the receipts, without messages and answers; a receipt
    /// that exists is not replaced, so that nobody can forge one by an import and a deletion. Refused while the
    /// session has an open run that is not among `ended`. The receipts are as old as `at`, RFC 3339: the current time.
    fn delete(&self, key: SessionKey, ended: Vec<RunId>, at: String) -> StoreFuture<'_, DeleteSessionOutcome>;

    /// Lists at most `limit` sessions without open runs that come after `after`, the least recently used first.
    fn list_idle(&self, after: Option<IdleSession>, limit: usize) -> StoreFuture<'_, Vec<IdleSession>>;

    /// Deletes a session as [`SessionStore::delete`] does, at the time of the audit entry, which it appends. Changes
    /// nothing if the session was used since it was listed.
    fn delete_idle(&self, idle: IdleSession, entry: AuditEntry) -> StoreFuture<'_, DeleteSessionOutcome>;
}
