//! `POST /v1/responses`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use quell_engine::engine::CountTokensError;
use quell_kernel::client_request::ClientRequest;
use quell_kernel::client_request::openai_responses::ResponsesRequest;
use quell_protocol::{ErrorCode, Surface, Verdict};
use quell_store::StoreError;
use serde_json::{Value, json};

use super::encoder::{ResponseEncoder, ResponseEvent};
use super::history::{load_history, now};
use super::ids::ResponseIds;
use super::items::with_ids;
use super::live::{LiveProgress, LiveResponse};
use super::object::new_response;
use super::run::{ResponseRecord, ResponseRun, RunStep};
use super::stored::{ResponseFollower, follower_response};
use crate::budget::Reservation;
use crate::client_run::{AnswerReader, AnswerRequest, bound_session, run_headers, stream_permit, verdict_problem};
use crate::http::{ApiCall, JsonBody, ProblemResponse, problem_response};
use crate::openai::REQUEST_ID_HEADER;
use crate::state::ServerState;

pub(super) async fn create(
    call: ApiCall,
    headers: HeaderMap,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ProblemResponse> {
    let call = call.on_surface(Surface::Openai);
    call.require_write()?;
    let session = bound_session(&headers, &body)?;
    let mut request = ResponsesRequest::parse(&body)?;
    let history = load_history(&call, &mut request).await?;
    let ClientRequest { model, conversation, answer, .. } = request.client_request(&history)?;
    let permit = if request.stream { Some(stream_permit(&call)?) } else { None };
    let reader = AnswerReader::start(&call, AnswerRequest { model, conversation, answer, session }).await?;
    let run = response_run(&call, reader, &body, request);
    match (run.record.as_ref().is_some_and(|record| record.background), permit) {
        (true, permit) => answer_in_background(&call, run, permit).await,
        (false, Some(permit)) => stream_in_foreground(run, permit).await,
        (false, None) => answer_in_foreground(run).await,
    }
}

fn response_run(call: &ApiCall, reader: AnswerReader, body: &Value, request: ResponsesRequest) -> ResponseRun {
    let (ids, created_at) = (ResponseIds::of_run(reader.run_id()), now());
    let object = new_response(&ids, body, &request, created_at);
    let record = request.store.then(|| ResponseRecord {
        owner: call.caller.principal.clone(),
        previous: request.previous,
        conversation: request.conversation,
        background: request.background,
        created_at,
        input: with_ids(request.input, &ids),
    });
    let encoder = ResponseEncoder::new(ids, object, request.includes_encrypted_reasoning);
    ResponseRun { engine: call.engine().clone(), reader, encoder, record, pending: None, verdict: None }
}

/// `POST /v1/responses/input_tokens`: an estimate, as all providers count differently.
pub(super) async fn count_input_tokens(
    call: ApiCall,
    JsonBody(body): JsonBody<Value>,
) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let mut request = ResponsesRequest::parse(&body)?;
    let history = load_history(&call, &mut request).await?;
    let ClientRequest { model, conversation, answer, .. } = request.client_request(&history)?;
    let tokens = call.engine().count_client_tokens(&model, &conversation, &answer).map_err(|error| match error {
        CountTokensError::UnknownModel(error) => problem_response(ErrorCode::ModelNotFound, error.to_string()),
        CountTokensError::Model(error) => problem_response(ErrorCode::InvalidRequest, error.to_string()),
    })?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": tokens})))
}

/// A response that belongs to its connection: dropped before its end, its run is stopped, and what has come of it is
/// stored.
struct ForegroundRun(Option<ResponseRun>);

impl ForegroundRun {
    async fn next(&mut self) -> Option<RunStep> {
        // waits: for the run, which dropping this stops.
        self.0.as_mut()?.next().await
    }
}

impl Drop for ForegroundRun {
    fn drop(&mut self) {
        let Some(mut run) = self.0.take().filter(|run| run.verdict.is_none()) else { return };
        run.reader.stop();
        if run.record.is_some() {
            let engine = run.engine.clone();
            // waits: for a run that was stopped.
            engine.spawn_until_run_ends(async move { while run.next().await.is_some() {} });
        }
    }
}

async fn answer_in_foreground(run: ResponseRun) -> Result<Response, ProblemResponse> {
    let headers = run_headers(&run.reader, REQUEST_ID_HEADER);
    let mut foreground = ForegroundRun(Some(run));
    // waits: for the run, which a dropped request stops.
    while foreground.next().await.is_some() {}
    let Some(run) = foreground.0.take() else { return Err(run_gone()) };
    match &run.verdict {
        Some(verdict) if is_without_answer(&run) => Err(verdict_problem(verdict)),
        Some(_) => Ok((headers, Json(run.encoder.snapshot())).into_response()),
        None => Err(run_gone()),
    }
}

