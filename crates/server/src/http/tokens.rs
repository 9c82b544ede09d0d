//! List, create and revoke API tokens. The secret is shown once, when the token is created.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use quell_engine::access::AccessError;
use quell_protocol::ErrorCode;
use quell_protocol::api::{NewToken, Page, TokenRequest, TokenRow};

use secrecy::ExposeSecret;

use super::extractors::JsonBody;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<AccessError> for ProblemResponse {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::BadName { .. } => problem_response(ErrorCode::InvalidRequest, error.to_string()),
            AccessError::Store(error) => error.into(),
            other => problem_response(ErrorCode::Internal, other.to_string()),
        }
    }
}

pub(super) async fn list(call: ApiCall) -> ApiResult<Page<TokenRow>> {
    call.require_admin()?;
    Ok(Json(Page { items: call.engine().access().list_tokens().await?, next_cursor: None }))
}

pub(super) async fn create(
    call: ApiCall,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<(StatusCode, Json<NewToken>), ProblemResponse> {
    let (scope, grants) = request.scope.level_and_grants();
    let token = call.engine().create_token(call.require_admin()?, &request.name, request.scope).await?;
    let (token, scopes) = (token.expose_secret().to_owned(), grants.to_token_scopes(scope));
    Ok((StatusCode::CREATED, Json(NewToken { name: request.name, scope, scopes, token })))
}

pub(super) async fn revoke(call: ApiCall, Path(name): Path<String>) -> Result<StatusCode, ProblemResponse> {
    if call.engine().revoke_token(call.require_admin()?, &name).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(problem_response(ErrorCode::NotFound, format!("there is no token {name:?}; `quell token list` lists them")))
}
