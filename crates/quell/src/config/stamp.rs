//! By what a file is known to have changed, without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// What a file looks like from outside. Another one in its place has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When it was written last.
    pub(crate) written: SystemTime,
    size: u64,
    number: u64,
}

impl Stamp {
    /// Of the file that is there now, behind links; none when there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { written: found.modified().ok()?, size: found.len(), number: found.ino() })
    }
}
