//! Error responses as application/problem+json.

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use quell_kernel::api_key::KeyRefusal;
use quell_protocol::{BadId, ErrorCode, Problem};
use quell_store::StoreError;

use super::refusal_audit::ProblemDetail;

#[derive(Debug)]
pub(crate) struct ProblemResponse {
    problem: Box<Problem>,
    /// Seconds after which a retry makes sense.
    retry_after: Option<u64>,
    /// The field of the request that is wrong, where it is known.
    field: Option<String>,
}

/// The problem of an error response, in its extensions: model APIs have their own form for it.
#[derive(Debug, Clone)]
pub(crate) struct ProblemFacts {
    pub(crate) problem: Box<Problem>,
    pub(crate) field: Option<String>,
    /// Seconds.
    pub(crate) retry_after: Option<u64>,
}

impl ProblemResponse {
    /// For transports with error bodies of their own.
    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Names the field of the request that is wrong.
    pub(crate) fn field(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    pub(crate) fn facts(&self) -> ProblemFacts {
        ProblemFacts { problem: self.problem.clone(), field: self.field.clone(), retry_after: self.retry_after }
    }

    /// Sets the `Retry-After` header, in seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }
}

/// Creates an error response; `detail` says what happened and what to do.
pub(crate) fn problem_response(code: ErrorCode, detail: impl Into<String>) -> ProblemResponse {
    ProblemResponse { problem: Box::new(Problem::new(code, detail)), retry_after: None, field: None }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self.problem).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        if self.problem.code == ErrorCode::Unauthorized.as_str() {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let facts = self.facts();
        response.extensions_mut().insert(facts);
        if let Some(detail) = self.problem.detail {
            response.extensions_mut().insert(ProblemDetail(detail.into()));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<StoreError> for ProblemResponse {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::BadCursor => ErrorCode::InvalidRequest,
            StoreError::NameTaken(_) => ErrorCode::Conflict,
            _ => ErrorCode::StoreUnavailable,
        };
        if code == ErrorCode::StoreUnavailable {
            tracing::error!(%error, "the database refused a request");
        }
        problem_response(code, error.to_string())
    }
}

impl From<KeyRefusal> for ProblemResponse {
    fn from(refusal: KeyRefusal) -> Self {
        problem_response(ErrorCode::Forbidden, refusal.to_string())
    }
}

impl From<Problem> for ProblemResponse {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), retry_after: None, field: None }
    }
}

impl From<BadId> for ProblemResponse {
    fn from(error: BadId) -> Self {
        problem_response(ErrorCode::InvalidRequest, format!("the {error}"))
    }
}

pub(super) async fn route_not_found(uri: Uri) -> ProblemResponse {
    problem_response(ErrorCode::NotFound, format!("there is no route {}; /openapi.json lists them", uri.path()))
}

pub(super) async fn method_not_allowed(request: Request) -> ProblemResponse {
    problem_response(
        ErrorCode::MethodNotAllowed,
        format!("{} does not take {}; /openapi.json lists what it takes", request.uri().path(), request.method()),
    )
}

/// Rejects a malformed percent escape in the path with 400, so that it is not read as some other id.
pub(super) async fn reject_malformed_escapes(request: Request, next: Next) -> Response {
    if !escapes_are_well_formed(request.uri().path()) {
        return problem_response(
            ErrorCode::InvalidRequest,
            "the path holds a malformed percent escape; encode ids as UTF-8 with %XX",
        )
        .into_response();
    }
    next.run(request).await
}

fn escapes_are_well_formed(path: &str) -> bool {
    let has_hex_digits = path.split('%').skip(1).all(|rest| {
        let mut digits = rest.bytes().take(2);
        let hex = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
        hex(digits.next()) && hex(digits.next())
    });
    has_hex_digits && percent_encoding::percent_decode_str(path).decode_utf8().is_ok()
}

#[cfg(test)]
mod tests {
    use super::escapes_are_well_formed;

    #[test]
    fn escapes_are_checked_for_spelling_and_utf8() {
        assert!(escapes_are_well_formed("/api/agents/a%2Fb%C3%BC"));
        for bad in ["/%", "/%a", "/%zz", "/%C3", "/x%2"] {
            assert!(!escapes_are_well_formed(bad), "{bad}");
        }
    }
}
