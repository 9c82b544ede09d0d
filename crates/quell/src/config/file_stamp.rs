//! Modification time, size and inode of a file, to detect a change without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// A file that was replaced has another inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) modified: SystemTime,
    size: u64,
    inode: u64,
}

impl FileStamp {
    /// Reads the stamp of a file, following links; `None` when there is no file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { modified: found.modified().ok()?, size: found.len(), inode: found.ino() })
    }
}
