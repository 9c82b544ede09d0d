//! One daemon per data directory: an advisory lock on a file, which the kernel gives back however the process ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StoreError;

const NAME: &str = "quell.lock";

/// The process that uses a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Its number, if it left it in the file.
    pub pid: Option<u32>,
}

/// The lock, held until dropped. The file stays, since removing it would let two daemons lock two files of that name.
#[derive(Debug)]
pub(super) struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock of a data directory, or says at once who has it.
    pub(super) fn take(directory: &Path) -> Result<Self, StoreError> {
        let path = path(directory);
        let refused = |error: std::io::Error| StoreError::file(&path, &error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(refused)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked(in_use(directory, &mut file))),
            Err(error) => return Err(refused(error.into())),
        }
        if let Err(error) = write_pid(&mut file) {
            // The lock holds without it.
            tracing::warn!(%error, path = %path.display(), "the number of this process cannot be written");
        }
        Ok(Self(file))
    }
}

/// The file of the lock.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// Who has the lock of a data directory; nothing is created or changed. The lock is asked for and given back at once.
pub(super) fn holder(directory: &Path) -> Result<Option<Holder>, StoreError> {
    let path = path(directory);
    let refused = |error: std::io::Error| StoreError::file(&path, &error);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error)),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => Ok(Some(Holder { pid: pid_in(&mut file) })),
        Err(error) => Err(refused(error.into())),
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // A pid that no longer holds the lock would mislead whoever looks; if it stays, the lock still tells the truth.
        let _ = self.0.set_len(0);
    }
}

/// In the room that the file has, as far as it goes: on a full disk what is given back is gone.
fn write_pid(file: &mut File) -> std::io::Result<()> {
    let line = format!("{}\n", std::process::id());
    file.rewind()?;
    let written = file.write_all(line.as_bytes());
    file.set_len(if written.is_ok() { line.len() as u64 } else { 0 })?;
    written
}

fn in_use(directory: &Path, file: &mut File) -> String {
    let pid = pid_in(file).map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!(
        "another quell{pid} uses the data directory {}; stop it, or give this one a directory of its own with QUELL_HOME",
        directory.display()
    )
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    // Bounded, because the file may be anything; an unreadable one only costs the message its pid.
    let _ = file.take(32).read_to_string(&mut text);
    text.trim().parse().ok()
}
