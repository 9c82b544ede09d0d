//! Sign webhooks with HMAC-SHA256 and verify signatures.
//!
//! Webhooks that hooks send are signed, and messages that programs post to a webhook channel are verified
//! (docs/hooks.md, docs/channels/webhook.md).

use std::fmt;

use quell_scope::clock::Clock;
use reqwest::RequestBuilder;
use reqwest::header::CONTENT_TYPE;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};

/// The header with the name of the event.
const EVENT_HEADER: &str = "quell-event";
/// The header with the id of the event.
const DELIVERY_ID_HEADER: &str = "quell-delivery";
/// The header with the time of sending, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "quell-timestamp";
/// The header with `v1=` and the HMAC-SHA256, hexadecimal, of the timestamp, a dot and the body.
pub const SIGNATURE_HEADER: &str = "quell-signature";

/// Signs and verifies. It never shows the secret.
#[derive(Clone)]
pub struct WebhookSigner(hmac::Key);

impl WebhookSigner {
    /// `secret` is shared with the other side.
    pub fn new(secret: &SecretString) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes()))
    }

    /// Adds an event with its id to a request, signed with the current time. Two deliveries with one id are the same
    /// event.
    pub fn sign_request(&self, request: RequestBuilder, event: &str, id: &str, body: String) -> RequestBuilder {
        let timestamp = Clock::wall_seconds().to_string();
        request
            .header(CONTENT_TYPE, "application/json")
            .header(EVENT_HEADER, event)
            .header(DELIVERY_ID_HEADER, id)
            .header(SIGNATURE_HEADER, self.sign(&timestamp, body.as_bytes()))
            .header(TIMESTAMP_HEADER, timestamp)
            .body(body)
    }

    /// Verifies a signature in constant time, so that timing does not show how much of a wrong one is right.
    #[must_use]
    pub fn verify(&self, signature: &str, timestamp: &str, body: &[u8]) -> bool {
        let Some(tag) = signature.strip_prefix("v1=").and_then(decode_hex) else { return false };
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

impl fmt::Debug for WebhookSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSigner")
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value was computed with `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 'a secret of
    /// sixteen'`.
    #[test]
    fn a_signature_is_what_other_programs_make_of_the_same_secret() {
        let signer = WebhookSigner::new(&"a secret of sixteen".to_owned().into());
        let expected = "v1=fbd8ce753f0c0643c2d4fef4959c30b175367059e6f5453bddeb7b24a3d1ae24";
        let (timestamp, body) = ("1700000000", br#"{"a":1}"#);
        assert_eq!(signer.sign(timestamp, body), expected);
        assert!(signer.verify(expected, timestamp, body));
        assert!(signer.verify(&expected.to_uppercase().replace("V1", "v1"), timestamp, body));
        for wrong in
            ["", "v1=", "v1=zz", "v1=0", &expected[3..], &expected[..expected.len() - 2], &expected.replace("v1", "v2")]
        {
            assert!(!signer.verify(wrong, timestamp, body), "{wrong}");
        }
        assert!(!signer.verify(expected, "1700000001", body));
        assert!(!signer.verify(expected, timestamp, br#"{"a":2}"#));
    }

    #[test]
    fn a_signature_is_verified_with_the_same_secret() {
        let signer = WebhookSigner::new(&"a secret of sixteen".to_owned().into());
        let _ = rustls::crypto::ring::default_provider().install_default();
        #[expect(clippy::disallowed_methods, reason = "this request is never sent")]
        let request = reqwest::Client::new().post("http://127.0.0.1:9/");
        let signed = signer.sign_request(request, "ping", "d1", "{}".to_owned()).build().unwrap();
        let header = |name: &str| signed.headers()[name].to_str().unwrap();
        assert_eq!(
            (header(EVENT_HEADER), header(DELIVERY_ID_HEADER), header("content-type")),
            ("ping", "d1", "application/json")
        );
        assert!(signer.verify(
            header(SIGNATURE_HEADER),
            header(TIMESTAMP_HEADER),
            signed.body().unwrap().as_bytes().unwrap()
        ));
        assert!(!format!("{signer:?}").contains("secret"));
    }
}
