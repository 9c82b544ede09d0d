//! Sending a message, and looking at runs.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_engine::dispatch::{StopText, Submission, SubmitError, Submitted};
use quell_engine::store::RunFilter;
use quell_protocol::api::{List, RunView, SendRequest};
use quell_protocol::{ErrorCode, RunId, SessionKey};
use serde::Deserialize;

use super::body::{Asked, Body};
use super::{Refused, Visitor, refuse};
use crate::door::Door;

/// Rows of a page when the caller does not say.
pub(super) const PAGE: usize = 100;
/// Most rows of a page.
pub(super) const PAGE_MOST: usize = 1000;

impl From<SubmitError> for Refused {
    fn from(error: SubmitError) -> Self {
        refuse(error.code(), error.to_string())
    }
}

pub(super) async fn send(
    State(door): State<Door>,
    visitor: Visitor,
    Path(key): Path<String>,
    Body(request): Body<SendRequest>,
) -> Result<Response, Refused> {
    let caller = visitor.writer()?;
    let submission = Submission {
        session: SessionKey::parse(key)?,
        text: request.text,
        agent: request.agent,
        idempotency_key: request.idempotency_key,
        on_busy: request.on_busy.unwrap_or_default(),
        timeout: request.timeout_ms.map(Duration::from_millis),
        stop_text: if request.literal { StopText::Literal } else { StopText::Recognise },
        errand: None,
    };
    Ok(match door.engine().submit(caller, submission).await? {
        Submitted::New(answer) => (StatusCode::ACCEPTED, Json(answer)).into_response(),
        Submitted::Repeat(answer) => Json(answer).into_response(),
        Submitted::Stopped(answer) => Json(answer).into_response(),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListQuery {
    state: Option<String>,
    session: Option<SessionKey>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list(
    State(door): State<Door>,
    _visitor: Visitor,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<List<RunView>>, Refused> {
    match query.state.as_deref() {
        Some("active") => {
            let mut items = door.engine().active_runs();
            items.retain(|run| query.session.as_ref().is_none_or(|key| *key == run.session_key));
            Ok(Json(List { items, next_cursor: None }))
        }
        None | Some("all") => {
            let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MOST);
            let filter = RunFilter { session: query.session, principal: None, limit, cursor: query.cursor };
            Ok(Json(door.engine().runs(filter).await?))
        }
        Some(other) => {
            Err(refuse(ErrorCode::InvalidRequest, format!("state is {other:?}; it may be `active` or `all`")))
        }
    }
}

pub(super) async fn show(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Json<RunView>, Refused> {
    let id = known_id(&id)?;
    door.engine().run(&id).await?.map(Json).ok_or_else(|| no_run(&id))
}

/// A text that cannot be a run id names no run.
pub(super) fn known_id(text: &str) -> Result<RunId, Refused> {
    RunId::parse(text).map_err(|_| refuse(ErrorCode::RunNotFound, format!("there is no run {text:?}")))
}

pub(super) fn no_run(id: &RunId) -> Refused {
    refuse(ErrorCode::RunNotFound, format!("there is no run {id:?}; `quell runs` lists them"))
}
