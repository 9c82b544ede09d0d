//! Errors of A2A: its own ones, and problems of the engine, in the form of each binding.
//!
//! In JSON-RPC an error is in a response with status 200, because clients read no other. Over REST it is a
//! `google.rpc.Status`. Both carry a `google.rpc.ErrorInfo`, whose `reason` clients branch on.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use quell_protocol::{ErrorCode, Problem};
use serde_json::{Value, json};

use super::{A2aBinding, REST_CONTENT_TYPE};
use crate::http::{ProblemFacts, ProblemResponse};
use crate::json_rpc::{INVALID_PARAMS, INVALID_REQUEST, JsonRpcFailure, JsonRpcId, METHOD_NOT_FOUND, PARSE_ERROR};
use crate::model_api_errors::keep_headers;

/// The domain of errors that the specification names; those of Quell have another one.
const A2A_DOMAIN: &str = "a2a-protocol.org";
const QUELL_DOMAIN: &str = "quell";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum A2aErrorKind {
    TaskNotFound,
    TaskNotCancelable,
    PushNotSupported,
    UnsupportedOperation,
    ContentTypeNotSupported,
    VersionNotSupported,
    MethodNotFound,
    InvalidParams,
    InvalidRequest,
    MalformedJson,
}

impl A2aErrorKind {
    fn json_rpc_code(self) -> i64 {
        match self {
            Self::TaskNotFound => -32001,
            Self::TaskNotCancelable => -32002,
            Self::PushNotSupported => -32003,
            Self::UnsupportedOperation => -32004,
            Self::ContentTypeNotSupported => -32005,
            Self::VersionNotSupported => -32009,
            Self::MethodNotFound => METHOD_NOT_FOUND,
            Self::InvalidParams => INVALID_PARAMS,
            Self::InvalidRequest => INVALID_REQUEST,
            Self::MalformedJson => PARSE_ERROR,
        }
    }

    fn http_status(self) -> u16 {
        match self {
            Self::TaskNotFound | Self::MethodNotFound => 404,
            Self::TaskNotCancelable
            | Self::PushNotSupported
            | Self::UnsupportedOperation
            | Self::ContentTypeNotSupported
            | Self::VersionNotSupported
            | Self::InvalidParams
            | Self::InvalidRequest
            | Self::MalformedJson => 400,
        }
    }

    /// The name of the status in `google.rpc.Code`.
    fn rpc_status(self) -> &'static str {
        match self {
            Self::TaskNotFound | Self::MethodNotFound => "NOT_FOUND",
            Self::TaskNotCancelable
            | Self::PushNotSupported
            | Self::UnsupportedOperation
            | Self::VersionNotSupported => "FAILED_PRECONDITION",
            Self::ContentTypeNotSupported | Self::InvalidParams | Self::InvalidRequest | Self::MalformedJson => {
                "INVALID_ARGUMENT"
            }
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::TaskNotFound => "TASK_NOT_FOUND",
            Self::TaskNotCancelable => "TASK_NOT_CANCELABLE",
            Self::PushNotSupported => "PUSH_NOTIFICATION_NOT_SUPPORTED",
            Self::UnsupportedOperation => "UNSUPPORTED_OPERATION",
            Self::ContentTypeNotSupported => "CONTENT_TYPE_NOT_SUPPORTED",
            Self::VersionNotSupported => "VERSION_NOT_SUPPORTED",
            Self::MethodNotFound => "METHOD_NOT_FOUND",
            Self::InvalidParams => "INVALID_PARAMS",
            Self::InvalidRequest => "INVALID_REQUEST",
            Self::MalformedJson => "JSON_PARSE",
        }
    }

    /// The kind of a problem that A2A has a word for.
    fn of_problem(problem: &Problem) -> Option<Self> {
        let is = |code: ErrorCode| problem.code == code.as_str();
        if is(ErrorCode::InvalidRequest) {
            Some(Self::InvalidParams)
        } else if is(ErrorCode::MalformedJson) {
            Some(Self::MalformedJson)
        } else if is(ErrorCode::RunNotFound) {
            Some(Self::TaskNotFound)
        } else if is(ErrorCode::UnsupportedMediaType) {
            Some(Self::ContentTypeNotSupported)
        } else {
            None
        }
    }
}

