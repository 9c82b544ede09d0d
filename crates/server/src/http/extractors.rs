//! Axum extractors for JSON bodies and query strings, with problem+json rejections.

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use quell_kernel::json_size::exceeds_value_count;
use quell_protocol::{ErrorCode, Object};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::body_limits::BodyLimit;
use super::{ProblemResponse, problem_response};
use crate::state::{MAX_JSON_VALUES, ServerState};

/// Maximum bytes of a body of a stop, delete or reset: a few flags and a reason. It uses no budget, so that no other
/// request can keep a stop out.
const MAX_SHORT_BODY: usize = 16 * 1024;
/// Maximum bytes of a body of a caller without a token.
const MAX_UNAUTHENTICATED_BODY: usize = 4 * 1024;

/// A required body.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A required body of a caller that has no token yet, such as a sign-in.
#[derive(Debug)]
pub(super) struct UnauthenticatedJsonBody<T>(pub(super) T);

/// A short body; absent, empty and `{}` mean the default.
#[derive(Debug)]
pub(super) struct OptionalJsonBody<T>(pub(super) T);

#[derive(Debug)]
pub(crate) struct QueryParams<T>(pub(crate) T);

/// A flag in a query: set by any value but `0`, `false` and `no`.
#[derive(Debug, Default)]
pub(super) struct QueryFlag(pub(super) bool);

impl<'de> Deserialize<'de> for QueryFlag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(!matches!(text.as_str(), "0" | "false" | "no")))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ForceQuery {
    pub(super) force: QueryFlag,
}

/// Rows of a page: 100 if the caller gives no limit, at most 1000.
pub(super) fn page_size(limit: Option<usize>) -> usize {
    limit.unwrap_or(100).clamp(1, 1000)
}

impl<T: DeserializeOwned> FromRequest<ServerState> for JsonBody<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, server: &ServerState) -> Result<Self, ProblemResponse> {
        parse_json(&read_request_body(request, server).await?).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<ServerState> for UnauthenticatedJsonBody<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, server: &ServerState) -> Result<Self, ProblemResponse> {
        let body_limit = BodyLimit {
            max_bytes: MAX_UNAUTHENTICATED_BODY,
            configured_by: "",
            budget: Some(&server.budgets().unauthenticated_receive),
        };
        parse_json(&read_json_body(request, body_limit).await?).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<ServerState> for OptionalJsonBody<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, _server: &ServerState) -> Result<Self, ProblemResponse> {
        let bytes =
            read_json_body(request, BodyLimit { max_bytes: MAX_SHORT_BODY, configured_by: " here", budget: None })
                .await?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        parse_json(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequestParts<ServerState> for QueryParams<T> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, _server: &ServerState) -> Result<Self, ProblemResponse> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => Err(problem_response(
                ErrorCode::InvalidRequest,
                format!("the query is not valid: {}", error.body_text()),
            )),
        }
    }
}

/// Reads the body of a caller with a token, within the limit of the configuration.
pub(crate) async fn read_request_body(request: Request, server: &ServerState) -> Result<Bytes, ProblemResponse> {
    let max_bytes = server.engine().config().limits.request_body_bytes;
    let configured_by = " (request_body_bytes in [limits])";
    read_json_body(request, BodyLimit { max_bytes, configured_by, budget: Some(&server.budgets().receive) }).await
}

/// Reads a body, which must be JSON unless it is empty.
async fn read_json_body(request: Request, body_limit: BodyLimit<'_>) -> Result<Bytes, ProblemResponse> {
    let (parts, body) = request.into_parts();
    let bytes = body_limit.read_body(parts.extensions.get(), &parts.headers, body).await?;
    if !is_json(&parts.headers) && !bytes.is_empty() {
        return Err(problem_response(
            ErrorCode::UnsupportedMediaType,
            "the body must be JSON with content-type application/json",
        ));
    }
    Ok(bytes)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ProblemResponse> {
    if exceeds_value_count(bytes, MAX_JSON_VALUES) {
        return Err(problem_response(
            ErrorCode::InvalidRequest,
            format!("the body holds more than {MAX_JSON_VALUES} values"),
        ));
    }
    let read = serde_json::from_slice(bytes).map(|Object(value)| value);
    read.map_err(|error| {
        let code = if error.is_data() { ErrorCode::InvalidRequest } else { ErrorCode::MalformedJson };
        problem_response(code, error.to_string())
    })
}
