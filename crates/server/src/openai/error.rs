//! Errors in OpenAI's form: `{"error": {message, type, param, code}}`, with the codes that its clients branch on.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::{ProblemFacts, ProblemResponse};
use crate::model_api_errors::{keep_headers, set_should_retry};

/// The response in OpenAI's form, if it is a problem.
pub(crate) fn translate_response(response: Response) -> Response {
    let Some(facts) = response.extensions().get::<ProblemFacts>().cloned() else { return response };
    let status = StatusCode::from_u16(facts.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut translated = (status, Json(error_body(&facts))).into_response();
    keep_headers(response.headers(), translated.headers_mut());
    set_should_retry(&facts.problem.code, translated.headers_mut());
    translated.extensions_mut().insert(facts);
    translated
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
        (_, "insufficient_quota" | "storage_limit") => "insufficient_quota",
        (401, _) => "authentication_error",
        (403, _) => "permission_error",
        (429, _) => "rate_limit_error",
        (400..500, _) => "invalid_request_error",
        _ => "server_error",
    };
    (kind, code.to_owned())
}
