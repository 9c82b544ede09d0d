//! What is read out of the database in one go and handed out slowly: a file that has no name any more, so that nobody has to
//! remove it, and whoever reads it at their leisure holds up neither the log of the database nor its threads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Store, StoreError};

/// Where it is written. There is one writer, so one name is enough; a daemon that died in between leaves it to the next.
const NAME: &str = "quell.spool";

/// Bytes of a piece.
const PIECE: u64 = 256 * 1024;

/// A finished spool. Clones are the same.
#[derive(Debug, Clone)]
pub struct Spool {
    file: Arc<File>,
    length: u64,
}

impl Spool {
    /// How many bytes it has.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    fn piece(&self, at: u64) -> io::Result<Vec<u8>> {
        let left = self.length.saturating_sub(at).min(PIECE);
        let mut piece = vec![0; usize::try_from(left).unwrap_or_default()];
        self.file.read_exact_at(&mut piece, at)?;
        Ok(piece)
    }
}

/// A spool that is being written.
pub(super) struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    /// An empty one on this ground, that only its owner may read.
    pub(super) fn new(ground: &Path) -> io::Result<Self> {
        let path = ground.join(NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// What was written so far, without a name from now on.
    pub(super) fn finish(&self) -> io::Result<Spool> {
        Ok(Spool { length: self.file.metadata()?.len(), file: Arc::new(self.file.try_clone()?) })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // One that stays is removed by the next draft.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Store {
    /// The bytes of a spool from `at` on, as many as are handed out at a time; none at its end.
    ///
    /// # Errors
    /// [`StoreError`] when the disk refuses.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn piece(&self, spool: Spool, at: u64) -> Result<Vec<u8>, StoreError> {
        self.read_raw(move |_| spool.piece(at).map_err(|error| StoreError::Unwritable(error.to_string()))).await
    }
}
