//! Undo the file changes of a run.

use serde::{Deserialize, Serialize};

use crate::RunId;

/// The body of `POST /api/runs/{id}/undo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UndoRequest {
    /// Also put files back that something else has changed since; its changes are lost.
    pub force: bool,
}

/// What an undo has done, and what it does not cover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UndoReport {
    pub run_id: RunId,
    /// The files that were put back. Paths are relative to the workdir of their agent, or absolute.
    pub files: Vec<UndoneFile>,
    /// Files that were as before the run already.
    pub unchanged: Vec<String>,
    /// What the run did besides, in whole phrases: commands, tools of MCP servers, files that were too large to keep.
    pub not_covered: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UndoneFile {
    pub path: String,
    pub change: UndoneChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UndoneChange {
    /// The file has its content and its permissions from before the run.
    Restored,
    /// The run had created the file.
    Removed,
}
