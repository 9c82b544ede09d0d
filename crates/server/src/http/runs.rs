//! Send a message to a session; list and show runs.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_engine::engine::{RunWork, StopTextMode, Submission, SubmitError, SubmitOutcome};
use quell_kernel::stop_text;
use quell_protocol::api::{Page, RunView, SendRequest};
use quell_protocol::{ErrorCode, RunId, SessionKey};
use quell_store::RunListFilter;
use serde::Deserialize;

use super::extractors::{JsonBody, QueryParams, page_size};
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<SubmitError> for ProblemResponse {
    fn from(error: SubmitError) -> Self {
        problem_response(error.code(), error.to_string())
    }
}

pub(super) async fn send_message(
    call: ApiCall,
    Path(key): Path<String>,
    JsonBody(request): JsonBody<SendRequest>,
) -> Result<Response, ProblemResponse> {
    // A stop text is a stop, and no limiter counts it.
    if request.literal || !stop_text::is_stop_phrase(&request.text) {
        call.count_request()?;
    }
    let caller = call.require_write()?;
    Ok(match call.engine().submit(caller, submission_of(SessionKey::parse(key)?, request)).await? {
        SubmitOutcome::Accepted(answer) => (StatusCode::ACCEPTED, Json(answer)).into_response(),
        SubmitOutcome::Duplicate(answer) => Json(answer).into_response(),
        SubmitOutcome::Stopped(answer) => Json(answer).into_response(),
    })
}

/// The message of a request, for a session.
pub(crate) fn submission_of(session: SessionKey, request: SendRequest) -> Submission {
    Submission {
        session,
        text: request.text,
        work: RunWork::default(),
        agent: request.agent,
        idempotency_key: request.idempotency_key,
        on_busy: request.on_busy.unwrap_or_default(),
        timeout: request.timeout_ms.map(Duration::from_millis),
        stop_text_mode: if request.literal { StopTextMode::Literal } else { StopTextMode::Recognise },
        channel_origin: None,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunListQuery {
    state: Option<String>,
    session: Option<SessionKey>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list(call: ApiCall, QueryParams(query): QueryParams<RunListQuery>) -> ApiResult<Page<RunView>> {
    list_runs(&call, query).await.map(Json)
}

/// The runs that the caller may read, whichever transport asks.
pub(crate) async fn list_runs(call: &ApiCall, query: RunListQuery) -> Result<Page<RunView>, ProblemResponse> {
    match query.state.as_deref() {
        Some("active") => {
            let mut items = call.engine().active_runs();
            items.retain(|run| query.session.as_ref().is_none_or(|key| *key == run.session_key));
            items.retain(|run| call.engine().may_read_run_view(&call.caller, run));
            Ok(Page { items, next_cursor: None })
        }
        None | Some("all") => {
            let limit = page_size(query.limit);
            let visible_to = call.visible_to();
            let filter =
                RunListFilter { session: query.session, principal: None, visible_to, limit, cursor: query.cursor };
            Ok(call.engine().list_runs(filter).await?)
        }
        Some(other) => {
            Err(problem_response(ErrorCode::InvalidRequest, format!("state is {other:?}; it may be `active` or `all`")))
        }
    }
}

pub(super) async fn show(call: ApiCall, Path(id): Path<String>) -> ApiResult<RunView> {
    let id = parse_run_id(&id)?;
    call.find_readable_run(&id).await.map(Json)
}

/// A text that is not a valid run id is answered as an unknown run.
pub(crate) fn parse_run_id(text: &str) -> Result<RunId, ProblemResponse> {
    RunId::parse(text).map_err(|_| problem_response(ErrorCode::RunNotFound, format!("there is no run {text:?}")))
}

pub(crate) fn run_not_found(id: &RunId) -> ProblemResponse {
    problem_response(ErrorCode::RunNotFound, format!("there is no run {id:?}; `quell runs` lists them"))
}