/// Why an operation was refused.
#[derive(Debug)]
pub(super) enum A2aError {
    Protocol { kind: A2aErrorKind, message: String, field: Option<&'static str> },
    Problem(ProblemResponse),
}

impl A2aError {
    pub(super) fn new(kind: A2aErrorKind, message: impl Into<String>) -> Self {
        Self::Protocol { kind, message: message.into(), field: None }
    }

    /// A wrong parameter.
    pub(super) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Protocol { kind: A2aErrorKind::InvalidParams, message: message.into(), field: Some(field) }
    }

    pub(super) fn task_not_found(id: &str) -> Self {
        Self::new(A2aErrorKind::TaskNotFound, format!("there is no task {id:?} of this agent"))
    }

    pub(super) fn is_problem(&self, code: ErrorCode) -> bool {
        matches!(self, Self::Problem(response) if response.problem().code == code.as_str())
    }

    pub(super) fn into_http(self, binding: &A2aBinding) -> Response {
        let facts = ErrorFacts::of(&self);
        match (binding, self) {
            (A2aBinding::JsonRpc(id), _) => facts.json_rpc_failure().into_http(Some(id)),
            // The layer around all routes translates it, with its headers.
            (A2aBinding::Rest, Self::Problem(response)) => response.into_response(),
            (A2aBinding::Rest, Self::Protocol { .. }) => facts.rest_response(),
        }
    }

    /// The error as an event of a stream.
    pub(super) fn to_json(&self, binding: &A2aBinding) -> Value {
        let facts = ErrorFacts::of(self);
        match binding {
            A2aBinding::JsonRpc(id) => facts.json_rpc_failure().to_json(Some(id)),
            A2aBinding::Rest => facts.rest_body(),
        }
    }
}

impl From<ProblemResponse> for A2aError {
    fn from(response: ProblemResponse) -> Self {
        Self::Problem(response)
    }
}

/// A message of JSON-RPC that cannot be read.
impl From<JsonRpcFailure> for A2aError {
    fn from(failure: JsonRpcFailure) -> Self {
        let kind = match failure.code {
            PARSE_ERROR => A2aErrorKind::MalformedJson,
            METHOD_NOT_FOUND => A2aErrorKind::MethodNotFound,
            INVALID_PARAMS => A2aErrorKind::InvalidParams,
            _ => A2aErrorKind::InvalidRequest,
        };
        Self::new(kind, failure.message)
    }
}

/// What both bindings tell of an error.
struct ErrorFacts {
    code: i64,
    http_status: u16,
    rpc_status: &'static str,
    reason: String,
    domain: &'static str,
    message: String,
    field: Option<String>,
    /// Seconds.
    retry_after: Option<u64>,
}

impl ErrorFacts {
    fn of(error: &A2aError) -> Self {
        match error {
            A2aError::Protocol { kind, message, field } => {
                Self::of_kind(*kind, message.clone(), field.map(str::to_owned))
            }
            A2aError::Problem(response) => Self::of_problem(&response.facts()),
        }
    }

    fn of_kind(kind: A2aErrorKind, message: String, field: Option<String>) -> Self {
        Self {
            code: kind.json_rpc_code(),
            http_status: kind.http_status(),
            rpc_status: kind.rpc_status(),
            reason: kind.reason().to_owned(),
            domain: A2A_DOMAIN,
            message,
            field,
            retry_after: None,
        }
    }

    /// Codes of Quell keep their stable word in `reason`. Their code in JSON-RPC is the HTTP status, which is outside of
    /// the range that JSON-RPC reserves.
    fn of_problem(facts: &ProblemFacts) -> Self {
        let problem = &facts.problem;
        let message = problem.detail.clone().unwrap_or_else(|| problem.title.clone());
        match A2aErrorKind::of_problem(problem) {
            Some(kind) => Self::of_kind(kind, message, facts.field.clone()),
            None => Self {
                code: i64::from(problem.status),
                http_status: problem.status,
                rpc_status: rpc_status_of(problem.status),
                reason: problem.code.to_ascii_uppercase(),
                domain: QUELL_DOMAIN,
                message,
                field: facts.field.clone(),
                retry_after: facts.retry_after,
            },
        }
    }

