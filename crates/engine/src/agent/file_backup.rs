//! Keeps the files that the tools of a run change, through its [`RunControl`].

use quell_tools::{BackupFuture, ChangedFile, FileBackup};

use super::RunControl;

pub(super) struct RunFileBackup<'a>(pub(super) &'a dyn RunControl);

impl FileBackup for RunFileBackup<'_> {
    fn keep_files(&self, files: Vec<ChangedFile>) -> BackupFuture<'_> {
        self.0.keep_files(files)
    }
}
