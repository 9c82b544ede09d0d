//! Sign notifications with Ed25519, as Standard Webhooks has it (`v1a`), so that receivers need no secret.
//!
//! The key is derived from the secret of `[hooks]`: it is the same on all nodes of a cluster, and is stored nowhere.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::RequestBuilder;
use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::signature::{Ed25519KeyPair, KeyPair};
use secrecy::{ExposeSecret, SecretString};

/// What the derived keys are for. Another label gives another key: a change would invalidate what receivers know.
const SIGNATURE_LABEL: &[u8] = b"quell push notifications: ed25519";
const STORAGE_LABEL: &[u8] = b"quell push notifications: stored targets";

/// The headers of Standard Webhooks.
const ID_HEADER: &str = "webhook-id";
const TIMESTAMP_HEADER: &str = "webhook-timestamp";
const SIGNATURE_HEADER: &str = "webhook-signature";

pub struct PushSigner {
    key_pair: Ed25519KeyPair,
}

impl PushSigner {
    /// `None` if the library refuses the derived key, which it does for no secret.
    pub fn new(secret: &SecretString) -> Option<Self> {
        let seed = derive_key(secret, SIGNATURE_LABEL)?;
        Ed25519KeyPair::from_seed_unchecked(&seed).ok().map(|key_pair| Self { key_pair })
    }

    /// The key that receivers verify with (RFC 8032).
    #[must_use]
    pub fn public_key(&self) -> Option<[u8; 32]> {
        self.key_pair.public_key().as_ref().try_into().ok()
    }

    /// Adds the id, the time and the signature of both and the body. Two requests with one id are the same notification.
    pub(super) fn sign_request(
        &self,
        request: RequestBuilder,
        id: &str,
        unix_seconds: i64,
        body: &str,
    ) -> RequestBuilder {
        request
            .header(ID_HEADER, id)
            .header(TIMESTAMP_HEADER, unix_seconds)
            .header(SIGNATURE_HEADER, self.sign(id, unix_seconds, body))
    }

    fn sign(&self, id: &str, unix_seconds: i64, body: &str) -> String {
        let signature = self.key_pair.sign(format!("{id}.{unix_seconds}.{body}").as_bytes());
        format!("v1a,{}", BASE64_STANDARD.encode(signature))
    }
}

/// The key that stored targets are encrypted with.
pub(super) fn storage_key(secret: &SecretString) -> Option<LessSafeKey> {
    let key = derive_key(secret, STORAGE_LABEL)?;
    UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(LessSafeKey::new)
}

fn derive_key(secret: &SecretString, label: &[u8]) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    let extracted = Salt::new(HKDF_SHA256, &[]).extract(secret.expose_secret().as_bytes());
    extracted.expand(&[label], HKDF_SHA256).ok()?.fill(&mut key).ok()?;
    Some(key)
}

impl fmt::Debug for PushSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushSigner")
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    fn signer(secret: &str) -> PushSigner {
        PushSigner::new(&secret.to_owned().into()).unwrap()
    }

    #[test]
    fn a_signature_is_verified_with_the_public_key_alone() {
        let signer = signer("a secret of thirty-two characters");
        let signature = signer.sign("run:1:end", 1_700_000_000, r#"{"a":1}"#);
        let signature = BASE64_STANDARD.decode(signature.strip_prefix("v1a,").unwrap()).unwrap();
        let public_key = UnparsedPublicKey::new(&ED25519, signer.public_key().unwrap());
        public_key.verify(br#"run:1:end.1700000000.{"a":1}"#, &signature).unwrap();
        assert!(public_key.verify(br#"run:1:end.1700000001.{"a":1}"#, &signature).is_err());
        assert!(public_key.verify(br#"run:1:end.1700000000.{"a":2}"#, &signature).is_err());
    }

    /// The expected key was computed with Python: HMAC-SHA256 of extract and expand (RFC 5869), and the package
    /// `cryptography`.
    #[test]
    fn the_key_stays_the_same_in_later_versions() {
        let key = signer("a secret of thirty-two characters").public_key().unwrap();
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "c46e0ef0a373553ac0f26f7bf55d0bec4437ce2979e9fb41a3cff5b63e4fb244");
        assert_ne!(Some(key), signer("another secret of this length...").public_key());
    }
}
