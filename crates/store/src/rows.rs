//! Row types, filters and outcomes of the store.

use quell_protocol::api::TokenRow;
use quell_protocol::{AgentId, Principal, RunId, SessionKey};

use super::RunSpend;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptRunOutcome {
    New,
    /// A run with this id exists; nothing was written.
    Existing(RunRow),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunListFilter {
    pub session: Option<SessionKey>,
    pub principal: Option<Principal>,
    /// Rows of a page, at most.
    pub limit: usize,
    /// End of the previous page; `None` for the first page.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionListFilter {
    /// Only sessions whose key or agent contains this text, ignoring the case of ASCII letters.
    pub search: Option<String>,
    /// Rows of a page, at most.
    pub limit: usize,
    /// End of the previous page; `None` for the first page.
    pub cursor: Option<String>,
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
    /// `baseUrl`.
    pub base_url: bool,
    /// `mcpUrl`.
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

/// An item of a session's history, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryItem {
    Turn {
        /// JSON, as stored.
        turn: String,
        /// The agent of its run.
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

/// A token with the hash of its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// The part that people may see.
    pub row: TokenRow,
    /// SHA-256 of the secret, hexadecimal.
    pub sha256: String,
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
