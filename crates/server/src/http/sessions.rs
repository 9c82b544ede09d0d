//! Create, list, show, patch, reset and delete sessions; read their history.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::engine::{OpenSessionError, OpenSessionOutcome, SessionError};
use quell_protocol::api::{HistoryMessage, Page, SessionRow};
use quell_protocol::session::{SessionAnswer, SessionRequest, SessionView};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{ErrorCode, SessionKey};
use quell_store::SessionListFilter;
use serde::Deserialize;

use super::extractors::{JsonBody, OptionalJsonBody, QueryParams};
use super::runs::{DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE};
use super::stop::stop_request;
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

impl From<SessionError> for ProblemResponse {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::ForeignRunActive(_) | SessionError::NotOwner(_) => {
                problem_response(ErrorCode::Forbidden, error.to_string())
            }
            SessionError::Store(error) => error.into(),
        }
    }
}

impl From<OpenSessionError> for ProblemResponse {
    fn from(error: OpenSessionError) -> Self {
        match error {
            OpenSessionError::Store(error) => error.into(),
            error => problem_response(error.code(), error.to_string()),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SessionListQuery {
    search: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    QueryParams(query): QueryParams<SessionListQuery>,
) -> Result<Json<Page<SessionRow>>, ProblemResponse> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE_SIZE);
    let filter = SessionListFilter { search: query.search, limit, cursor: query.cursor };
    Ok(Json(server.engine().list_sessions(filter).await?))
}

pub(super) async fn show(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(key): Path<String>,
) -> Result<Json<SessionView>, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    server.engine().session_view(&key).await?.map(Json).ok_or_else(|| session_not_found(&key))
}

pub(super) async fn get_or_create(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<(StatusCode, Json<SessionAnswer>), ProblemResponse> {
    let caller = auth.require_write()?;
    // An invalid key is an error of the request itself: report it before any other problem of the session.
    request.key()?;
    let (key, outcome) = server.engine().open_session(caller, request).await?;
    // Another caller may have deleted the session meanwhile.
    let state = server.engine().find_session(&key).await?.map_or_else(|| "terminated".to_owned(), |row| row.state);
    let status = match outcome {
        OpenSessionOutcome::Created => StatusCode::CREATED,
        OpenSessionOutcome::Changed | OpenSessionOutcome::Unchanged => StatusCode::OK,
    };
    Ok((status, Json(SessionAnswer { key, state, created: outcome == OpenSessionOutcome::Created })))
}

pub(super) async fn patch(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(key): Path<String>,
    JsonBody(patch): JsonBody<SessionPatch>,
) -> Result<Json<SessionView>, ProblemResponse> {
    let caller = auth.require_write()?;
    let key = SessionKey::parse(key)?;
    server.engine().patch_session(caller, &key, patch).await?;
    server.engine().session_view(&key).await?.map(Json).ok_or_else(|| session_not_found(&key))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryQuery {
    turns: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn history(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<HistoryQuery>,
) -> Result<Json<Page<HistoryMessage>>, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    if server.engine().find_session(&key).await?.is_none() {
        return Err(session_not_found(&key));
    }
    let turns = query.turns.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE_SIZE);
    let page = server.engine().history_page(&key, turns, query.cursor).await?;
    Ok(Json(Page { items: page.messages, next_cursor: page.before }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ReasonBody {
    pub(super) reason: Option<String>,
}

pub(super) async fn reset(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(key): Path<String>,
    OptionalJsonBody(request): OptionalJsonBody<ReasonBody>,
) -> Result<Json<SessionRow>, ProblemResponse> {
    let caller = auth.require_write()?;
    let key = SessionKey::parse(key)?;
    let done =
        server.engine().reset_session(caller, &key, &stop_request(caller, false, request.reason.as_deref())).await?;
    let row = if done { server.engine().find_session(&key).await? } else { None };
    row.map(Json).ok_or_else(|| session_not_found(&key))
}

pub(super) async fn delete(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(key): Path<String>,
    OptionalJsonBody(request): OptionalJsonBody<ReasonBody>,
) -> Result<StatusCode, ProblemResponse> {
    let caller = auth.require_write()?;
    let key = SessionKey::parse(key)?;
    let done =
        server.engine().delete_session(caller, &key, &stop_request(caller, false, request.reason.as_deref())).await?;
    if done { Ok(StatusCode::NO_CONTENT) } else { Err(session_not_found(&key)) }
}

pub(super) fn session_not_found(key: &SessionKey) -> ProblemResponse {
    problem_response(ErrorCode::SessionNotFound, format!("there is no session {key:?}; `quell sessions` lists them"))
}
