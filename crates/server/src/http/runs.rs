//! Send a message to a session; list and show runs.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_engine::engine::{StopTextMode, Submission, SubmitError, SubmitOutcome};
use quell_protocol::api::{Page, RunView, SendRequest};
use quell_protocol::{ErrorCode, RunId, SessionKey};
use quell_store::RunListFilter;
use serde::Deserialize;

use super::extractors::{JsonBody, QueryParams};
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

/// Rows of a page if the caller gives no limit.
pub(super) const DEFAULT_PAGE_SIZE: usize = 100;
pub(super) const MAX_PAGE_SIZE: usize = 1000;

impl From<SubmitError> for ProblemResponse {
    fn from(error: SubmitError) -> Self {
        problem_response(error.code(), error.to_string())
    }
}

pub(super) async fn send_message(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(key): Path<String>,
    JsonBody(request): JsonBody<SendRequest>,
) -> Result<Response, ProblemResponse> {
    let caller = auth.require_write()?;
    let submission = Submission {
        session: SessionKey::parse(key)?,
        text: request.text,
        agent: request.agent,
        idempotency_key: request.idempotency_key,
        on_busy: request.on_busy.unwrap_or_default(),
        timeout: request.timeout_ms.map(Duration::from_millis),
        stop_text_mode: if request.literal { StopTextMode::Literal } else { StopTextMode::Recognise },
        channel_origin: None,
    };
    Ok(match server.engine().submit(caller, submission).await? {
        SubmitOutcome::Accepted(answer) => (StatusCode::ACCEPTED, Json(answer)).into_response(),
        SubmitOutcome::Duplicate(answer) => Json(answer).into_response(),
        SubmitOutcome::Stopped(answer) => Json(answer).into_response(),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RunListQuery {
    state: Option<String>,
    session: Option<SessionKey>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    QueryParams(query): QueryParams<RunListQuery>,
) -> Result<Json<Page<RunView>>, ProblemResponse> {
    match query.state.as_deref() {
        Some("active") => {
            let mut items = server.engine().active_runs();
            items.retain(|run| query.session.as_ref().is_none_or(|key| *key == run.session_key));
            Ok(Json(Page { items, next_cursor: None }))
        }
        None | Some("all") => {
            let limit = query.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE_SIZE);
            let filter = RunListFilter { session: query.session, principal: None, limit, cursor: query.cursor };
            Ok(Json(server.engine().list_runs(filter).await?))
        }
        Some(other) => {
            Err(problem_response(ErrorCode::InvalidRequest, format!("state is {other:?}; it may be `active` or `all`")))
        }
    }
}

pub(super) async fn show(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(id): Path<String>,
) -> Result<Json<RunView>, ProblemResponse> {
    let id = parse_run_id(&id)?;
    server.engine().find_run(&id).await?.map(Json).ok_or_else(|| run_not_found(&id))
}

/// A text that is not a valid run id is answered as an unknown run.
pub(super) fn parse_run_id(text: &str) -> Result<RunId, ProblemResponse> {
    RunId::parse(text).map_err(|_| problem_response(ErrorCode::RunNotFound, format!("there is no run {text:?}")))
}

pub(super) fn run_not_found(id: &RunId) -> ProblemResponse {
    problem_response(ErrorCode::RunNotFound, format!("there is no run {id:?}; `quell runs` lists them"))
}
