//! List, create and revoke API tokens. The secret is shown once, when the token is created.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::access::AccessError;
use quell_protocol::ErrorCode;
use quell_protocol::api::{NewToken, Page, TokenRequest, TokenRow};

use secrecy::ExposeSecret;

use super::extractors::JsonBody;
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

impl From<AccessError> for ProblemResponse {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::BadName { .. } => problem_response(ErrorCode::InvalidRequest, error.to_string()),
            AccessError::Store(error) => error.into(),
            other => problem_response(ErrorCode::Internal, other.to_string()),
        }
    }
}

pub(super) async fn list(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
) -> Result<Json<Page<TokenRow>>, ProblemResponse> {
    auth.require_admin()?;
    Ok(Json(Page { items: server.engine().access().list_tokens().await?, next_cursor: None }))
}

pub(super) async fn create(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<(StatusCode, Json<NewToken>), ProblemResponse> {
    let (scope, grants) = request.scope.level_and_grants();
    let token = server.engine().create_token(auth.require_admin()?, &request.name, request.scope).await?;
    let (token, scopes) = (token.expose_secret().to_owned(), grants.to_token_scopes(scope));
    Ok((StatusCode::CREATED, Json(NewToken { name: request.name, scope, scopes, token })))
}

pub(super) async fn revoke(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(name): Path<String>,
) -> Result<StatusCode, ProblemResponse> {
    if server.engine().revoke_token(auth.require_admin()?, &name).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(problem_response(ErrorCode::NotFound, format!("there is no token {name:?}; `quell token list` lists them")))
}
