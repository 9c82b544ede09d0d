//! Bodies of background processes: commands that outlive the call that started them.

use serde::{Deserialize, Serialize};

use crate::ids::{Principal, RunId, SessionKey};

/// A command that a session runs in the background.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRow {
    /// The id, unique as long as the daemon runs.
    pub id: String,
    /// The session that the command belongs to.
    pub session_key: SessionKey,
    /// The run that started the command.
    pub started_by_run: RunId,
    /// The principal of that run. This principal or an admin may end the command.
    pub principal: Principal,
    /// The command as given.
    pub command: String,
    /// Process id of the leader, once it is known.
    pub pid: Option<u32>,
    /// `running` or `ended`.
    pub state: String,
    /// Start of the command, RFC 3339.
    pub started_at: String,
    /// End of the command, RFC 3339. Absent while it runs.
    pub ended_at: Option<String>,
    /// Exit code of the leader, if it exited.
    pub exit_code: Option<i32>,
    /// Signal that ended the leader, if one did.
    pub signal: Option<i32>,
    /// Descendants other than the leader that had to be ended.
    pub swept: u32,
    /// How the command ended: `exited`, `term` or `kill`; `failed` if it did not start.
    pub how: Option<String>,
    /// Processes that could not be ended, by name. Empty if all were ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<String>,
    /// So far.
    pub output_bytes: u64,
}

/// A background command with its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    #[serde(flatten)]
    pub process: ProcessRow,
    /// The output from the requested offset on, as far as it is kept.
    pub output: String,
    /// Bytes after the requested offset that are no longer kept.
    pub missing: u64,
    /// The offset at which further output begins.
    pub next: u64,
}
