//! Why the server ends an open stream, for the client: its credential ended, or it may not read the run any more.

use quell_engine::access::CredentialRefusal;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    Credential(CredentialRefusal),
    /// The owner of the session has taken its sharing back.
    SharingWithdrawn,
}

impl StreamEnd {
    /// Stable word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Credential(CredentialRefusal::Unknown) => "signed_out",
            Self::Credential(CredentialRefusal::Expired { .. }) => "token_expired",
            Self::Credential(CredentialRefusal::Replaced { .. }) => "token_rotated",
            Self::Credential(CredentialRefusal::OtherApi { .. }) => "other_api",
            Self::SharingWithdrawn => "sharing_withdrawn",
        }
    }

    /// Text for people: at most 123 bytes, which is what a WebSocket close frame can hold.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Credential(CredentialRefusal::Unknown) => {
                "signed out: the token was revoked, or the browser has signed out"
            }
            Self::Credential(CredentialRefusal::Expired { .. }) => {
                "the token has expired; ask an admin for a new secret"
            }
            Self::Credential(CredentialRefusal::Replaced { .. }) => {
                "the token was rotated; connect with its new secret"
            }
            Self::Credential(CredentialRefusal::OtherApi { .. }) => "the token may not use this API",
            Self::SharingWithdrawn => "the session is not shared any more",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_fits_into_a_close_frame() {
        let principal = quell_protocol::Principal::parse("ci").unwrap();
        let (at, expired) = ("2026-01-01T00:00:00Z".to_owned(), principal.clone());
        for end in [
            StreamEnd::Credential(CredentialRefusal::Unknown),
            StreamEnd::Credential(CredentialRefusal::Expired { principal: expired, at: at.clone() }),
            StreamEnd::Credential(CredentialRefusal::Replaced { principal, at }),
            StreamEnd::SharingWithdrawn,
        ] {
            assert!(end.reason().len() <= 123, "{end:?}");
        }
    }
}
