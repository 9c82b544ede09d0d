//! The lock file of a data directory (`flock`), with the pid of its holder. The kernel releases the lock however the
//! process ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::StoreError;

const LOCK_FILE_NAME: &str = "quell.lock";

/// The process that uses a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder {
    /// `None` when the file does not contain it.
    pub pid: Option<u32>,
}

/// The lock, held until dropped. The file is never removed: otherwise two daemons could lock two files of the same
/// name.
#[derive(Debug)]
pub(crate) struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock of a data directory, or fails at once with the pid of its holder.
    pub(crate) fn acquire(directory: &Path) -> Result<Self, StoreError> {
        let path = lock_file_path(directory);
        let file_error = |error: std::io::Error| StoreError::from_io(&path, &error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(file_error)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked(in_use_message(directory, &mut file))),
            Err(error) => return Err(file_error(error.into())),
        }
        if let Err(error) = write_pid(&mut file) {
            // The lock holds without the pid.
            tracing::warn!(%error, path = %path.display(), "the pid of this process cannot be written to the lock file");
        }
        Ok(Self(file))
    }
}

/// Creates a data directory with mode 700, and its parents, unless it exists.
pub(crate) fn create_data_directory(path: &Path) -> Result<(), StoreError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|error| StoreError::from_io(path, &error))
}

pub(crate) fn lock_file_path(directory: &Path) -> PathBuf {
    directory.join(LOCK_FILE_NAME)
}

/// Finds the process that holds the lock of a data directory. Creates and changes nothing: takes a shared lock and
/// releases it at once.
///
/// # Errors
/// [`StoreError`] when the directory cannot be read.
pub fn find_running_daemon(directory: &Path) -> Result<Option<LockHolder>, StoreError> {
    let path = lock_file_path(directory);
    let file_error = |error: std::io::Error| StoreError::from_io(&path, &error);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error(error)),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => Ok(Some(LockHolder { pid: read_pid(&mut file) })),
        Err(error) => Err(file_error(error.into())),
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // A pid in an unlocked file would mislead people. If it stays, the lock itself still shows the truth.
        let _ = self.0.set_len(0);
    }
}

/// Overwrites the pid before it truncates: on a full disk, room that was given back could be lost.
fn write_pid(file: &mut File) -> std::io::Result<()> {
    let line = format!("{}\n", std::process::id());
    file.rewind()?;
    let written = file.write_all(line.as_bytes());
    file.set_len(if written.is_ok() { line.len() as u64 } else { 0 })?;
    written
}

fn in_use_message(directory: &Path, file: &mut File) -> String {
    let pid = read_pid(file).map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!(
        "another quell{pid} uses the data directory {}; stop it, or give this one a directory of its own with QUELL_HOME",
        directory.display()
    )
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    // Bounded, because the file can contain anything. Without a pid the message is only less precise.
    let _ = file.take(32).read_to_string(&mut text);
    text.trim().parse().ok()
}
