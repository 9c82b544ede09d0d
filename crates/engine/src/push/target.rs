//! Where notifications of a run go, and the check of what a client names.

use std::fmt;

use quell_net::{AddressPolicy, check_url, is_public};
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};
use url::Url;

/// The maximum length of an id, in bytes.
const MAX_ID_BYTES: usize = 128;
/// The maximum length of a URL, a token and credentials, in bytes.
const MAX_VALUE_BYTES: usize = 4096;

/// A receiver of the notifications of one run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushTarget {
    /// Unique among the targets of one client for one run.
    pub id: String,
    pub url: String,
    /// Sent with each notification, so that the receiver knows that it has asked for it.
    pub token: Option<String>,
    pub authentication: Option<PushAuthentication>,
}

/// The `Authorization` of the requests.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushAuthentication {
    /// Such as `Bearer`.
    pub scheme: String,
    pub credentials: Option<String>,
}

/// Why a target is refused, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the push target is refused: {0}")]
pub struct InvalidPushTarget(String);

impl InvalidPushTarget {
    pub(super) fn new(why: String) -> Self {
        Self(why)
    }
}

impl PushTarget {
    /// Checks everything that is known without a look-up of the host. Returns the URL.
    ///
    /// # Errors
    /// [`InvalidPushTarget`], which names no secret.
    pub fn check(&self, address_policy: AddressPolicy) -> Result<Url, InvalidPushTarget> {
        let refuse = |why: String| Err(InvalidPushTarget(why));
        if self.id.is_empty() || self.id.len() > MAX_ID_BYTES || self.id.chars().any(char::is_control) {
            return refuse(format!("its id must have 1 to {MAX_ID_BYTES} bytes and no control characters"));
        }
        if self.url.len() > MAX_VALUE_BYTES {
            return refuse(format!("its URL is longer than {MAX_VALUE_BYTES} bytes"));
        }
        let url = Url::parse(&self.url).map_err(|error| InvalidPushTarget(format!("its URL is no URL ({error})")))?;
        let is_allowed = match address_policy {
            AddressPolicy::PublicOnly => is_public,
            AddressPolicy::Any => |_| true,
        };
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("its URL must begin with https:// or http://".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("its URL must not hold a user or a password; use the authentication".to_owned());
        }
        check_url(&url, is_allowed).map_err(InvalidPushTarget)?;
        check_header_value("token", self.token.as_deref())?;
        if let Some(authentication) = &self.authentication {
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if authentication.scheme.is_empty() || !authentication.scheme.bytes().all(is_token) {
                return refuse("the scheme of its authentication must be one word, such as Bearer".to_owned());
            }
            check_header_value("scheme", Some(&authentication.scheme))?;
            check_header_value("credentials", authentication.credentials.as_deref())?;
        }
        Ok(url)
    }
}

fn check_header_value(name: &str, value: Option<&str>) -> Result<(), InvalidPushTarget> {
    match value {
        Some(value) if value.len() > MAX_VALUE_BYTES => {
            Err(InvalidPushTarget(format!("its {name} is longer than {MAX_VALUE_BYTES} bytes")))
        }
        Some(value) if HeaderValue::from_str(value).is_err() => {
            Err(InvalidPushTarget(format!("its {name} has characters that no HTTP header may have")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Without the secrets. A URL may hold one, too.
impl fmt::Debug for PushTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushTarget").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for PushAuthentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushAuthentication").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn target(url: &str) -> PushTarget {
        let authentication = PushAuthentication { scheme: "Bearer".into(), credentials: Some("hush".into()) };
        PushTarget {
            id: "1".into(),
            url: url.into(),
            token: Some("secret".into()),
            authentication: Some(authentication),
        }
    }

    fn with_scheme(scheme: &str) -> PushTarget {
        let authentication = Some(PushAuthentication { scheme: scheme.into(), credentials: None });
        PushTarget { authentication, ..target("https://example.org/") }
    }

    #[rstest]
    #[case::no_id(PushTarget { id: String::new(), ..target("https://example.org/") }, "its id")]
    #[case::no_url(target("example"), "no URL")]
    #[case::file(target("file:///etc/passwd"), "https://")]
    #[case::password(target("https://me:hush@example.org/"), "user or a password")]
    #[case::loopback(target("http://127.0.0.1/"), "may not be reached")]
    #[case::mapped(target("http://[::ffff:10.0.0.1]/"), "may not be reached")]
    #[case::decimal(target("http://2130706433/"), "may not be reached")]
    #[case::metadata(target("http://169.254.169.254/latest"), "may not be reached")]
    #[case::header(PushTarget { token: Some("hush\r\nX: y".into()), ..target("https://example.org/") }, "its token")]
    #[case::no_scheme(with_scheme(""), "one word")]
    #[case::two_words(with_scheme("Bearer hush"), "one word")]
    fn a_target_that_cannot_be_right_is_refused(#[case] target: PushTarget, #[case] says: &str) {
        let error = target.check(AddressPolicy::PublicOnly).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("hush"), "{error}");
    }

    #[test]
    fn public_targets_are_allowed_and_private_ones_by_policy() {
        target("https://example.org/x?y").check(AddressPolicy::PublicOnly).unwrap();
        target("http://127.0.0.1:8080/").check(AddressPolicy::Any).unwrap();
    }

    #[test]
    fn the_secrets_of_a_target_are_in_no_print() {
        let printed = format!("{:?}", target("https://example.org/token"));
        assert!(!printed.contains("hush") && !printed.contains("secret") && !printed.contains("token\""), "{printed}");
    }
}
