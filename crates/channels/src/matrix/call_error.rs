//! Errors of API calls and their conversion into listen and send errors.

use std::time::Duration;

use quell_protocol::display_text::replace_controls;
use reqwest::StatusCode;
use serde::Deserialize;

use crate::network::{ListenError, SendError};
use crate::wire::http_client::{HttpResponse, NoHttpResponse, Repeatable};

/// Pause after a rate limit without a given time.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Longest pause that a server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(15 * 60);
/// Characters of a server's error text that are shown.
const MAX_SHOWN_CHARS: usize = 300;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MatrixCallError {
    #[error(transparent)]
    NoResponse(#[from] NoHttpResponse),
    /// The server rejects the account or its token.
    #[error("{0}")]
    AccountRejected(String),
    #[error("the homeserver was asked too often; again in {} s", .0.as_secs())]
    RateLimited(Duration),
    /// The server understood the call and refused it.
    #[error("the homeserver refuses: {code}: {why}")]
    Refused { code: String, why: String },
    /// The server failed; the call may have had an effect.
    #[error("the homeserver failed: {0}")]
    ServerError(String),
    /// The response is not from a homeserver or is not valid.
    #[error("not an answer of a homeserver: {0}")]
    InvalidResponse(String),
}

/// The body of an error (client-server API: standard error response).
#[derive(Debug, Deserialize)]
struct MatrixErrorBody {
    errcode: String,
    #[serde(default)]
    error: String,
    /// For `M_LIMIT_EXCEEDED`, from servers that do not send the header yet.
    retry_after_ms: Option<u64>,
}

impl MatrixCallError {
    /// The error in a response; none for a success. `token_source` says where the access token was read from.
    pub(super) fn from_response(response: &HttpResponse, token_source: &str) -> Option<Self> {
        if response.status.is_success() {
            return None;
        }
        let Ok(body) = serde_json::from_slice::<MatrixErrorBody>(&response.body) else {
            let after = response.retry_after().map(clamp_retry_after);
            let is_limit = response.status == StatusCode::TOO_MANY_REQUESTS;
            return Some(if is_limit {
                Self::RateLimited(after.unwrap_or(DEFAULT_RETRY_AFTER))
            } else {
                Self::InvalidResponse(response.describe())
            });
        };
        let shown = |text: &str| replace_controls(text, MAX_SHOWN_CHARS);
        let (code, why) = (shown(&body.errcode), shown(&body.error));
        Some(match (body.errcode.as_str(), response.status) {
            ("M_LIMIT_EXCEEDED", _) | (_, StatusCode::TOO_MANY_REQUESTS) => {
                let retry_after = response.retry_after().or_else(|| body.retry_after_ms.map(Duration::from_millis));
                Self::RateLimited(retry_after.map_or(DEFAULT_RETRY_AFTER, clamp_retry_after))
            }
            ("M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN", _) => Self::AccountRejected(format!(
                "the homeserver does not take the access token ({code}): log in again and put the new token into {token_source}"
            )),
            ("M_USER_DEACTIVATED" | "M_USER_LOCKED" | "M_USER_SUSPENDED", _) => {
                Self::AccountRejected(format!("the homeserver has locked the account ({code}): {why}"))
            }
            (_, status) if status.is_server_error() => Self::ServerError(format!("{code}: {why}")),
            _ => Self::Refused { code, why },
        })
    }

    pub(super) fn into_listen_error(self) -> ListenError {
        match self {
            Self::NoResponse(_) | Self::ServerError(_) | Self::InvalidResponse(_) => {
                ListenError::Connection(self.to_string())
            }
            Self::RateLimited(after) => {
                ListenError::Busy { why: "the homeserver was asked too often".to_owned(), after }
            }
            Self::AccountRejected(why) => ListenError::Refused(why),
            Self::Refused { .. } => ListenError::Refused(self.to_string()),
        }
    }

    pub(super) fn into_send_error(self, repeatable: Repeatable) -> SendError {
        let why = self.to_string();
        match self {
            Self::NoResponse(no_response) => no_response.into_send_error(repeatable),
            Self::RateLimited(after) => SendError::NotDelivered { why, retry_after: Some(after) },
            Self::AccountRejected(_) | Self::Refused { .. } => SendError::Refused { why },
            // A proxy that lost its homeserver may answer like this after the homeserver has acted.
            Self::ServerError(_) | Self::InvalidResponse(_) => {
                SendError::Unknown { why, is_repeatable: repeatable == Repeatable::Yes }
            }
        }
    }

    pub(super) fn has_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == wanted)
    }
}

fn clamp_retry_after(pause: Duration) -> Duration {
    pause.min(MAX_RETRY_AFTER)
}
