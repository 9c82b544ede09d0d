//! An unlinked temporary file for exports and backups, read in chunks by the caller.
//!
//! Nobody has to remove it, and a slow reader delays neither the database's log nor its threads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// There is one writer, so one name is enough. The next writer removes the file of a daemon that died.
const TEMP_FILE_NAME: &str = "quell.spool";

const CHUNK_BYTES: u64 = 256 * 1024;

/// A complete file without a name. Clones share it.
#[derive(Debug, Clone)]
pub struct TempFile {
    file: Arc<File>,
    length: u64,
}

impl TempFile {
    /// Makes a file that is not on a disk.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn in_memory(content: &[u8]) -> io::Result<Self> {
        let mut file = File::from(rustix::fs::memfd_create("quell-export", rustix::fs::MemfdFlags::CLOEXEC)?);
        io::Write::write_all(&mut file, content)?;
        Ok(Self { length: content.len() as u64, file: Arc::new(file) })
    }

    /// In bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the next chunk from offset `at`; an empty one at the end of the file.
    pub(crate) fn read_chunk(&self, at: u64) -> io::Result<Vec<u8>> {
        let length = self.length.saturating_sub(at).min(CHUNK_BYTES);
        let mut chunk = vec![0; usize::try_from(length).unwrap_or_default()];
        self.file.read_exact_at(&mut chunk, at)?;
        Ok(chunk)
    }
}

/// The file while it is written, still with its name.
pub(crate) struct TempFileWriter {
    path: PathBuf,
    file: File,
}

impl TempFileWriter {
    /// Creates an empty file with mode 600 in the directory.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(TEMP_FILE_NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file as written so far; it loses its name when the writer is dropped.
    pub(crate) fn finish(&self) -> io::Result<TempFile> {
        Ok(TempFile { length: self.file.metadata()?.len(), file: Arc::new(self.file.try_clone()?) })
    }
}

impl Drop for TempFileWriter {
    fn drop(&mut self) {
        // If it stays, the next writer removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}
