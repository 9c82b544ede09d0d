//! List, create, rotate and revoke API tokens. A secret is shown once, in the answer that made it.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use quell_engine::access::{AccessError, RotationSpec, TokenSpec};
use quell_protocol::ErrorCode;
use quell_protocol::api::{NewToken, Page, TokenRequest, TokenRotationRequest, TokenRow};

use super::extractors::{JsonBody, OptionalJsonBody};
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<AccessError> for ProblemResponse {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::BadName { .. } | AccessError::Lifetime(_) | AccessError::Restrictions(_) => {
                problem_response(ErrorCode::InvalidRequest, error.to_string())
            }
            AccessError::ChangedMeanwhile(_) => problem_response(ErrorCode::Conflict, error.to_string()),
            AccessError::Store(error) => error.into(),
            other => problem_response(ErrorCode::Internal, other.to_string()),
        }
    }
}

pub(super) async fn list(call: ApiCall) -> ApiResult<Page<TokenRow>> {
    call.require_admin()?;
    Ok(Json(Page { items: call.engine().list_tokens().await?, next_cursor: None }))
}

pub(super) async fn create(
    call: ApiCall,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<(StatusCode, Json<NewToken>), ProblemResponse> {
    let TokenRequest { name, scope, expires_in_s, restrictions } = request;
    let spec = TokenSpec { name, scopes: scope, lifetime: expires_in_s.map(seconds), restrictions };
    Ok((StatusCode::CREATED, Json(call.engine().create_token(call.require_admin()?, spec).await?)))
}

pub(super) async fn rotate(
    call: ApiCall,
    Path(name): Path<String>,
    OptionalJsonBody(request): OptionalJsonBody<TokenRotationRequest>,
) -> ApiResult<NewToken> {
    let TokenRotationRequest { overlap_s, expires_in_s } = request;
    let spec = RotationSpec { overlap: seconds(overlap_s.unwrap_or(0)), lifetime: expires_in_s.map(seconds) };
    let rotated = call.engine().rotate_token(call.require_admin()?, &name, spec).await?;
    rotated.map(Json).ok_or_else(|| token_not_found(&name))
}

pub(super) async fn revoke(call: ApiCall, Path(name): Path<String>) -> Result<StatusCode, ProblemResponse> {
    if call.engine().revoke_token(call.require_admin()?, &name).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(token_not_found(&name))
}

fn token_not_found(name: &str) -> ProblemResponse {
    let detail = if name == "admin" {
        "the token of the data directory is in its file `token`: to replace it, delete the file and restart the daemon"
            .to_owned()
    } else {
        format!("there is no token {name:?}; `quell token list` lists them")
    };
    problem_response(ErrorCode::NotFound, detail)
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}
