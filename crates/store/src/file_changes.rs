//! Files as they were before a run's file tools changed them, for undoing the changes.

use quell_protocol::{NodeName, RunId};

use crate::StoreFuture;

/// One change of a file. It is stored before the file is written, so it may describe a write that did not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The run that changes the file, and above it each run's parent; the root of the tree comes first.
    pub lineage: Vec<RunId>,
    /// The workdir of the agent, an absolute path.
    pub workdir: String,
    /// The file without symlinks: relative to the workdir, or absolute outside of it.
    pub path: String,
    /// The user that files of the agent get, if it is not that of the daemon.
    pub owner: Option<u32>,
    /// The node of a cluster that has the file; `None` for a daemon that is none.
    pub node: Option<NodeName>,
    /// RFC 3339.
    pub at: String,
    /// `None`: there was no file.
    pub before: Option<FileBefore>,
    /// SHA-256 of the new content, hexadecimal. `None`: the change deletes the file.
    pub after_sha256: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBefore {
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
    /// The permission bits.
    pub mode: u32,
    /// `None` if the content is not kept: an earlier change of the run has it, or it is too large.
    pub content: Option<Vec<u8>>,
}

/// A change as it is listed, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFileChange {
    /// The order of all changes.
    pub number: i64,
    /// The content is always absent.
    pub change: FileChange,
    pub has_content: bool,
    /// Time at which the change was undone, RFC 3339.
    pub undone_at: Option<String>,
}

/// The changes of a run are deleted with the run.
pub trait FileChangeStore: Send + Sync {
    /// Adds changes of one run, in order.
    ///
    /// # Errors
    /// [`StoreError::NoSuchRun`](crate::StoreError::NoSuchRun) if the run is not stored.
    fn add(&self, run: RunId, changes: Vec<FileChange>) -> StoreFuture<'_, ()>;

    /// Lists the changes of all runs in the tree of this root run, in order.
    fn list_tree(&self, root: RunId) -> StoreFuture<'_, Vec<StoredFileChange>>;

    /// The content before a change; `None` if it is not kept.
    fn read_content(&self, number: i64) -> StoreFuture<'_, Option<Vec<u8>>>;

    /// Marks changes as undone, and deletes their contents.
    fn mark_undone(&self, numbers: Vec<i64>, at: String) -> StoreFuture<'_, ()>;
}

/// The lineage as one column.
pub(crate) fn join_lineage(lineage: &[RunId]) -> String {
    lineage.iter().map(RunId::as_str).collect::<Vec<_>>().join("\n")
}

/// The lineage from its column.
pub(crate) fn split_lineage(column: &str) -> Result<Vec<RunId>, quell_protocol::BadId> {
    column.split('\n').map(RunId::parse).collect()
}
