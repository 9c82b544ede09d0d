//! The signature of webhooks: made for each that is sent, and looked for on what programs post to a channel (docs/hooks.md,
//! docs/channels/webhook.md).

use std::fmt;

use reqwest::RequestBuilder;
use reqwest::header::CONTENT_TYPE;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};

use crate::clock::Clock;

/// The header that says which event it is.
const EVENT: &str = "quell-event";
/// The header with its id.
const DELIVERY: &str = "quell-delivery";
/// The header that says when it was sent, in seconds since 1970.
pub const TIMESTAMP: &str = "quell-timestamp";
/// The header with `v1=` and the HMAC-SHA256, hexadecimal, of the timestamp, a dot and the body.
pub const SIGNATURE: &str = "quell-signature";

/// Signs, and knows what was signed. It holds no secret that could be shown.
#[derive(Clone)]
pub struct Signer(hmac::Key);

impl Signer {
    /// With this secret, which the other side has, too.
    #[must_use]
    pub fn new(secret: &SecretString) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes()))
    }

    /// Puts an event, which is the same as another one with its id, into a request, signed now.
    pub fn seal(&self, request: RequestBuilder, (event, id): (&str, &str), body: String) -> RequestBuilder {
        let timestamp = Clock::wall_seconds().to_string();
        request
            .header(CONTENT_TYPE, "application/json")
            .header(EVENT, event)
            .header(DELIVERY, id)
            .header(SIGNATURE, self.sign(&timestamp, body.as_bytes()))
            .header(TIMESTAMP, timestamp)
            .body(body)
    }

    /// True for the right signature, in a time that tells nothing of how wrong another one is.
    #[must_use]
    pub fn knows(&self, signature: &str, timestamp: &str, body: &[u8]) -> bool {
        let Some(tag) = signature.strip_prefix("v1=").and_then(unhex) else { return false };
        let signed = [timestamp.as_bytes(), b".", body].concat();
        hmac::verify(&self.0, &signed, &tag).is_ok()
    }

    fn sign(&self, timestamp: &str, body: &[u8]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in [timestamp.as_bytes(), b".", body] {
            signing.update(part);
        }
        signing.sign().as_ref().iter().fold("v1=".to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value was made with `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 'a secret of sixteen'`.
    #[test]
    fn a_signature_is_what_other_programs_make_of_the_same_secret() {
        let signer = Signer::new(&"a secret of sixteen".to_owned().into());
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

    #[test]
    fn what_is_sealed_is_known_to_whoever_has_the_secret() {
        let signer = Signer::new(&"a secret of sixteen".to_owned().into());
        let _ = rustls::crypto::ring::default_provider().install_default();
        #[expect(clippy::disallowed_methods, reason = "this request is never sent")]
        let request = reqwest::Client::new().post("http://127.0.0.1:9/");
        let sealed = signer.seal(request, ("ping", "d1"), "{}".to_owned()).build().unwrap();
        let header = |name: &str| sealed.headers()[name].to_str().unwrap();
        assert_eq!((header(EVENT), header(DELIVERY), header("content-type")), ("ping", "d1", "application/json"));
        assert!(signer.knows(header(SIGNATURE), header(TIMESTAMP), sealed.body().unwrap().as_bytes().unwrap()));
        assert!(!format!("{signer:?}").contains("secret"));
    }
}
