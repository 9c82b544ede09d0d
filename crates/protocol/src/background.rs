//! Commands that go on in the background, as the doors show them.

use serde::{Deserialize, Serialize};

use crate::ids::{Principal, RunId, SessionKey};

/// A command that a session runs in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRow {
    /// Its id, unique in the daemon's life.
    pub id: String,
    /// The session that it belongs to.
    pub session_key: SessionKey,
    /// The run that started it.
    pub started_by_run: RunId,
    /// For whom; that one or an admin may end it.
    pub principal: Principal,
    /// The command as given.
    pub command: String,
    /// Process id of its leader, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `running` or `ended`.
    pub state: String,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339, once ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Exit code of the leader, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended the leader, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Descendants other than the leader that had to be ended.
    pub swept: u32,
    /// The rung that ended it: `exited`, `term`, `kill`; `failed` when it did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// What could not be ended, by name. Empty is the promise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<String>,
    /// Bytes printed so far.
    pub output_bytes: u64,
}

/// A background command with what it printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    /// The command.
    #[serde(flatten)]
    pub process: ProcessRow,
    /// What it printed, from the place asked for, as far as it is kept.
    pub output: String,
    /// Bytes after that place that are not kept.
    pub missing: u64,
    /// Ask from here for what comes next.
    pub next: u64,
}
