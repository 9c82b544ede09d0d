//! A temporary data directory with the agents' work directory beside it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A data directory that is deleted with this value. The work directories of agents are beside it.
pub struct TestDataDir {
    path: PathBuf,
    _dir: TempDir,
}

impl TestDataDir {
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::create_dir(&path).unwrap();
        Self { path, _dir: dir }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The work directory of agents without a `workdir` of their own, beside this data directory.
pub fn work_dir_beside(data: &Path) -> PathBuf {
    data.with_file_name("work")
}
