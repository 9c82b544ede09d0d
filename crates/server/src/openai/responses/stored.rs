//! Stored responses: show, stream again, cancel, delete, list the items of the request.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use quell_kernel::StopLevel;
use quell_kernel::client_request::openai_responses::IncompleteEnd;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_protocol::{ErrorCode, RunId, StopReason, Surface, Verdict};
use quell_store::{EndedResponse, StoredResponse, StoredResponseState};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::create::{KEEP_ALIVE, sse_headers};
use super::encoder::{ResponseVerdict, without_encrypted_reasoning};
use super::history::{continued_items, now};
use super::items::{PageQuery, QueryPairs, includes_encrypted_reasoning, invalid, query_value};
use super::live::{LiveProgress, LiveResponse};
use super::run::conversation_item;
use crate::budget::Reservation;
use crate::client_run::stream_permit;
use crate::credential_end::CredentialEnd;
use crate::http::{ApiCall, ProblemResponse, QueryParams, ask_response_node, problem_response};
use crate::keep_alive::KEEP_ALIVE_INTERVAL;

pub(super) async fn show(
    call: ApiCall,
    Path(id): Path<String>,
    uri: Uri,
    QueryParams(query): QueryParams<QueryPairs>,
) -> Result<Response, ProblemResponse> {
    let from = first_event(&query)?;
    match query_value(&query, "stream") {
        Some("true") => return stream_again(&call, &id, &uri, from).await,
        Some("false") | None => {}
        Some(_) => return Err(invalid("stream", "must be true or false")),
    }
    if let Some(live) = call.server.live_responses().find(&id, &call.caller.principal) {
        return Ok(Json(live.object()).into_response());
    }
    let mut stored = find_own_response(&call, &id).await?.ok_or_else(|| not_found(&id))?;
    if stored.state != StoredResponseState::Ended {
        // The node that makes it has what has come of it. The database has how it began.
        if let Ok(Some(answer)) = ask_response_node(&call, &id, Method::GET, &uri).await {
            return Ok(answer);
        }
        stored = find_own_response(&call, &id).await?.ok_or_else(|| not_found(&id))?;
    }
    Ok(Json(shown_object(&stored, includes_encrypted_reasoning(&query))).into_response())
}

/// The number of the first event to stream.
fn first_event(query: &QueryPairs) -> Result<usize, ProblemResponse> {
    match query_value(query, "starting_after").map(str::parse::<usize>) {
        None => Ok(0),
        Some(Ok(after)) => Ok(after.saturating_add(1)),
        Some(Err(_)) => Err(invalid("starting_after", "must be the number of an event")),
    }
}

async fn stream_again(call: &ApiCall, id: &str, uri: &Uri, from: usize) -> Result<Response, ProblemResponse> {
    if let Some(live) = call.server.live_responses().find(id, &call.caller.principal) {
        let permit = stream_permit(call)?;
        return Ok(follower_response(ResponseFollower::new(call, live, from, permit)));
    }
    let mut stored = find_own_response(call, id).await?.ok_or_else(|| not_found(id))?;
    if !stored.background {
        let detail = "only a response with `background` can be streamed again";
        return Err(problem_response(ErrorCode::InvalidRequest, detail).field("stream"));
    }
    if stored.state != StoredResponseState::Ended {
        if let Some(answer) = ask_response_node(call, id, Method::GET, uri).await? {
            return Ok(answer);
        }
        // It has ended meanwhile, or its node has gone.
        stored = find_own_response(call, id).await?.ok_or_else(|| not_found(id))?;
    }
    if stored.state != StoredResponseState::Ended {
        let detail = "the node of the cluster that makes this response does not answer; send this again";
        return Err(problem_response(ErrorCode::NodeUnreachable, detail).retry_after(1));
    }
    let frames = match call.engine().responses().events(stored.id.clone()).await? {
        Some(events) => {
            let frames: Vec<String> = serde_json::from_str(&events).unwrap_or_default();
            frames.into_iter().skip(from).collect()
        }
        // The events went with the daemon that died.
        None => {
            let mut event = json!({"type": "response.failed", "response": shown_object(&stored, false)});
            event["sequence_number"] = from.into();
            format!("event: response.failed\ndata: {event}\n\n")
        }
    };
    Ok((sse_headers(), frames).into_response())
}

