//! The secret of a cluster, and the keys that are derived from it.

use std::fmt;

use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

const MIN_KEY_CHARS: usize = 32;
/// Separates these keys from those that another program derives from the same secret.
const SALT: &[u8] = b"quell cluster secret v1";

/// The keys of a cluster, the same on all its nodes. The first one signs, and each of them is accepted.
///
/// To change the key without an interruption: add the new one as second line on each node, then move it to the first
/// line on each node, then remove the old one.
#[derive(Clone)]
pub struct ClusterSecret {
    keys: Vec<SecretString>,
}

/// Why a text contains no secret of a cluster. No variant contains a part of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error(
        "there is no key: write one line with at least {MIN_KEY_CHARS} random characters, such as the output of `openssl rand -base64 32`"
    )]
    NoKey,
    #[error(
        "the key in line {line} has {chars} characters, and it needs at least {MIN_KEY_CHARS}: replace it by the output of \
         `openssl rand -base64 32`"
    )]
    TooShort { line: usize, chars: usize },
    #[error("the key in line {line} contains a control character: write it as text, such as base64")]
    ControlCharacter { line: usize },
    #[error("line {line} repeats the key of line {first}: remove one of them")]
    Repeated { line: usize, first: usize },
}

impl ClusterSecret {
    /// Reads the content of a file or the output of a command: one key per line, as the text that it is. Empty lines and
    /// lines that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let mut keys: Vec<(usize, &str)> = Vec::new();
        for (line, key) in (1..).zip(text.lines().map(str::trim)) {
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if key.chars().any(char::is_control) {
                return Err(SecretError::ControlCharacter { line });
            }
            let chars = key.chars().count();
            if chars < MIN_KEY_CHARS {
                return Err(SecretError::TooShort { line, chars });
            }
            if let Some((first, _)) = keys.iter().find(|(_, known)| *known == key) {
                return Err(SecretError::Repeated { line, first: *first });
            }
            keys.push((line, key));
        }
        if keys.is_empty() {
            return Err(SecretError::NoKey);
        }
        Ok(Self { keys: keys.into_iter().map(|(_, key)| SecretString::from(key)).collect() })
    }

    /// One key for each key of the secret, the one that signs first. Different purposes have independent keys
    /// (HKDF-SHA256).
    pub fn derived_keys(&self, purpose: &str) -> Vec<[u8; 32]> {
        self.keys.iter().map(|key| derive(key, purpose)).collect()
    }
}

/// Which keys a node has, without showing them: 8 bytes derived from each, in hex, the one that signs first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyFingerprints(Vec<String>);

impl KeyFingerprints {
    pub fn of(secret: &ClusterSecret) -> Self {
        let hex = |key: &[u8; 32]| key[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self(secret.derived_keys("fingerprint").iter().map(hex).collect())
    }

    /// True if two nodes with these keys understand each other: each has the key with which the other one signs. A node
    /// that does not tell its keys is assumed to have them.
    #[must_use]
    pub fn agree_with(&self, other: &Self) -> bool {
        let accepts = |keys: &Self, signer: Option<&String>| signer.is_none_or(|signer| keys.0.contains(signer));
        self.0.is_empty() || other.0.is_empty() || accepts(self, other.0.first()) && accepts(other, self.0.first())
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSecret").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

fn derive(key: &SecretString, purpose: &str) -> [u8; 32] {
    let mut derived = [0; 32];
    let extracted = Salt::new(HKDF_SHA256, SALT).extract(key.expose_secret().as_bytes());
    let filled = extracted.expand(&[purpose.as_bytes()], KeyLength).and_then(|output| output.fill(&mut derived));
    #[expect(clippy::expect_used, reason = "HKDF-SHA256 refuses only outputs above 8160 bytes")]
    filled.expect("32 bytes");
    derived
}

struct KeyLength;

impl KeyType for KeyLength {
    fn len(&self) -> usize {
        32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0123456789abcdef0123456789abcdef";
    const SECOND: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    fn parse_error(text: &str) -> SecretError {
        ClusterSecret::parse(text).unwrap_err()
    }

    #[test]
    fn nodes_understand_each_other_if_each_has_the_key_of_the_other() {
        let fingerprints = |text: &str| KeyFingerprints::of(&ClusterSecret::parse(text).unwrap());
        let (first, second) = (fingerprints(FIRST), fingerprints(SECOND));
        let (added, moved) = (fingerprints(&format!("{FIRST}\n{SECOND}")), fingerprints(&format!("{SECOND}\n{FIRST}")));
        assert!(first.agree_with(&first) && !first.agree_with(&second));
        assert!(added.agree_with(&first) && added.agree_with(&moved) && moved.agree_with(&second));
        assert!(!moved.agree_with(&first), "the old node does not have the key that signs now");
        assert!(first.agree_with(&KeyFingerprints::default()), "a node of an older version tells nothing");
        let json = serde_json::to_string(&added).unwrap();
        assert!(!json.contains(&FIRST[..8]), "{json}");
    }

    #[test]
    fn keys_are_lines_and_comments_are_skipped() {
        let text = format!("# made in May\r\n\r\n  {FIRST}\r\n#{SECOND}\n\t{SECOND}\n");
        let secret = ClusterSecret::parse(&text).unwrap();
        let alone = |key| ClusterSecret::parse(key).unwrap().derived_keys("letters")[0];
        assert_eq!(secret.derived_keys("letters"), [alone(FIRST), alone(SECOND)]);
        assert!(ClusterSecret::parse(&"ä".repeat(32)).is_ok());
    }

    #[test]
    fn unusable_keys_are_refused_with_their_line() {
        assert_eq!(parse_error(""), SecretError::NoKey);
        assert_eq!(parse_error("# only a comment\n"), SecretError::NoKey);
        assert_eq!(parse_error(&format!("{FIRST}\n{}", "ä".repeat(31))), SecretError::TooShort { line: 2, chars: 31 });
        assert_eq!(parse_error(&format!("{FIRST}\0")), SecretError::ControlCharacter { line: 1 });
        assert_eq!(parse_error(&format!("#\n{FIRST}\n{SECOND}\n{FIRST}")), SecretError::Repeated { line: 4, first: 2 });
    }

    #[test]
    fn purposes_and_secrets_have_different_keys() {
        let [first, second] = [FIRST, SECOND].map(|key| ClusterSecret::parse(key).unwrap());
        assert_ne!(first.derived_keys("a"), first.derived_keys("b"));
        assert_ne!(first.derived_keys("a"), second.derived_keys("a"));
        assert_eq!(first.derived_keys("a"), ClusterSecret::parse(FIRST).unwrap().derived_keys("a"));
    }

    #[test]
    fn derived_keys_stay_the_same_in_later_versions() {
        let secret = ClusterSecret::parse(FIRST).unwrap();
        // Computed with Python: HMAC-SHA256 of extract and expand, RFC 5869.
        let expected = "8eec86038e828e3ea83d09ca3534cc4ba4ad62bd2f891dc3e421386efd1e9d3d";
        let hex: String = secret.derived_keys("letters")[0].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn neither_debug_text_nor_errors_contain_a_key() {
        let secret = ClusterSecret::parse(FIRST).unwrap();
        assert_eq!(format!("{secret:?}"), "ClusterSecret { keys: 1, .. }");
        let error = parse_error(&format!("{FIRST}\n{FIRST}"));
        assert!(!format!("{error:?} {error}").contains(FIRST));
    }
}
