//! Request bodies and queries: strict JSON with clear refusals, and bodies that may be absent.

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use quell_protocol::{ErrorCode, Object};
use serde::de::DeserializeOwned;

use super::{Refused, refuse};
use crate::door::Door;

/// A body that has to be there.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

/// A body that may be absent, empty or `{}`.
#[derive(Debug)]
pub(super) struct Optional<T>(pub(super) T);

/// The query string.
#[derive(Debug)]
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Door> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Refused> {
        parse(&read(request, door).await?).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Door> for Optional<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Refused> {
        let bytes = read(request, door).await?;
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

async fn read(request: Request, door: &Door) -> Result<Bytes, Refused> {
    let limit = door.engine().config().limits.request_body_bytes;
    let too_large = || {
        let detail = format!("the limit is {limit} bytes (request_body_bytes in [limits])");
        refuse(ErrorCode::BodyTooLarge, detail)
    };
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let is_json = is_json(headers);
    let bytes = to_bytes(request.into_body(), limit).await.map_err(|_| too_large())?;
    if !is_json && !bytes.is_empty() {
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
    let read = serde_json::from_slice(bytes).map(|Object(value)| value);
    read.map_err(|error| {
        let code = if error.is_data() { ErrorCode::InvalidRequest } else { ErrorCode::MalformedJson };
        refuse(code, error.to_string())
    })
}
