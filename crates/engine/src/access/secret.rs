//! Generates secrets and hashes them. Only hashes are stored.

use std::fmt::Write;

use quell_bus::ClusterSecret;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::AccessError;

/// SHA-256 of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct SecretDigest([u8; 32]);

impl SecretDigest {
    pub(super) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    pub(super) fn constant_time_eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub(super) fn hex(&self) -> String {
        encode_hex(&self.0)
    }

    /// The first 4 bytes in hex: enough to tell a few digests apart, far too little to guess the secret.
    pub(super) fn short_hex(&self) -> String {
        encode_hex(&self.0[..4])
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretDigest")
    }
}

/// A new token: 256 random bits with a prefix that scanners for leaked secrets can recognise.
pub(super) fn new_token() -> Result<SecretString, AccessError> {
    Ok(format!("quell_{}", random_hex()?).into())
}

/// The admin token that all nodes of a cluster create, so that each of them accepts it.
pub(super) fn cluster_token(cluster_secret: &ClusterSecret) -> Result<SecretString, AccessError> {
    let key = cluster_secret.derived_keys("admin token").into_iter().next();
    let key = key.ok_or_else(|| AccessError::NoRandomness("the secret of the cluster is empty".to_owned()))?;
    Ok(format!("quell_{}", encode_hex(&key)).into())
}

/// 256 random bits in hex, which fit into a link and a cookie.
pub(super) fn new_secret() -> Result<SecretString, AccessError> {
    Ok(random_hex()?.into())
}

fn random_hex() -> Result<String, AccessError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| AccessError::NoRandomness(error.to_string()))?;
    Ok(encode_hex(&bytes))
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
