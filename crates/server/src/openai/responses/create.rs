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
use quell_protocol::{ErrorCode, RunId, SessionKey, Surface, Verdict};
use quell_store::StoredResponseState;
use serde_json::{Value, json};

use super::begun::BegunResponse;
use super::conversations::check_room;
use super::encoder::{ResponseEncoder, ResponseEvent};
use super::history::{load_conversation, load_history, now};
use super::ids::ResponseIds;
use super::items::with_ids;
use super::live::{LiveResponse, SharedEncoder};
use super::object::new_response;
use super::run::{ResponseRecord, ResponseRun, RunStep};
use super::stored::{ResponseFollower, follower_response};
use crate::budget::Reservation;
use crate::client_run::{AnswerReader, AnswerRequest, bound_session, run_headers, stream_permit, verdict_problem};
use crate::http::{ApiCall, JsonBody, ProblemResponse, problem_response};
use crate::openai::REQUEST_ID_HEADER;
use crate::sent_message::new_run_id;
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
    if request.store {
        check_room(&call).await?;
    }
    let permit = if request.stream { Some(stream_permit(&call)?) } else { None };
    let history = load_history(&call, &mut request).await?;
    let mut run = NewResponse::of(&call, &body, request, session);
    run.begin(&call).await?;
    let run = run.start(&call, history).await?;
    match (run.record.as_ref().is_some_and(|record| record.background), permit) {
        (true, permit) => answer_in_background(&call, run, permit).await,
        (false, Some(permit)) => stream_in_foreground(run, permit).await,
        (false, None) => answer_in_foreground(run).await,
    }
}

/// A response whose run has not started.
struct NewResponse {
    run: RunId,
    request: ResponsesRequest,
    session: Option<SessionKey>,
    /// The object as it begins.
    object: Value,
    record: Option<ResponseRecord>,
    begun: Option<BegunResponse>,
}

impl NewResponse {
    fn of(call: &ApiCall, body: &Value, mut request: ResponsesRequest, session: Option<SessionKey>) -> Self {
        let (run, created_at) = (new_run_id(), now());
        let ids = ResponseIds::of_run(&run);
        let object = new_response(&ids, body, &request, created_at);
        let record = request.store.then(|| ResponseRecord {
            owner: call.caller.principal.clone(),
            previous: request.previous.clone(),
            conversation: request.conversation.clone(),
            background: request.background,
            created_at,
            input: with_ids(request.input.clone(), &ids),
        });
        if let Some(record) = &record {
            request.input.clone_from(&record.input);
        }
        Self { run, request, session, object, record, begun: None }
    }

    /// Stores it as begun, if others are to find it while it is made.
    async fn begin(&mut self, call: &ApiCall) -> Result<(), ProblemResponse> {
        let Some(record) = self.record.as_ref().filter(|record| record.is_begun_first()) else { return Ok(()) };
        let response = record.stored(&self.run, StoredResponseState::Open, &self.object);
        self.begun = Some(BegunResponse::begin(call.engine(), response).await?);
        Ok(())
    }

    async fn start(mut self, call: &ApiCall, history: Vec<Value>) -> Result<ResponseRun, ProblemResponse> {
        match self.start_reader(call, history).await {
            Ok(reader) => Ok(self.into_run(call, reader)),
            Err(problem) => {
                if let Some(begun) = self.begun.take() {
                    begun.delete().await;
                }
                Err(problem)
            }
        }
    }

    async fn start_reader(&mut self, call: &ApiCall, history: Vec<Value>) -> Result<AnswerReader, ProblemResponse> {
        // From now on nobody else extends the conversation. Somebody may have done so before.
        let history = match &self.request.conversation {
            Some(id) => load_conversation(call, id).await?,
            None => history,
        };
        let ClientRequest { model, conversation, answer, .. } = self.request.client_request(&history)?;
        let request = AnswerRequest { model, conversation, answer, session: self.session.take() };
        AnswerReader::start_as(call, self.run.clone(), request).await
    }