fn run_gone() -> ProblemResponse {
    problem_response(ErrorCode::Internal, "the run has gone")
}

/// True if the response failed or was stopped.
fn is_without_answer(run: &ResponseRun) -> bool {
    let status = &run.encoder.snapshot()["status"];
    status == "failed" || status == "cancelled"
}

async fn stream_in_foreground(run: ResponseRun, permit: Reservation) -> Result<Response, ProblemResponse> {
    let headers = run_headers(&run.reader, REQUEST_ID_HEADER);
    let mut foreground = ForegroundRun(Some(run));
    let mut events = Vec::new();
    if let Some(run) = &mut foreground.0 {
        run.encoder.begin(&mut events);
    }
    // A failure before the first part has a status of its own.
    let first = foreground.next().await;
    if let Some(run) = &foreground.0
        && let Some(verdict @ Verdict::Failed { .. }) = &run.verdict
        && is_without_answer(run)
    {
        return Err(verdict_problem(verdict));
    }
    if let Some(RunStep::Events(first)) = first {
        events.extend(first);
    }
    let begun = (foreground, frames_of(&events), permit);
    let frames = stream::unfold(begun, |(mut foreground, mut frames, permit)| async move {
        if frames.is_empty() {
            // waits: for the run, which dropping the stream stops.
            frames = match foreground.next().await? {
                RunStep::Events(events) => frames_of(&events),
                RunStep::StillWaiting => KEEP_ALIVE.to_owned(),
            };
        }
        if let Some(run) = &mut foreground.0 {
            frames.push_str(&frames_of(&run.try_next()));
        }
        let sent = Bytes::from(std::mem::take(&mut frames));
        Some((Ok::<_, Infallible>(sent), (foreground, frames, permit)))
    });
    Ok((headers, sse_headers(), Body::from_stream(frames)).into_response())
}

/// Shows that the stream is alive.
pub(super) const KEEP_ALIVE: &str = ": waiting\n\n";

fn frames_of(events: &[ResponseEvent]) -> String {
    events.iter().map(|event| event.frame.as_str()).collect()
}

pub(super) fn sse_headers() -> [(HeaderName, HeaderValue); 2] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ]
}

/// Answers once the response is in the database. Its run goes on without the client.
async fn answer_in_background(
    call: &ApiCall,
    run: ResponseRun,
    permit: Option<Reservation>,
) -> Result<Response, ProblemResponse> {
    let headers = run_headers(&run.reader, REQUEST_ID_HEADER);
    let id = run.encoder.ids().response();
    let owner = call.caller.principal.clone();
    let live = Arc::new(LiveResponse::new(owner, run.reader.run_id().clone(), run.encoder.snapshot()));
    call.server.live_responses().insert(id, Arc::clone(&live));
    // Begun before the first wait: a client that leaves now has a response that goes on, or none.
    call.engine().spawn_until_run_ends(make_in_background(call.server.clone(), run, Arc::clone(&live)));
    if let LiveProgress::Refused(why) = live.wait_stored().await {
        return Err(problem_response(ErrorCode::StoreUnavailable, why));
    }
    match permit {
        Some(permit) => {
            let follower = ResponseFollower::new(call, live, 0, permit);
            Ok((headers, follower_response(follower)).into_response())
        }
        None => Ok((headers, Json(live.object())).into_response()),
    }
}

/// Makes a response to its end. The end is stored before its readers have it.
async fn make_in_background(server: ServerState, mut run: ResponseRun, live: Arc<LiveResponse>) {
    let id = run.encoder.ids().response();
    if let Err(error) = run.store_begun().await {
        // Dropping the run stops it.
        drop(run);
        server.live_responses().remove(&id);
        live.refuse(error.to_string());
        return;
    }
    let mut events = Vec::new();
    run.encoder.begin(&mut events);
    live.push(events, run.encoder.snapshot());
    // waits: for the run, which a cancel stops, as any stop and a shutdown.
    while let Some(step) = run.next().await {
        if let RunStep::Events(events) = step {
            let is_last = run.verdict.is_some();
            if is_last {
                let all = live.frames().into_iter().chain(events.iter().map(|event| event.frame.clone())).collect();
                report_unstored(&id, run.store_end(all).await);
            }
            live.push(events, run.encoder.snapshot());
        }
    }
    server.live_responses().remove(&id);
    live.end();
}

fn report_unstored(id: &str, stored: Result<bool, StoreError>) {
    if let Err(error) = stored {
        tracing::error!(%error, response = id, "the end of a response could not be stored; after a restart it has failed");
    }
}
