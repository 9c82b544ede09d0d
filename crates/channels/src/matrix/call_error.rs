//! Classify the error responses of a homeserver.

use std::time::Duration;

use quell_protocol::display_text::replace_controls;
use reqwest::StatusCode;
use serde::Deserialize;

use crate::wire::call_error::{CallError, DEFAULT_RETRY_AFTER};
use crate::wire::http_client::HttpResponse;

/// Longest pause that a server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(15 * 60);
/// Characters of a server's error text that are shown.
const MAX_SHOWN_CHARS: usize = 300;

/// The body of an error (client-server API: standard error response).
#[derive(Debug, Deserialize)]
struct MatrixErrorBody {
    errcode: String,
    #[serde(default)]
    error: String,
    /// For `M_LIMIT_EXCEEDED`, from servers that do not send the header yet.
    retry_after_ms: Option<u64>,
}

/// The error in a response; none for a success. `token_source` says where the access token was read from.
pub(super) fn response_error(response: &HttpResponse, token_source: &str) -> Option<CallError> {
    if response.status.is_success() {
        return None;
    }
    let Ok(body) = serde_json::from_slice::<MatrixErrorBody>(&response.body) else {
        let is_limit = response.status == StatusCode::TOO_MANY_REQUESTS;
        return Some(match is_limit {
            true => rate_limit_error(response.retry_after()),
            false => invalid_response(&response.describe()),
        });
    };
    let shown = |text: &str| replace_controls(text, MAX_SHOWN_CHARS);
    let (code, why) = (shown(&body.errcode), shown(&body.error));
    Some(match (body.errcode.as_str(), response.status) {
        ("M_LIMIT_EXCEEDED", _) | (_, StatusCode::TOO_MANY_REQUESTS) => {
            rate_limit_error(response.retry_after().or_else(|| body.retry_after_ms.map(Duration::from_millis)))
        }
        ("M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN", _) => CallError::AccountRejected(format!(
            "the homeserver does not take the access token ({code}): log in again and put the new token into {token_source}"
        )),
        ("M_USER_DEACTIVATED" | "M_USER_LOCKED" | "M_USER_SUSPENDED", _) => {
            CallError::AccountRejected(format!("the homeserver has locked the account ({code}): {why}"))
        }
        (_, status) if status.is_server_error() => {
            CallError::ServerError(format!("the homeserver failed: {code}: {why}"))
        }
        _ => CallError::Refused { why: format!("the homeserver refuses: {code}: {why}"), code },
    })
}

fn rate_limit_error(pause: Option<Duration>) -> CallError {
    let after = pause.map_or(DEFAULT_RETRY_AFTER, |pause| pause.min(MAX_RETRY_AFTER));
    CallError::RateLimited { why: "the homeserver was asked too often".to_owned(), after }
}

/// The error of a response that is not from a homeserver or is not valid.
pub(super) fn invalid_response(why: &str) -> CallError {
    CallError::InvalidResponse(format!("not an answer of a homeserver: {why}"))
}
