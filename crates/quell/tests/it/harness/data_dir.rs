//! The data directory of a test, and where agents work beside it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A data directory of a test, gone with it. The workdirs of agents are beside it.
pub(crate) struct DataDir {
    path: PathBuf,
    _dir: TempDir,
}

impl DataDir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::create_dir(&path).unwrap();
        Self { path, _dir: dir }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Where agents work that name no workdir, beside this data directory.
pub(crate) fn work_of(data: &Path) -> PathBuf {
    data.with_file_name("work")
}
