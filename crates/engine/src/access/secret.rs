//! Secrets: how they are made, and their hashes, which are all that is kept of them.

use std::fmt::Write;

use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::AccessError;

/// SHA-256 of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Compares in a time that does not depend on where the first difference is.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub(super) fn hex(&self) -> String {
        hex(&self.0)
    }

    /// Its beginning: enough to tell a few apart, far too little to guess from.
    pub(super) fn short(&self) -> String {
        hex(&self.0[..4])
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

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}

/// A new token: 256 bits of chance behind a word by which scanners for leaked secrets can know it.
pub(super) fn token() -> Result<SecretString, AccessError> {
    Ok(format!("quell_{}", chance()?).into())
}

/// 256 bits of chance that fit into a link and a cookie.
pub(super) fn random() -> Result<SecretString, AccessError> {
    Ok(chance()?.into())
}

fn chance() -> Result<String, AccessError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| AccessError::NoChance(error.to_string()))?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
