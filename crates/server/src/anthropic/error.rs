//! Errors in Anthropic's form: `{"type": "error", "error": {type, message}, "request_id"}`, with the types that its
//! clients branch on.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quell_protocol::ErrorCode;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::http::{ProblemFacts, ProblemResponse};
use crate::model_api_errors::{keep_headers, set_should_retry};

/// Anthropic's clients show it as the id of the request.
pub(super) const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("request-id");

/// The response in Anthropic's form, if it is a problem.
pub(crate) fn translate_response(response: Response) -> Response {
    let Some(facts) = response.extensions().get::<ProblemFacts>().cloned() else { return response };
    let status = StatusCode::from_u16(facts.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let id = format!("req_{}", Uuid::now_v7().simple());
    let mut translated = (status, Json(error_body(&facts, &id))).into_response();
    let headers = translated.headers_mut();
    keep_headers(response.headers(), headers);
    set_should_retry(&facts.problem.code, headers);
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID_HEADER, id);
    }
    translated.extensions_mut().insert(facts);
    translated
}

/// The event of a stream that ends with an error.
pub(super) fn error_event(problem: &ProblemResponse, request_id: &str) -> String {
    format!("event: error\ndata: {}\n\n", error_body(&problem.facts(), request_id))
}

fn error_body(facts: &ProblemFacts, request_id: &str) -> Value {
    let problem = &facts.problem;
    let kind = error_type(&problem.code, problem.status);
    let detail = problem.detail.as_ref().unwrap_or(&problem.title);
    json!({"type": "error", "error": {"type": kind, "message": message(facts, detail)}, "request_id": request_id})
}

/// The message begins with the field, in Anthropic's spelling: `messages.0.content`.
fn message(facts: &ProblemFacts, detail: &str) -> String {
    let Some(field) = &facts.field else { return detail.to_owned() };
    let spelt = field.replace(['[', ']'], ".").replace("..", ".");
    let detail = detail.strip_prefix(&format!("`{field}`: ")).unwrap_or(detail);
    format!("{}: {detail}", spelt.trim_end_matches('.'))
}

fn error_type(code: &str, status: u16) -> &'static str {
    match status {
        _ if code == ErrorCode::SpendLimit.as_str() => "billing_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem_response;

    fn body(problem: ProblemResponse) -> Value {
        error_body(&problem.facts(), "req_1")
    }

    #[test]
    fn an_error_names_the_field_as_anthropic_spells_it() {
        let problem = problem_response(ErrorCode::InvalidRequest, "`messages[2].content[0].type`: must be text");
        let error = json!({"type": "invalid_request_error", "message": "messages.2.content.0.type: must be text"});
        let expected = json!({"type": "error", "error": error, "request_id": "req_1"});
        assert_eq!(body(problem.field("messages[2].content[0].type")), expected);
    }

    #[test]
    fn every_code_has_a_type_that_clients_know() {
        let known = [
            "invalid_request_error",
            "authentication_error",
            "billing_error",
            "permission_error",
            "not_found_error",
            "request_too_large",
            "rate_limit_error",
            "api_error",
            "timeout_error",
            "overloaded_error",
        ];
        for code in ErrorCode::ALL {
            let seen = body(problem_response(*code, "x"));
            assert!(known.iter().any(|kind| seen["error"]["type"] == *kind), "{seen}");
        }
        assert_eq!(body(problem_response(ErrorCode::Unauthorized, "x"))["error"]["type"], "authentication_error");
        assert_eq!(body(problem_response(ErrorCode::ModelNotFound, "x"))["error"]["type"], "not_found_error");
    }
}
