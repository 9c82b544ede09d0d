//! Sessions: get or create, list, look, history, reset, delete.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::dispatch::{Got, NotMade, SessionError};
use quell_engine::store::SessionFilter;
use quell_protocol::api::{HistoryMessage, List, SessionRow};
use quell_protocol::page::SessionPatch;
use quell_protocol::session::{SessionAnswer, SessionRequest, SessionView};
use quell_protocol::{ErrorCode, SessionKey};
use serde::Deserialize;

use super::body::{Asked, Body, Optional};
use super::runs::{PAGE, PAGE_MOST};
use super::stop::ask;
use super::{Refused, Visitor, refuse};
use crate::door::Door;

impl From<SessionError> for Refused {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::SomebodyElses(_) | SessionError::NotYours(_) => {
                refuse(ErrorCode::Forbidden, error.to_string())
            }
            SessionError::Store(error) => error.into(),
        }
    }
}

impl From<NotMade> for Refused {
    fn from(error: NotMade) -> Self {
        match error {
            NotMade::Store(error) => error.into(),
            error => refuse(error.code(), error.to_string()),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListQuery {
    search: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list(
    State(door): State<Door>,
    _visitor: Visitor,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<List<SessionRow>>, Refused> {
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MOST);
    let filter = SessionFilter { search: query.search, limit, cursor: query.cursor };
    Ok(Json(door.engine().sessions(filter).await?))
}

pub(super) async fn show(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(key): Path<String>,
) -> Result<Json<SessionView>, Refused> {
    let key = SessionKey::parse(key)?;
    door.engine().session_view(&key).await?.map(Json).ok_or_else(|| no_session(&key))
}

pub(super) async fn open(
    State(door): State<Door>,
    visitor: Visitor,
    Body(request): Body<SessionRequest>,
) -> Result<(StatusCode, Json<SessionAnswer>), Refused> {
    let caller = visitor.writer()?;
    // The rule of keys is the request's own fault; what a session cannot be made of is another.
    request.key()?;
    let (key, got) = door.engine().open_session(caller, request).await?;
    // Somebody else may have deleted it in this very moment.
    let state = door.engine().session(&key).await?.map_or_else(|| "terminated".to_owned(), |row| row.state);
    let status = match got {
        Got::Created => StatusCode::CREATED,
        Got::Changed | Got::Known => StatusCode::OK,
    };
    Ok((status, Json(SessionAnswer { key, state, created: got == Got::Created })))
}

pub(super) async fn patch(
    State(door): State<Door>,
    visitor: Visitor,
    Path(key): Path<String>,
    Body(patch): Body<SessionPatch>,
) -> Result<Json<SessionView>, Refused> {
    let caller = visitor.writer()?;
    let key = SessionKey::parse(key)?;
    door.engine().patch_session(caller, &key, patch).await?;
    door.engine().session_view(&key).await?.map(Json).ok_or_else(|| no_session(&key))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryQuery {
    turns: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn history(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(key): Path<String>,
    Asked(query): Asked<HistoryQuery>,
) -> Result<Json<List<HistoryMessage>>, Refused> {
    let key = SessionKey::parse(key)?;
    if door.engine().session(&key).await?.is_none() {
        return Err(no_session(&key));
    }
    let turns = query.turns.unwrap_or(PAGE).clamp(1, PAGE_MOST);
    let page = door.engine().history(&key, turns, query.cursor).await?;
    Ok(Json(List { items: page.messages, next_cursor: page.before }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EndRequest {
    pub(super) reason: Option<String>,
}

pub(super) async fn reset(
    State(door): State<Door>,
    visitor: Visitor,
    Path(key): Path<String>,
    Optional(request): Optional<EndRequest>,
) -> Result<Json<SessionRow>, Refused> {
    let caller = visitor.writer()?;
    let key = SessionKey::parse(key)?;
    let done = door.engine().reset_session(caller, &key, &ask(caller, false, request.reason.as_deref())).await?;
    let row = if done { door.engine().session(&key).await? } else { None };
    row.map(Json).ok_or_else(|| no_session(&key))
}

pub(super) async fn delete(
    State(door): State<Door>,
    visitor: Visitor,
    Path(key): Path<String>,
    Optional(request): Optional<EndRequest>,
) -> Result<StatusCode, Refused> {
    let caller = visitor.writer()?;
    let key = SessionKey::parse(key)?;
    let done = door.engine().delete_session(caller, &key, &ask(caller, false, request.reason.as_deref())).await?;
    if done { Ok(StatusCode::NO_CONTENT) } else { Err(no_session(&key)) }
}

pub(super) fn no_session(key: &SessionKey) -> Refused {
    refuse(ErrorCode::SessionNotFound, format!("there is no session {key:?}; `quell sessions` lists them"))
}