    fn details(&self) -> Value {
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason,
            "domain": self.domain,
        });
        let bad_request = self.field.as_ref().map(|field| {
            let violations = json!([{"field": field, "description": self.message}]);
            json!({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations})
        });
        // JSON-RPC clients see no header.
        let retry = self.retry_after.map(
            |seconds| json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s")}),
        );
        std::iter::once(info).chain(bad_request).chain(retry).collect()
    }

    fn json_rpc_failure(&self) -> JsonRpcFailure {
        JsonRpcFailure::new(self.code, self.message.clone()).with_data(self.details())
    }

    fn rest_body(&self) -> Value {
        json!({"error": {
            "code": self.http_status,
            "status": self.rpc_status,
            "message": self.message,
            "details": self.details(),
        }})
    }

    fn rest_response(&self) -> Response {
        let status = StatusCode::from_u16(self.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, REST_CONTENT_TYPE)], self.rest_body().to_string()).into_response()
    }
}

/// The response to a request below `/a2a/` in the form of its binding, if it is a problem. `id` of a JSON-RPC request is
/// not known here.
pub(super) fn translate_response(path: &str, response: Response) -> Response {
    let Some(facts) = response.extensions().get::<ProblemFacts>().cloned() else { return response };
    let error = ErrorFacts::of_problem(&facts);
    let is_json_rpc = path.trim_start_matches("/a2a/").split('/').filter(|part| !part.is_empty()).count() == 1;
    let mut translated = if is_json_rpc {
        let mut body = error.json_rpc_failure().to_json(None);
        body["id"] = Value::Null;
        (response.status(), [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
    } else {
        error.rest_response()
    };
    keep_headers(response.headers(), translated.headers_mut());
    translated.extensions_mut().insert(facts);
    translated
}

fn rpc_status_of(http_status: u16) -> &'static str {
    match http_status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        405 => "UNIMPLEMENTED",
        408 | 504 => "DEADLINE_EXCEEDED",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        502 | 503 => "UNAVAILABLE",
        400..500 => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    }
}

/// The answer to a JSON-RPC message that cannot be read, with its id if it has one.
pub(super) fn refuse_message(id: Option<JsonRpcId>, error: &A2aError) -> Response {
    let mut body = ErrorFacts::of(error).json_rpc_failure().to_json(id.as_ref());
    if id.is_none() {
        body["id"] = Value::Null;
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem_response;

    #[test]
    fn an_error_of_the_protocol_is_told_in_both_bindings() {
        let error = A2aError::task_not_found("x");
        let id = A2aBinding::JsonRpc(JsonRpcId::Number(7));
        let json_rpc = error.to_json(&id);
        assert_eq!((&json_rpc["id"], &json_rpc["error"]["code"]), (&json!(7), &json!(-32001)));
        let rest = error.to_json(&A2aBinding::Rest);
        assert_eq!((&rest["error"]["code"], &rest["error"]["status"]), (&json!(404), &json!("NOT_FOUND")));
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org",
        });
        assert_eq!((&json_rpc["error"]["data"][0], &rest["error"]["details"][0]), (&info, &info));
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let body = A2aError::invalid("pageSize", "it may be 1 to 100").to_json(&A2aBinding::Rest);
        assert_eq!(body["error"]["details"][1]["fieldViolations"][0]["field"], "pageSize");
    }

    #[test]
    fn a_problem_keeps_its_word_unless_the_protocol_has_one() {
        let of = |code| A2aError::from(problem_response(code, "x")).to_json(&A2aBinding::Rest)["error"].clone();
        let held = of(ErrorCode::Held);
        assert_eq!((&held["code"], &held["status"]), (&json!(503), &json!("UNAVAILABLE")));
        assert_eq!((&held["details"][0]["reason"], &held["details"][0]["domain"]), (&json!("HELD"), &json!("quell")));
        assert_eq!(of(ErrorCode::RunNotFound)["details"][0]["reason"], "TASK_NOT_FOUND");
        assert_eq!(of(ErrorCode::InvalidRequest)["details"][0]["reason"], "INVALID_PARAMS");
    }

    #[test]
    fn an_error_says_when_to_try_again() {
        let refused = A2aError::from(problem_response(ErrorCode::TooManyRequests, "x").retry_after(1));
        let body = refused.to_json(&A2aBinding::JsonRpc(JsonRpcId::Number(7)));
        assert_eq!((&body["error"]["code"], &body["error"]["data"][1]["retryDelay"]), (&json!(429), &json!("1s")));
    }
}
