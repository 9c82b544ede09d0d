//! Seals the keys that sessions bring along, so that the database and its backups hold none in the clear. The sealing key is a
//! file of the data directory that only its owner may read, made when it is needed first.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// The file in the data directory.
const FILE: &str = "session.key";
/// Its length in bytes: the key of ChaCha20-Poly1305 (RFC 8439).
const LENGTH: usize = 32;

/// Seals and opens.
#[derive(Debug, Clone)]
pub(super) struct Vault {
    file: PathBuf,
}

impl Vault {
    /// The vault of a data directory. Nothing is read or written yet.
    pub(super) fn of(data_dir: &Path) -> Self {
        Self { file: data_dir.join(FILE) }
    }

    /// Seals a text for one owner: what is sealed for one does not open for another.
    ///
    /// # Errors
    /// Why the key can be neither read nor made.
    pub(super) fn seal(&self, owner: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let key = match self.key()? {
            Some(key) => key,
            None => self.make_key()?,
        };
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|error| format!("the system gives no random numbers: {error}"))?;
        let mut sealed = plain.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(owner), &mut sealed)
            .map_err(|_| "it is too long to be sealed".to_owned())?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// Opens what was sealed for this owner.
    ///
    /// # Errors
    /// Why it does not open, and what to do.
    pub(super) fn open(&self, owner: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let file = self.file.display();
        let lost = || format!("its keys do not open with {file}; give them again with POST /api/sessions");
        let key = self.key()?.ok_or_else(lost)?;
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN).ok_or_else(lost)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| lost())?;
        let mut plain = sealed.to_vec();
        let length = key.open_in_place(nonce, Aad::from(owner), &mut plain).map_err(|_| lost())?.len();
        plain.truncate(length);
        Ok(plain)
    }

    fn key(&self) -> Result<Option<LessSafeKey>, String> {
        match fs::read(&self.file) {
            Ok(bytes) => self.of_bytes(&bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{} cannot be read: {error}", self.file.display())),
        }
    }

    /// Makes the file. Whoever was first has made it for all.
    fn make_key(&self) -> Result<LessSafeKey, String> {
        let mut bytes = [0; LENGTH];
        getrandom::fill(&mut bytes).map_err(|error| format!("the system gives no random numbers: {error}"))?;
        // Written whole under another name first, so that no reader finds a part of it.
        let new = self.file.with_extension(format!("new-{}", uuid::Uuid::now_v7()));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        let linked = written.and_then(|()| match fs::hard_link(&new, &self.file) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        });
        // What is left of it is no key of anything.
        let _ = fs::remove_file(&new);
        linked.map_err(|error| format!("{} cannot be made: {error}", self.file.display()))?;
        self.key()?.ok_or_else(|| format!("{} is not there after it was made", self.file.display()))
    }

    fn of_bytes(&self, bytes: &[u8]) -> Result<LessSafeKey, String> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).map_err(|_| {
            let file = self.file.display();
            format!("{file} is no key: it has {} bytes in place of {LENGTH}; put the right file back", bytes.len())
        });
        key.map(LessSafeKey::new)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_sealed_opens_for_its_owner_alone_and_with_its_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::of(dir.path());
        let sealed = vault.seal("ann", b"sk-1").unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"sk-1"));
        assert_eq!(vault.open("ann", &sealed).unwrap(), b"sk-1");
        assert!(vault.open("bob", &sealed).unwrap_err().contains("give them again"));
        assert!(vault.open("ann", &sealed[..5]).is_err());
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        let other = Vault::of(other.path());
        assert!(other.open("ann", &sealed).unwrap_err().contains("do not open"));
        other.seal("ann", b"x").unwrap();
        assert!(other.open("ann", &sealed).is_err());
    }

    #[test]
    fn a_file_that_is_no_key_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "short").unwrap();
        assert!(Vault::of(dir.path()).seal("ann", b"x").unwrap_err().contains("5 bytes"));
        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), b"short");
    }
}
