//! Errors in OpenAI's form: `{"error": {message, type, param, code}}`, with the codes that its clients branch on.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::{ProblemFacts, ProblemResponse};

/// OpenAI's clients and Anthropic's repeat a request by its status, unless this header says otherwise.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Gives every problem of these routes the form that OpenAI's clients read.
pub(super) async fn translate_problems(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let Some(facts) = response.extensions().get::<ProblemFacts>().cloned() else { return response };
    let mut translated = error_response(&facts);
    keep_headers(response.headers(), translated.headers_mut());
    translated
}

fn error_response(facts: &ProblemFacts) -> Response {
    let status = StatusCode::from_u16(facts.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(error_body(facts))).into_response();
    if let Some(should_retry) = should_retry(&facts.problem.code) {
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static(should_retry));
    }
    response.extensions_mut().insert(facts.clone());
    response
}

/// The body of an error, which is also an event of a stream.
pub(super) fn error_body(facts: &ProblemFacts) -> Value {
    let problem = &facts.problem;
    let (kind, code) = kind_and_code(&problem.code, problem.status);
    let message = problem.detail.as_ref().unwrap_or(&problem.title);
    json!({"error": {"message": message, "type": kind, "param": facts.field, "code": code}})
}

/// The body of the error that a client gets in a stream.
pub(super) fn problem_body(problem: &ProblemResponse) -> Value {
    error_body(&problem.facts())
}

/// OpenAI's type and code for one of our codes.
fn kind_and_code(code: &str, status: u16) -> (&'static str, String) {
    let code = match code {
        code if code == ErrorCode::Unauthorized.as_str() => "invalid_api_key",
        code if code == ErrorCode::TooManyRequests.as_str() || code == ErrorCode::ProviderRateLimit.as_str() => {
            "rate_limit_exceeded"
        }
        code if code == ErrorCode::SpendLimit.as_str() => "insufficient_quota",
        code => code,
    };
    let kind = match (status, code) {
        (_, "insufficient_quota") => "insufficient_quota",
        (401, _) => "authentication_error",
        (403, _) => "permission_error",
        (429, _) => "rate_limit_error",
        (400..500, _) => "invalid_request_error",
        _ => "server_error",
    };
    (kind, code.to_owned())
}

/// Whether a client may send the same request again; `None` where the status says so already.
fn should_retry(code: &str) -> Option<&'static str> {
    const FINAL: [ErrorCode; 4] = [ErrorCode::Held, ErrorCode::Stopped, ErrorCode::SpendLimit, ErrorCode::RunFailed];
    FINAL.iter().any(|known| known.as_str() == code).then_some("false")
}

fn keep_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for name in [header::RETRY_AFTER, header::WWW_AUTHENTICATE] {
        if let Some(value) = from.get(&name) {
            to.insert(name, value.clone());
        }
    }
}
