//! Encrypt and decrypt the keys that sessions bring along, with a key file of the data directory.
//!
//! So the database and its backups hold no key in plain text. Only the owner may read the key file. It is created when
//! it is first needed.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use quell_bus::ClusterSecret;
use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};

use crate::sealing::{open_for, seal_for};

const KEY_FILE_NAME: &str = "session.key";
/// Length of the key file in bytes: the key of ChaCha20-Poly1305 (RFC 8439).
const KEY_BYTES: usize = 32;

#[derive(Clone)]
pub(super) struct SessionKeyStore {
    file: PathBuf,
    /// Derived from the secret of the cluster, the newest first. The key file is then of no use.
    cluster_keys: Vec<[u8; KEY_BYTES]>,
}

impl std::fmt::Debug for SessionKeyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionKeyStore({})", self.file.display())
    }
}

/// What the keys that are derived from the secret of a cluster are for.
const CLUSTER_KEY_PURPOSE: &str = "keys of sessions";

impl SessionKeyStore {
    /// The key store of a data directory. Nothing is read or written yet.
    pub(super) fn in_data_dir(data_dir: &Path) -> Self {
        Self { file: data_dir.join(KEY_FILE_NAME), cluster_keys: Vec::new() }
    }

    /// The key store of a node: what one node encrypts, the others decrypt.
    pub(super) fn of_cluster(data_dir: &Path, secret: &ClusterSecret) -> Self {
        Self { cluster_keys: secret.derived_keys(CLUSTER_KEY_PURPOSE), ..Self::in_data_dir(data_dir) }
    }

    fn cluster_keys(&self) -> impl Iterator<Item = LessSafeKey> {
        let keys = self.cluster_keys.iter().filter_map(|key| UnboundKey::new(&CHACHA20_POLY1305, key).ok());
        keys.map(LessSafeKey::new)
    }

    /// Encrypts a text for one owner: it cannot be decrypted for another.
    ///
    /// # Errors
    /// Why the key file can neither be read nor created.
    pub(super) fn seal(&self, owner: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let key = match self.cluster_keys().next() {
            Some(key) => key,
            None => match self.read_key()? {
                Some(key) => key,
                None => self.create_key()?,
            },
        };
        seal_for(owner, &key, plain)
    }

    /// Decrypts what was encrypted for this owner.
    ///
    /// # Errors
    /// Why it cannot be decrypted, and what to do.
    pub(super) fn open(&self, owner: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let file = self.file.display();
        let undecryptable = || format!("its keys do not open with {file}; give them again with POST /api/sessions");
        let open = |key: LessSafeKey| open_for(owner, &key, sealed);
        if let Some(plain) = self.cluster_keys().find_map(open) {
            return Ok(plain);
        }
        // Encrypted by this daemon before it was a node.
        open(self.read_key()?.ok_or_else(undecryptable)?).ok_or_else(undecryptable)
    }

    fn read_key(&self) -> Result<Option<LessSafeKey>, String> {
        match fs::read(&self.file) {
            Ok(bytes) => self.parse_key(&bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{} cannot be read: {error}", self.file.display())),
        }
    }

    /// Creates the key file. If several callers do so at once, all use the first one.
    fn create_key(&self) -> Result<LessSafeKey, String> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| format!("the system gives no random numbers: {error}"))?;
        // Written completely under another name first, so that no reader sees a partial key.
        let new = self.file.with_extension(format!("new-{}", uuid::Uuid::now_v7()));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        let linked = written.and_then(|()| match fs::hard_link(&new, &self.file) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        });
        // The link or another key is in place; this file is not needed.
        let _ = fs::remove_file(&new);
        linked.map_err(|error| format!("{} cannot be created: {error}", self.file.display()))?;
        self.read_key()?.ok_or_else(|| format!("{} is missing after its creation", self.file.display()))
    }

    fn parse_key(&self, bytes: &[u8]) -> Result<LessSafeKey, String> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).map_err(|_| {
            let file = self.file.display();
            format!("{file} is no key: it has {} bytes in place of {KEY_BYTES}; put the right file back", bytes.len())
        });
        key.map(LessSafeKey::new)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sealed_keys_open_only_for_their_owner_and_with_their_key() {
        let dir = tempfile::tempdir().unwrap();
        let key_store = SessionKeyStore::in_data_dir(dir.path());
        let sealed = key_store.seal("ann", b"sk-1").unwrap();
        assert!(!sealed.windows(4).any(|part| part == b"sk-1"));
        assert_eq!(key_store.open("ann", &sealed).unwrap(), b"sk-1");
        assert!(key_store.open("bob", &sealed).unwrap_err().contains("give them again"));
        assert!(key_store.open("ann", &sealed[..5]).is_err());
        let mode = fs::metadata(dir.path().join(KEY_FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        let other = SessionKeyStore::in_data_dir(other.path());
        assert!(other.open("ann", &sealed).unwrap_err().contains("do not open"));
        other.seal("ann", b"x").unwrap();
        assert!(other.open("ann", &sealed).is_err());
    }

    #[test]
    fn nodes_of_a_cluster_open_what_another_one_has_sealed() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = ClusterSecret::parse("an old key of this cluster, 32 characters").unwrap();
        let both = "a new key of this cluster, 32 characters\nan old key of this cluster, 32 characters";
        let both = ClusterSecret::parse(both).unwrap();
        let sealed = SessionKeyStore::of_cluster(one.path(), &old).seal("ann", b"sk-1").unwrap();
        assert_eq!(SessionKeyStore::of_cluster(other.path(), &both).open("ann", &sealed).unwrap(), b"sk-1");
        assert!(SessionKeyStore::in_data_dir(other.path()).open("ann", &sealed).is_err());
        let alone = SessionKeyStore::in_data_dir(one.path()).seal("ann", b"sk-2").unwrap();
        assert_eq!(SessionKeyStore::of_cluster(one.path(), &old).open("ann", &alone).unwrap(), b"sk-2");
    }

    #[test]
    fn a_file_that_is_no_key_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE_NAME), "short").unwrap();
        assert!(SessionKeyStore::in_data_dir(dir.path()).seal("ann", b"x").unwrap_err().contains("5 bytes"));
        assert_eq!(fs::read(dir.path().join(KEY_FILE_NAME)).unwrap(), b"short");
    }
}
