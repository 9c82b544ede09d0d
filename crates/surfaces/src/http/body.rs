//! Request bodies and queries: strict JSON with clear refusals, and bodies that may be absent.

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use quell_kernel::json::holds_more_values;
use quell_protocol::{ErrorCode, Object};
use serde::de::DeserializeOwned;

use super::intake::Allowance;
use super::{Refused, refuse};
use crate::door::{Door, MOST_VALUES};

/// The most bytes of a body that stops, deletes or resets: a flag or two and a reason. It takes nothing from the budget of
/// bodies, so that no other request keeps a stop out.
const SHORT: usize = 16 * 1024;
/// The most bytes of a body from somebody who has shown no token yet.
const UNPROVEN: usize = 4 * 1024;

/// A body that has to be there.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

/// A body that has to be there, of a caller whose token is in it.
#[derive(Debug)]
pub(super) struct Unproven<T>(pub(super) T);

/// A short body that may be absent, empty or `{}`.
#[derive(Debug)]
pub(super) struct Optional<T>(pub(super) T);

/// The query string.
#[derive(Debug)]
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Door> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Refused> {
        let limit = door.engine().config().limits.request_body_bytes;
        let set_by = " (request_body_bytes in [limits])";
        let allowance = Allowance { limit, set_by, budget: Some(door.intake()) };
        parse(&read(request, allowance).await?).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<Door> for Unproven<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Refused> {
        let allowance = Allowance { limit: UNPROVEN, set_by: "", budget: Some(door.unproven_intake()) };
        parse(&read(request, allowance).await?).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Door> for Optional<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _door: &Door) -> Result<Self, Refused> {
        let bytes = read(request, Allowance { limit: SHORT, set_by: " here", budget: None }).await?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequestParts<Door> for Asked<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _door: &Door) -> Result<Self, Refused> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => {
                Err(refuse(ErrorCode::InvalidRequest, format!("the query is not valid: {}", error.body_text())))
            }
        }
    }
}

/// Reads a body that must be JSON when there is one.
async fn read(request: Request, allowance: Allowance<'_>) -> Result<Bytes, Refused> {
    let (parts, body) = request.into_parts();
    let bytes = allowance.read(parts.extensions.get(), &parts.headers, body).await?;
    if !is_json(&parts.headers) && !bytes.is_empty() {
        return Err(refuse(
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

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    if holds_more_values(bytes, MOST_VALUES) {
        return Err(refuse(ErrorCode::InvalidRequest, format!("the body holds more than {MOST_VALUES} values")));
    }
    let read = serde_json::from_slice(bytes).map(|Object(value)| value);
    read.map_err(|error| {
        let code = if error.is_data() { ErrorCode::InvalidRequest } else { ErrorCode::MalformedJson };
        refuse(code, error.to_string())
    })
}
