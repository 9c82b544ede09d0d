//! Problems below `/v1/` in the form of the API that the client speaks, whatever has refused the request.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use quell_protocol::ErrorCode;

use crate::{anthropic, openai};

/// The libraries of both APIs repeat a request by its status, unless this header says otherwise.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What cannot succeed when it is sent again, or may have been carried out.
const FINAL: [ErrorCode; 6] = [
    ErrorCode::Held,
    ErrorCode::Stopped,
    ErrorCode::SpendLimit,
    ErrorCode::StorageLimit,
    ErrorCode::RunFailed,
    ErrorCode::NodeUnreachable,
];

pub(crate) async fn translate_problems(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if !path.starts_with("/v1/") {
        return next.run(request).await;
    }
    let is_anthropic = path.starts_with("/v1/messages") || anthropic::is_anthropic_client(request.headers());
    let response = next.run(request).await;
    if is_anthropic { anthropic::translate_response(response) } else { openai::translate_response(response) }
}

/// Tells clients not to repeat a request that cannot succeed.
pub(crate) fn set_should_retry(code: &str, headers: &mut HeaderMap) {
    if FINAL.iter().any(|known| known.as_str() == code) {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
}

/// Keeps the headers of a problem that clients read.
pub(crate) fn keep_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for name in [header::RETRY_AFTER, header::WWW_AUTHENTICATE] {
        if let Some(value) = from.get(&name) {
            to.insert(name, value.clone());
        }
    }
}