pub(super) async fn cancel(call: ApiCall, Path(id): Path<String>, uri: Uri) -> Result<Response, ProblemResponse> {
    let call = call.on_surface(Surface::Openai);
    call.require_stop()?;
    // The stop of a response of this daemon does not wait for the database.
    if let Some(live) = call.server.live_responses().find(&id, &call.caller.principal) {
        stop_run(&call, &live.run).await;
        // waits: for the end of a run that was stopped.
        live.wait_end().await;
        return Ok(Json(live.object()).into_response());
    }
    let mut stored = find_own_response(&call, &id).await?.ok_or_else(|| not_found(&id))?;
    if !stored.background {
        let detail = "only a response with `background` can be cancelled; close the connection of another one";
        return Err(problem_response(ErrorCode::InvalidRequest, detail));
    }
    if stored.state != StoredResponseState::Ended {
        stop_run(&call, &stored.run).await;
        // The node that makes it answers once its end is stored.
        if let Some(answer) = ask_response_node(&call, &id, Method::POST, &uri).await? {
            return Ok(answer);
        }
        stored = find_own_response(&call, &id).await?.ok_or_else(|| not_found(&id))?;
    }
    Ok(Json(shown_object(&stored, false)).into_response())
}

/// Stops the run and waits until nothing of it is left, on whichever node it is.
async fn stop_run(call: &ApiCall, run: &RunId) {
    let scope = StopScope::run(run.clone());
    let request = StopRequest { level: StopLevel::Gentle, reason: StopReason::User, surface: call.caller.surface };
    let mut stop = call.engine().stop(&call.caller, &scope, &request);
    stop.wait_settled_everywhere().await;
}

