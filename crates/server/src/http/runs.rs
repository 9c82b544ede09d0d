//! Send a message to a session; list and show runs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use quell_engine::engine::{RunWork, StopTextMode, Submission, SubmitError, SubmitOutcome};
use quell_kernel::admission::AdmissionError;
use quell_kernel::attachment::{FILES_ONLY_TEXT, MAX_ATTACHMENTS, MAX_TOTAL_BYTES, MessageFile};
use quell_kernel::stop_text;
use quell_protocol::api::{OnBusy, Page, RunView, SendAttachment, SendRequest};
use quell_protocol::{ErrorCode, RunId, SessionKey};
use quell_store::RunListFilter;
use serde::Deserialize;

use super::extractors::{JsonBody, QueryFlag, QueryParams, page_size};
use super::sse::{StreamTerms, reserve_stream, stream_events};
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};
use crate::disconnect_stop::DisconnectStop;

impl From<SubmitError> for ProblemResponse {
    fn from(error: SubmitError) -> Self {
        let problem = problem_response(error.code(), error.to_string());
        match retry_seconds(&error) {
            Some(seconds) => problem.retry_after(seconds),
            None => problem,
        }
    }
}

/// When a client may try again that has too many runs at the same time: one of them ends at any moment.
pub(crate) fn retry_seconds(error: &SubmitError) -> Option<u64> {
    matches!(error, SubmitError::Refused(AdmissionError::TooManyClientRuns { .. })).then_some(1)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct SendQuery {
    stop_on_disconnect: QueryFlag,
}

pub(super) async fn send_message(
    call: ApiCall,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<SendQuery>,
    JsonBody(request): JsonBody<SendRequest>,
) -> Result<Response, ProblemResponse> {
    let is_stop = !request.literal && stop_text::is_stop_phrase(&request.text);
    // A stop text is a stop, and no limiter counts it.
    if !is_stop {
        call.count_request()?;
    }
    let caller = call.require_write()?;
    let submission = build_submission(SessionKey::parse(key)?, request, is_stop)?;
    if query.stop_on_disconnect.0 && !is_stop {
        return send_attached(call, submission).await;
    }
    Ok(match call.engine().submit(caller, submission).await? {
        SubmitOutcome::Accepted(answer) => (StatusCode::ACCEPTED, Json(answer)).into_response(),
        SubmitOutcome::Duplicate(answer) => Json(answer).into_response(),
        SubmitOutcome::Stopped(answer) => Json(answer).into_response(),
    })
}

/// `is_stop`: a stop has no use for files, so none of them can refuse it.
pub(crate) fn build_submission(
    session: SessionKey,
    request: SendRequest,
    is_stop: bool,
) -> Result<Submission, ProblemResponse> {
    let files = if is_stop { Arc::default() } else { decode_files(&request.attachments)? };
    let text = request.text;
    let on_busy = match request.on_busy.unwrap_or_default() {
        // A message that the active run takes in has text alone.
        OnBusy::Steer if !files.is_empty() => OnBusy::Queue,
        on_busy => on_busy,
    };
    Ok(Submission {
        session,
        text: if text.trim().is_empty() && !files.is_empty() { FILES_ONLY_TEXT.to_owned() } else { text },
        work: RunWork::Answer { files },
        agent: request.agent,
        idempotency_key: request.idempotency_key,
        on_busy,
        timeout: request.timeout_ms.map(Duration::from_millis),
        stop_text_mode: if request.literal { StopTextMode::Literal } else { StopTextMode::Recognise },
        channel_origin: None,
    })
}

fn decode_files(attachments: &[SendAttachment]) -> Result<Arc<[MessageFile]>, ProblemResponse> {
    let refused = |problem: String| problem_response(ErrorCode::InvalidRequest, problem);
    if attachments.len() > MAX_ATTACHMENTS {
        let count = attachments.len();
        return Err(refused(format!("the message has {count} attachments; it may have {MAX_ATTACHMENTS}")));
    }
    let decode = |(index, attachment): (usize, &SendAttachment)| {
        let label = attachment.name.clone().unwrap_or_else(|| format!("number {}", index + 1));
        MessageFile::decode(attachment.name.clone(), attachment.media_type.as_deref(), &attachment.content)
            .map_err(|problem| refused(format!("attachment {label}: {problem}")))
    };
    let files = attachments.iter().enumerate().map(decode).collect::<Result<Vec<MessageFile>, _>>()?;
    let total: usize = files.iter().map(|file| file.bytes.len()).sum();
    if total > MAX_TOTAL_BYTES {
        return Err(refused(format!("the attachments have {total} bytes together; they may have {MAX_TOTAL_BYTES}")));
    }
    Ok(files.into())
}

/// Sends a message whose answer is the stream of its run's events. The end of the connection stops the run.
async fn send_attached(call: ApiCall, submission: Submission) -> Result<Response, ProblemResponse> {
    let refused = |problem: &str| problem_response(ErrorCode::InvalidRequest, problem);
    let Some(id) = submission.idempotency_key.clone() else {
        return Err(refused(
            "stopOnDisconnect needs an idempotencyKey, so that the run is known before it is accepted",
        ));
    };
    if submission.on_busy == OnBusy::Steer {
        return Err(refused("stopOnDisconnect stops a run of its own; `steer` hands the message to another run"));
    }
    let permit = reserve_stream(&call)?;
    let mut disconnect_stop =
        DisconnectStop::arm(call.engine(), &call.caller, id.clone(), Some(submission.session.clone()));
    match call.engine().submit(&call.caller, submission).await {
        Ok(SubmitOutcome::Accepted(_) | SubmitOutcome::Duplicate(_)) => {
            stream_events(call, &id, StreamTerms { after: 0, permit, disconnect_stop: Some(disconnect_stop) }).await
        }
        Ok(SubmitOutcome::Stopped(answer)) => {
            disconnect_stop.disarm();
            Ok(Json(answer).into_response())
        }
        Err(error) => {
            disconnect_stop.disarm();
            Err(error.into())
        }
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
