//! Look at files that a run has changed, and put them back. Symlinks are never followed.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use quell_kernel::file_undo::CurrentFile;

use crate::atomic_write::AtomicWriteTarget;
use crate::confined_fs::{WorkdirRoot, path_error};
use crate::file_edit::sha256_hex;
use crate::file_tool::{FileToolContext, FileToolError, StopFlag, failed_call, read_at_most};
use crate::protected_paths::ProtectedPaths;
use rustix::io::Errno;

/// Larger files count as changed: no tool writes such a file.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// A file that a run has changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UndoPlace {
    pub workdir: PathBuf,
    /// Relative to the workdir, or absolute outside of it.
    pub path: PathBuf,
    /// The user that files of the agent get, if it is not that of the daemon.
    pub owner: Option<u32>,
}

/// What a file is put back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoredFile {
    Absent,
    Present {
        content: Vec<u8>,
        /// The permission bits.
        mode: u32,
    },
}

impl UndoPlace {
    /// What is there now. Blocking.
    pub fn current_file(&self, protected: &ProtectedPaths) -> CurrentFile {
        let not_stopped = AtomicBool::new(false);
        match self.read_current(protected, &StopFlag(&not_stopped)) {
            Ok(None) => CurrentFile::Absent,
            Ok(Some(sha256)) => CurrentFile::Present { sha256 },
            Err(FileToolError::Failed(reason)) => CurrentFile::Unreadable(reason),
            // Nothing raises the flag.
            Err(FileToolError::Cancelled) => CurrentFile::Unreadable("it was not read".to_owned()),
        }
    }

    /// Puts the file back if it still is what `expected` says. Blocking.
    ///
    /// # Errors
    /// Why the file was left as it is.
    pub fn restore(
        &self,
        expected: &CurrentFile,
        restored: &RestoredFile,
        protected: &ProtectedPaths,
    ) -> Result<(), String> {
        let not_stopped = AtomicBool::new(false);
        self.restore_unless_changed(expected, restored, protected, &StopFlag(&not_stopped)).map_err(|error| match error
        {
            FileToolError::Failed(problem) => problem,
            FileToolError::Cancelled => "it was not written".to_owned(),
        })
    }

    fn root(&self, protected: &ProtectedPaths) -> Result<WorkdirRoot, FileToolError> {
        let context = FileToolContext {
            unconfined: self.path.is_absolute(),
            follows_links: false,
            owner: self.owner,
            protected: protected.clone(),
            ..FileToolContext::confined(&self.workdir)
        };
        WorkdirRoot::open(&context)
    }

    fn read_current(&self, protected: &ProtectedPaths, stop: &StopFlag<'_>) -> Result<Option<String>, FileToolError> {
        let root = self.root(protected)?;
        match root.find_path(&self.path) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(path_error(&self.path, error)),
        }
        let opened = root.open_file(&self.path)?;
        let content = read_at_most(&opened.file, MAX_FILE_BYTES, stop)
            .map_err(|error| failed_call(format!("it cannot be read: {error}")))?;
        Ok(Some(if content.len() as u64 > MAX_FILE_BYTES { String::new() } else { sha256_hex(&content) }))
    }

    fn restore_unless_changed(
        &self,
        expected: &CurrentFile,
        restored: &RestoredFile,
        protected: &ProtectedPaths,
        stop: &StopFlag<'_>,
    ) -> Result<(), FileToolError> {
        let root = self.root(protected)?;
        let mut target = AtomicWriteTarget::resolve(&root, &self.path)?;
        let current = match self.read_current(protected, stop)? {
            None => CurrentFile::Absent,
            Some(sha256) => CurrentFile::Present { sha256 },
        };
        if current != *expected {
            return Err(failed_call("it changed meanwhile"));
        }
        match restored {
            RestoredFile::Absent if current == CurrentFile::Absent => Ok(()),
            RestoredFile::Absent => {
                target.check_unchanged()?;
                target.remove()
            }
            RestoredFile::Present { content, mode } => {
                target.set_mode(*mode);
                target.prepare(content, stop)?;
                target.check_unchanged()?;
                target.commit()
            }
        }
    }
}
