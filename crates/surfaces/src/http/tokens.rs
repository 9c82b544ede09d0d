//! Tokens: made, listed, revoked. The secret is shown once.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::access::AccessError;
use quell_protocol::ErrorCode;
use quell_protocol::api::{List, NewToken, TokenRequest, TokenRow};

use secrecy::ExposeSecret;

use super::body::Body;
use super::{Refused, Visitor, refuse};
use crate::door::Door;

impl From<AccessError> for Refused {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::BadName { .. } => refuse(ErrorCode::InvalidRequest, error.to_string()),
            AccessError::Store(error) => error.into(),
            other => refuse(ErrorCode::Internal, other.to_string()),
        }
    }
}

pub(super) async fn list(State(door): State<Door>, visitor: Visitor) -> Result<Json<List<TokenRow>>, Refused> {
    visitor.admin()?;
    Ok(Json(List { items: door.engine().access().list_tokens().await?, next_cursor: None }))
}

pub(super) async fn create(
    State(door): State<Door>,
    visitor: Visitor,
    Body(request): Body<TokenRequest>,
) -> Result<(StatusCode, Json<NewToken>), Refused> {
    let (scope, grants) = request.scope.rights();
    let token = door.engine().create_token(visitor.admin()?, &request.name, request.scope).await?;
    let (token, scopes) = (token.expose_secret().to_owned(), grants.with(scope));
    Ok((StatusCode::CREATED, Json(NewToken { name: request.name, scope, scopes, token })))
}

pub(super) async fn revoke(
    State(door): State<Door>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    if door.engine().revoke_token(visitor.admin()?, &name).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(refuse(ErrorCode::NotFound, format!("there is no token {name:?}; `quell token list` lists them")))
}
