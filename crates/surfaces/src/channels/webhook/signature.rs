//! The signature of both directions: that of lifecycle hooks (docs/hooks.md), made with the secret of the channel.

use ring::hmac;
use secrecy::{ExposeSecret, SecretString};

/// Which event it is.
pub(super) const EVENT: &str = "quell-event";
/// Its id.
pub(super) const DELIVERY: &str = "quell-delivery";
/// When it was sent, in seconds since 1970.
pub(super) const TIMESTAMP: &str = "quell-timestamp";
/// `v1=` and the HMAC-SHA256, hexadecimal, of the timestamp, a dot and the body.
pub(super) const SIGNATURE: &str = "quell-signature";

/// A shorter secret can be found by trying, by whoever has seen one signature.
const SHORTEST: usize = 16;

/// Signs, and knows what was signed. It holds no secret that could be shown.
pub(super) struct Signer(hmac::Key);

impl Signer {
    pub(super) fn new(secret: &SecretString) -> Result<Self, String> {
        let secret = secret.expose_secret();
        if secret.len() < SHORTEST {
            return Err(format!(
                "the secret is too short; it needs {SHORTEST} characters, such as `openssl rand -hex 32` makes"
            ));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())))
    }

    pub(super) fn sign(&self, timestamp: &str, body: &[u8]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in [timestamp.as_bytes(), b".", body] {
            signing.update(part);
        }
        format!("v1={}", hex(signing.sign().as_ref()))
    }

    /// True for the right signature, in a time that tells nothing of how wrong another one is.
    pub(super) fn knows(&self, signature: &str, timestamp: &str, body: &[u8]) -> bool {
        let Some(tag) = signature.strip_prefix("v1=").and_then(unhex) else { return false };
        let signed = [timestamp.as_bytes(), b".", body].concat();
        hmac::verify(&self.0, &signed, &tag).is_ok()
    }
}

/// A short name for any text.
pub(super) fn digest(text: &str) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 0xf)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value was made with `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 'a secret of sixteen'`.
    #[test]
    fn a_signature_is_what_other_programs_make_of_the_same_secret() {
        let signer = Signer::new(&"a secret of sixteen".to_owned().into()).unwrap();
        let expected = "v1=fbd8ce753f0c0643c2d4fef4959c30b175367059e6f5453bddeb7b24a3d1ae24";
        let (timestamp, body) = ("1700000000", br#"{"a":1}"#);
        assert_eq!(signer.sign(timestamp, body), expected);
        assert!(signer.knows(expected, timestamp, body));
        assert!(signer.knows(&expected.to_uppercase().replace("V1", "v1"), timestamp, body));
        for wrong in
            ["", "v1=", "v1=zz", "v1=0", &expected[3..], &expected[..expected.len() - 2], &expected.replace("v1", "v2")]
        {
            assert!(!signer.knows(wrong, timestamp, body), "{wrong}");
        }
        assert!(!signer.knows(expected, "1700000001", body));
        assert!(!signer.knows(expected, timestamp, br#"{"a":2}"#));
    }
}