    fn into_run(self, call: &ApiCall, reader: AnswerReader) -> ResponseRun {
        let Self { run, request, object, record, mut begun, .. } = self;
        if let (Some(begun), Some(record)) = (&mut begun, &record) {
            begun.set_end(record.failed(&run, object.clone()));
        }
        let ids = ResponseIds::of_run(&run);
        let encoder = ResponseEncoder::new(ids, object, request.includes_encrypted_reasoning);
        let (engine, encoder) = (call.engine().clone(), SharedEncoder::new(encoder));
        ResponseRun { engine, reader, encoder, record, begun, pending: None, verdict: None }
    }
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
    call.engine().check_client_model(&call.caller, &model)?;
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
        let Some(mut run) = self.0.take() else { return };
        let engine = run.engine.clone();
        if run.verdict.is_none() {
            run.reader.stop();
            if run.record.is_some() {
                // waits: for a run that was stopped.
                engine.spawn_until_run_ends(async move { while run.next().await.is_some() {} });
            }
        } else if run.begun.as_ref().is_some_and(BegunResponse::is_open) {
            // Dropped while it stored how the run ended.
            // waits: for the database, after the end of the run.
            engine.spawn_until_run_ends(async move { run.store_foreground_end(&mut Vec::new()).await });
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
        Some(_) => Ok((headers, Json(run.encoder.lock().snapshot())).into_response()),
        None => Err(run_gone()),
    }
}

fn run_gone() -> ProblemResponse {
    problem_response(ErrorCode::Internal, "the run has gone")
}

/// True if the response failed or was stopped.
fn is_without_answer(run: &ResponseRun) -> bool {
    let status = &run.encoder.lock().snapshot()["status"];
    status == "failed" || status == "cancelled"
}

async fn stream_in_foreground(run: ResponseRun, permit: Reservation) -> Result<Response, ProblemResponse> {
    let headers = run_headers(&run.reader, REQUEST_ID_HEADER);
    let mut foreground = ForegroundRun(Some(run));
    let mut events = Vec::new();
    if let Some(run) = &mut foreground.0 {
        run.encoder.lock().begin(&mut events);
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

/// Answers at once: the database has the response. Its run goes on without the client.
async fn answer_in_background(
    call: &ApiCall,
    run: ResponseRun,
    permit: Option<Reservation>,
) -> Result<Response, ProblemResponse> {
    let headers = run_headers(&run.reader, REQUEST_ID_HEADER);
    let id = run.encoder.lock().ids().response();
    let owner = call.caller.principal.clone();
    let live = Arc::new(LiveResponse::new(owner, run.reader.run_id().clone(), run.encoder.clone()));
    let place = LivePlace::take(&call.server, id, &live);
    // Begun before the first wait: a client that leaves now has a response that goes on, or none.
    call.engine().spawn_until_run_ends(make_in_background(run, place));
    match permit {
        Some(permit) => {
            let follower = ResponseFollower::new(call, live, 0, permit);
            Ok((headers, follower_response(follower)).into_response())
        }
        None => Ok((headers, Json(live.object())).into_response()),
    }
}

/// The place of a response among those that are being made. Dropped, also by a panic, it ends the waits of its readers.
struct LivePlace {
    server: ServerState,
    id: String,
    live: Arc<LiveResponse>,
}

impl LivePlace {
    fn take(server: &ServerState, id: String, live: &Arc<LiveResponse>) -> Self {
        server.live_responses().insert(id.clone(), Arc::clone(live));
        Self { server: server.clone(), id, live: Arc::clone(live) }
    }
}

impl Drop for LivePlace {
    fn drop(&mut self) {
        self.server.live_responses().remove(&self.id);
        self.live.end();
    }
}

/// Makes a response to its end. The end is stored before its readers have it.
async fn make_in_background(mut run: ResponseRun, place: LivePlace) {
    let live = &place.live;
    let mut events = Vec::new();
    run.encoder.lock().begin(&mut events);
    live.push(events);
    // waits: for the run, which a cancel stops, as any stop and a shutdown.
    while let Some(step) = run.next().await {
        let RunStep::Events(mut events) = step else { continue };
        if run.verdict.is_none() {
            live.push(events);
            continue;
        }
        // waits: for the database, after the end of the run.
        run.store_background_end(live.frames(), &mut events).await;
        live.push_end(events);
    }
    live.end();
    if let Some(begun) = run.begun.take() {
        // As long as the database says that it is in progress, it is read here.
        // waits: for the database; a shutdown ends it.
        begun.settle().await;
    }
}
