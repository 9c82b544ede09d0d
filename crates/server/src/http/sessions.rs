//! Create, list, show, patch, reset and delete sessions; read their history.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_engine::engine::{OpenSessionError, OpenSessionOutcome, SessionError, SessionWorkError};
use quell_protocol::api::{HistoryMessage, Page, SendAnswer, SessionRow, SharingRequest};
use quell_protocol::session::{SessionAnswer, SessionRequest, SessionView};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{ErrorCode, SessionKey};
use quell_store::SessionListFilter;
use serde::Deserialize;

use super::extractors::{JsonBody, OptionalJsonBody, QueryFlag, QueryParams, page_size};
use super::stop::stop_request;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<SessionError> for ProblemResponse {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::ForeignRunActive(_)
            | SessionError::NotOwner(_)
            | SessionError::ChatKey(_)
            | SessionError::Reserved(_)
            | SessionError::Private(_) => problem_response(ErrorCode::Forbidden, error.to_string()),
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
    call: ApiCall,
    QueryParams(query): QueryParams<SessionListQuery>,
) -> ApiResult<Page<SessionRow>> {
    let limit = page_size(query.limit);
    let visible_to = call.visible_to();
    let filter = SessionListFilter { search: query.search, limit, cursor: query.cursor, visible_to };
    Ok(Json(call.engine().list_sessions(filter).await?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ShowSessionQuery {
    /// An unknown session is no error: browsers write each error on their console.
    allow_missing: QueryFlag,
}

pub(super) async fn show(
    call: ApiCall,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<ShowSessionQuery>,
) -> Result<Response, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    let view = if call.require_readable(&key).is_ok() { call.engine().session_view(&key).await? } else { None };
    match view {
        Some(view) => Ok(Json(view).into_response()),
        None if query.allow_missing.0 => Ok(StatusCode::NO_CONTENT.into_response()),
        None => Err(session_not_found(&key)),
    }
}

/// Shares a session, or makes it private again.
pub(super) async fn share(
    call: ApiCall,
    Path(key): Path<String>,
    JsonBody(request): JsonBody<SharingRequest>,
) -> ApiResult<SessionRow> {
    let caller = call.require_write()?;
    let key = SessionKey::parse(key)?;
    call.require_readable(&key)?;
    let done = call.engine().share_session(caller, &key, request.shared).await?;
    let row = if done { call.engine().find_session(&key).await? } else { None };
    row.map(Json).ok_or_else(|| session_not_found(&key))
}

pub(super) async fn get_or_create(
    call: ApiCall,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<(StatusCode, Json<SessionAnswer>), ProblemResponse> {
    let caller = call.require_write()?;
    // An invalid key is an error of the request itself: report it before any other problem of the session.
    request.key()?;
    let (key, outcome) = call.engine().open_session(caller, request).await?;
    // Another caller may have deleted the session meanwhile.
    let state = call.engine().find_session(&key).await?.map_or_else(|| "terminated".to_owned(), |row| row.state);
    let status = match outcome {
        OpenSessionOutcome::Created => StatusCode::CREATED,
        OpenSessionOutcome::Changed | OpenSessionOutcome::Unchanged => StatusCode::OK,
    };
    Ok((status, Json(SessionAnswer { key, state, created: outcome == OpenSessionOutcome::Created })))
}

pub(super) async fn patch(
    call: ApiCall,
    Path(key): Path<String>,
    JsonBody(patch): JsonBody<SessionPatch>,
) -> ApiResult<SessionView> {
    let caller = call.require_write()?;
    let key = SessionKey::parse(key)?;
    call.engine().patch_session(caller, &key, patch).await?;
    call.engine().session_view(&key).await?.map(Json).ok_or_else(|| session_not_found(&key))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryQuery {
    turns: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn history(
    call: ApiCall,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<HistoryQuery>,
) -> ApiResult<Page<HistoryMessage>> {
    let key = SessionKey::parse(key)?;
    call.require_readable(&key)?;
    if call.engine().find_session(&key).await?.is_none() {
        return Err(session_not_found(&key));
    }
    let turns = page_size(query.turns);
    let page = call.engine().history_page(&key, turns, query.cursor).await?;
    Ok(Json(Page { items: page.messages, next_cursor: page.before }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ReasonBody {
    pub(super) reason: Option<String>,
}

pub(super) async fn reset(
    call: ApiCall,
    Path(key): Path<String>,
    OptionalJsonBody(request): OptionalJsonBody<ReasonBody>,
) -> ApiResult<SessionRow> {
    let caller = call.require_write()?;
    let key = SessionKey::parse(key)?;
    let done =
        call.engine().reset_session(caller, &key, &stop_request(caller, false, request.reason.as_deref())).await?;
    let row = if done { call.engine().find_session(&key).await? } else { None };
    row.map(Json).ok_or_else(|| session_not_found(&key))
}

impl From<SessionWorkError> for ProblemResponse {
    fn from(error: SessionWorkError) -> Self {
        problem_response(error.code(), error.to_string())
    }
}

/// Starts the run that summarises a conversation.
pub(super) async fn compact(
    call: ApiCall,
    Path(key): Path<String>,
    OptionalJsonBody(EmptyBody {}): OptionalJsonBody<EmptyBody>,
) -> Result<(StatusCode, Json<SendAnswer>), ProblemResponse> {
    let caller = call.require_write()?;
    let key = SessionKey::parse(key)?;
    Ok((StatusCode::ACCEPTED, Json(call.engine().compact_session(caller, &key).await?)))
}

/// A body without any field, which may be absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EmptyBody {}

pub(super) async fn delete(
    call: ApiCall,
    Path(key): Path<String>,
    OptionalJsonBody(request): OptionalJsonBody<ReasonBody>,
) -> Result<StatusCode, ProblemResponse> {
    let caller = call.require_write()?;
    let key = SessionKey::parse(key)?;
    let done =
        call.engine().delete_session(caller, &key, &stop_request(caller, false, request.reason.as_deref())).await?;
    if done { Ok(StatusCode::NO_CONTENT) } else { Err(session_not_found(&key)) }
}

pub(super) fn session_not_found(key: &SessionKey) -> ProblemResponse {
    problem_response(ErrorCode::SessionNotFound, format!("there is no session {key:?}; `quell sessions` lists them"))
}