pub(super) async fn delete(call: ApiCall, Path(id): Path<String>) -> Result<Json<Value>, ProblemResponse> {
    call.require_write()?;
    let stored = find_own_response(&call, &id).await?.ok_or_else(|| not_found(&id))?;
    if stored.state != StoredResponseState::Ended {
        stop_run(&call, &stored.run).await;
        if let Some(live) = call.server.live_responses().find(&id, &call.caller.principal) {
            // waits: for the end of a run that was stopped.
            live.wait_end().await;
        }
    }
    call.engine().responses().delete(stored.id).await?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

pub(super) async fn list_input_items(
    call: ApiCall,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<QueryPairs>,
) -> Result<Json<Value>, ProblemResponse> {
    let stored = find_own_response(&call, &id).await?.ok_or_else(|| not_found(&id))?;
    PageQuery::parse(&query)?.page_of(serde_json::from_str(&stored.input).unwrap_or_default())
}

/// The response of this id, if it belongs to the caller. One whose daemon has gone is ended first.
pub(super) async fn find_own_response(call: &ApiCall, id: &str) -> Result<Option<StoredResponse>, ProblemResponse> {
    if !is_id(id) {
        return Ok(None);
    }
    let responses = call.engine().responses();
    let found = responses.find(id.to_owned(), now()).await?;
    let Some(stored) = found.filter(|stored| stored.owner == call.caller.principal) else { return Ok(None) };
    if stored.state != StoredResponseState::Abandoned {
        return Ok(Some(stored));
    }
    end_abandoned_response(call, stored).await?;
    Ok(responses.find(id.to_owned(), now()).await?)
}

/// Ends the responses of a conversation whose daemon has gone.
pub(super) async fn end_abandoned(call: &ApiCall, conversation: &str) -> Result<(), ProblemResponse> {
    for stored in call.engine().responses().find_abandoned(conversation.to_owned()).await? {
        end_abandoned_response(call, stored).await?;
    }
    Ok(())
}

async fn end_abandoned_response(call: &ApiCall, stored: StoredResponse) -> Result<(), ProblemResponse> {
    let verdict = call.engine().find_run(&stored.run).await?.and_then(|run| run.verdict);
    let object = abandoned_object(&stored, verdict.as_ref());
    // The client of a response in the foreground sends its request again.
    let keeps_request = stored.background && stored.conversation.is_some();
    let input: Vec<Value> = serde_json::from_str(&stored.input).unwrap_or_default();
    let items = if keeps_request { continued_items(input, &object) } else { Vec::new() };
    let ended = EndedResponse {
        id: stored.id,
        response: object.to_string(),
        events: None,
        conversation_items: items.iter().map(conversation_item).collect(),
    };
    call.engine().responses().end(ended).await?;
    Ok(())
}

/// The object of a response whose daemon has gone: what had come of its answer went with it.
fn abandoned_object(stored: &StoredResponse, verdict: Option<&Verdict>) -> Value {
    let mut object: Value = serde_json::from_str(&stored.response).unwrap_or_default();
    let is_cancelled = verdict.is_some_and(|verdict| ResponseVerdict::of(verdict, None) == ResponseVerdict::Cancelled);
    object["status"] = if is_cancelled { "cancelled" } else { "failed" }.into();
    if !is_cancelled {
        let message = if stored.background && stored.conversation.is_some() {
            "the daemon was stopped while it made this response; its conversation has the request"
        } else {
            "the daemon was stopped while it made this response; send the request again"
        };
        object["error"] = json!({"code": "server_error", "message": message});
    }
    let gone = Verdict::Aborted { reason: StopReason::DaemonStopped, by: None };
    let verdict = verdict.cloned().unwrap_or(gone);
    IncompleteEnd { verdict, cut_bytes: 0 }.mark(&mut object);
    object
}

fn shown_object(stored: &StoredResponse, with_encrypted_reasoning: bool) -> Value {
    let mut object: Value = serde_json::from_str(&stored.response).unwrap_or_default();
    IncompleteEnd::remove(&mut object);
    if !with_encrypted_reasoning && let Some(output) = object["output"].as_array_mut() {
        for item in output {
            *item = without_encrypted_reasoning(item.take());
        }
    }
    object
}

/// False for a text that is no id of ours: it is answered as an unknown id.
pub(super) fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn not_found(id: &str) -> ProblemResponse {
    let detail = format!("there is no response {id:?}; responses are kept for 30 days, unless `store` was false");
    problem_response(ErrorCode::NotFound, detail)
}

/// Reads the events of a background response while it is made. Dropping it stops nothing.
pub(super) struct ResponseFollower {
    live: Arc<LiveResponse>,
    /// The number of the next event.
    next: usize,
    is_over: bool,
    credential_end: CredentialEnd,
    _permit: Reservation,
}

impl ResponseFollower {
    pub(super) fn new(call: &ApiCall, live: Arc<LiveResponse>, next: usize, permit: Reservation) -> Self {
        let credential_end = CredentialEnd::watch(call);
        Self { live, next, is_over: false, credential_end, _permit: permit }
    }

    async fn next_frames(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        // waits: for the run of the response; a client that leaves drops this.
        let progress = tokio::select! {
            biased;
            _ = self.credential_end.wait() => return None,
            progress = timeout(KEEP_ALIVE_INTERVAL, self.live.wait_event(self.next)) => progress,
        };
        let Ok(progress) = progress else { return Some(Bytes::from_static(KEEP_ALIVE.as_bytes())) };
        self.is_over = progress == LiveProgress::Ended;
        let frames = self.live.frames_from(self.next);
        self.next += frames.len();
        (!frames.is_empty()).then(|| Bytes::from(frames.concat()))
    }
}

pub(super) fn follower_response(follower: ResponseFollower) -> Response {
    let frames = stream::unfold(follower, |mut follower| async move {
        // waits: for the run of the response; a client that leaves drops this.
        let frames = follower.next_frames().await?;
        Some((Ok::<_, Infallible>(frames), follower))
    });
    (sse_headers(), Body::from_stream(frames)).into_response()
}
