//! What goes into the store and comes out of it.

use quell_protocol::api::TokenRow;
use quell_protocol::{AgentId, Principal, RunId, SessionKey};

use super::Spent;

/// How far the store knows a run to be. It never goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredState {
    /// Accepted and not started.
    Accepted,
    /// Started and not ended.
    Started,
    /// Over; its view has the receipt.
    Ended,
    /// Its text went into another run, and it never was one of its own.
    Steered {
        /// That run.
        into: RunId,
    },
}

/// A run as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub id: RunId,
    /// Its session.
    pub session: SessionKey,
    /// The agent that runs.
    pub agent: AgentId,
    /// Who asked.
    pub principal: Principal,
    /// Hash of what a repeat with the same id must agree in.
    pub fingerprint: String,
    /// How far it is.
    pub state: StoredState,
    /// RFC 3339.
    pub accepted_at: String,
    /// JSON of the protocol's `RunView` at its last write.
    pub view: String,
}

/// Answer to the acceptance of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptedRow {
    /// The run is in the database now.
    New,
    /// A run of that id was there; nothing was written.
    Existing(RunRow),
}

/// Which runs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFilter {
    /// Only those of this session.
    pub session: Option<SessionKey>,
    /// Only those of this principal.
    pub principal: Option<Principal>,
    /// Most rows to answer.
    pub limit: usize,
    /// Where the page before ended; `None` for the first.
    pub cursor: Option<String>,
}

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFilter {
    /// Only those whose key or agent holds this text, in either case of ASCII.
    pub search: Option<String>,
    /// Most rows to answer.
    pub limit: usize,
    /// Where the page before ended; `None` for the first.
    pub cursor: Option<String>,
}

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Its key.
    pub key: SessionKey,
    /// The agent of its last run.
    pub agent: AgentId,
    /// RFC 3339: when its first run was accepted.
    pub created_at: String,
    /// RFC 3339: when its last run was accepted.
    pub last_used_at: String,
    /// Sealed turns after the last reset.
    pub turns: u64,
    /// What it says itself of how it works: JSON of the protocol's `SessionRequest` without its secrets.
    pub config: Option<String>,
    /// Its secrets, sealed.
    pub secrets: Option<Vec<u8>>,
    /// Which of its own endpoints may be at private addresses.
    pub private: PrivateEndpoints,
    /// Who began it, or imported it; none where nobody knows.
    pub owner: Option<Principal>,
    /// When it was imported, RFC 3339, if it was.
    pub imported_at: Option<String>,
}

/// A session that is to be made or configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSetup {
    /// Its key.
    pub key: SessionKey,
    /// Its agent.
    pub agent: AgentId,
    /// RFC 3339: now.
    pub at: String,
    /// What it says itself, without its secrets: JSON.
    pub config: String,
    /// Its secrets, sealed.
    pub secrets: Option<Vec<u8>>,
    /// Which of its own endpoints may be at private addresses.
    pub private: PrivateEndpoints,
    /// Who asks.
    pub by: Principal,
    /// What may come of it.
    pub access: SetUpAccess,
}

/// Which of a session's own endpoints may be at private addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrivateEndpoints {
    /// Its `baseUrl`.
    pub base_url: bool,
    /// Its `mcpUrl`.
    pub mcp_url: bool,
}

/// Who may configure a session that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetUpAccess {
    /// Whoever asks: an admin, or somebody who changes nothing.
    Anyone,
    /// The principal that began it.
    OwnerOnly,
}

/// Answer to the set-up of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetUp {
    /// It is new.
    New,
    /// It was there, and is configured so from now on.
    Known,
    /// Somebody else began it: it stays as it is.
    NotYours,
}

/// A piece of a session's past, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Past {
    /// A sealed turn.
    Turn {
        /// As it was stored.
        turn: String,
        /// The agent of its run.
        agent: AgentId,
        /// Whose message began it.
        principal: Principal,
    },
    /// The session was reset here: the model sees nothing from before.
    Reset {
        /// RFC 3339.
        at: String,
    },
}

/// A token with the hash of its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// What people may see of it.
    pub row: TokenRow,
    /// SHA-256 of the secret, hexadecimal.
    pub sha256: String,
}

/// A run whose daemon died, as it is from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRun {
    /// Its session.
    pub session: SessionKey,
    /// The run.
    pub run: RunId,
    /// Its turn, if it had begun: JSON.
    pub turn: Option<String>,
    /// Its last view: JSON.
    pub view: String,
    /// What it has used.
    pub spent: Spent,
}
