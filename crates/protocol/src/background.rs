//! Bodies of the processes that belong to a session and not to a call: background commands and servers of tools.

use serde::{Deserialize, Serialize};

use crate::ids::{Principal, RunId, SessionKey};

/// A command that a session runs in the background, or the program of an MCP server that it uses.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRow {
    /// The id, unique as long as the daemon runs.
    pub id: String,
    #[serde(default)]
    pub kind: ProcessKind,
    /// The session that the command belongs to. A server with `shared = true` is listed in each session that has used it.
    pub session_key: SessionKey,
    /// The run that started the command; of a shared server, the last run of the session that has used it.
    pub started_by_run: RunId,
    /// The principal of that run. This principal or an admin may end the command; a shared server, an admin alone.
    pub principal: Principal,
    /// The command as given; of a server, its name.
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
    /// So far. Of a server nothing is kept.
    pub output_bytes: u64,
    /// All its living processes as the system shows them, its own first. Empty when it has ended, and in older daemons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alive: Vec<AliveProcess>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// A command that was started with `background: true`.
    #[default]
    Command,
    /// The program of an MCP server.
    McpServer,
}

/// A living process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AliveProcess {
    pub pid: u32,
    /// The name that the system shows for it, which it may choose itself.
    pub name: String,
}

/// A process of a session with its output.
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
