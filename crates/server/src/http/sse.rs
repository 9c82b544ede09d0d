//! Stream the events of a run as server-sent events, resumable by `Last-Event-ID` or `?after=`. The stream ends after
//! `run.ended`, and at once when the reader loses its rights. A message may be sent so that its answer is this stream, and
//! that the end of the connection stops the run.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quell_engine::access::Caller;
use quell_engine::engine::{Follower, RemoteFollower, RunFollow};
use quell_protocol::{ErrorCode, EventKind, Principal, RunEvent, RunId, SessionKey};
use serde::Deserialize;
use serde_json::json;

use super::extractors::QueryParams;
use super::runs::{parse_run_id, run_not_found};
use super::{ApiCall, ProblemResponse, problem_response};
use crate::budget::Reservation;
use crate::credential_end::CredentialEnd;
use crate::disconnect_stop::DisconnectStop;
use crate::keep_alive::KEEP_ALIVE_INTERVAL;
use crate::state::ServerState;
use crate::stream_end::StreamEnd;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventsQuery {
    after: Option<u64>,
}

pub(super) async fn events(
    call: ApiCall,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    let id = parse_run_id(&id)?;
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    let permit = reserve_stream(&call)?;
    stream_events(call, &id, StreamTerms { after, permit, disconnect_stop: None }).await
}

/// Takes the place of a stream among those that are open.
pub(super) fn reserve_stream(call: &ApiCall) -> Result<Reservation, ProblemResponse> {
    call.server.budgets().streams.reserve_one().ok_or_else(|| {
        problem_response(
            ErrorCode::TooManyConnections,
            "close a stream, or raise max_connections in [server]; stops are not counted and still get in",
        )
    })
}

pub(super) struct StreamTerms {
    /// Number of the last event that the reader has.
    pub(super) after: u64,
    pub(super) permit: Reservation,
    /// Stops the run when the stream ends before it.
    pub(super) disconnect_stop: Option<DisconnectStop>,
}

pub(super) async fn stream_events(call: ApiCall, id: &RunId, terms: StreamTerms) -> Result<Response, ProblemResponse> {
    let reader = RunEventReader::follow(call, id, terms).await?;
    let stream = stream::unfold(reader, |mut reader| async move {
        let (frame, next_reader) = match reader.next().await? {
            Ok(event) => (sse_event(&event), reader),
            Err(end) => (closed_event(&end), RunEventReader::Ended(Vec::new().into_iter())),
        };
        Some((Ok::<_, Infallible>(frame), next_reader))
    });
    let sse = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL));
    Ok(([("x-accel-buffering", "no")], sse).into_response())
}

/// Reads the events of a run for a client, as long as it may.
pub(crate) enum RunEventReader {
    Live(Box<LiveRunReader>),
    Ended(std::vec::IntoIter<RunEvent>),
}

/// Follows a run on this node of the cluster or on another one.
pub(crate) enum AnyFollower {
    Here(Follower),
    Remote(Box<RemoteFollower>),
}

impl AnyFollower {
    async fn next(&mut self) -> Option<Arc<RunEvent>> {
        match self {
            Self::Here(follower) => follower.next().await,
            Self::Remote(follower) => follower.next().await,
        }
    }

    /// The next event if it is here.
    fn try_next(&mut self) -> Option<Arc<RunEvent>> {
        match self {
            Self::Here(follower) => follower.try_next(),
            Self::Remote(_) => None,
        }
    }
}

pub(crate) struct LiveRunReader {
    follower: AnyFollower,
    server: ServerState,
    caller: Caller,
    /// The sender of the message, and its session.
    principal: Principal,
    session: SessionKey,
    credential_end: CredentialEnd,
    _permit: Reservation,
    disconnect_stop: Option<DisconnectStop>,
}

impl RunEventReader {
    /// Counts as an open stream until it is dropped. Begins behind the event number `after`.
    pub(crate) async fn open(call: ApiCall, id: &RunId, after: u64) -> Result<Self, ProblemResponse> {
        let permit = reserve_stream(&call)?;
        Self::open_with(call, id, after, permit).await
    }

    /// As [`RunEventReader::open`], in a place that was taken before.
    pub(crate) async fn open_with(
        call: ApiCall,
        id: &RunId,
        after: u64,
        permit: Reservation,
    ) -> Result<Self, ProblemResponse> {
        Self::follow(call, id, StreamTerms { after, permit, disconnect_stop: None }).await
    }

    async fn follow(call: ApiCall, id: &RunId, terms: StreamTerms) -> Result<Self, ProblemResponse> {
        let run = call.find_readable_run(id).await?;
        let follow = call.engine().follow_run(id, terms.after).await?.ok_or_else(|| run_not_found(id))?;
        let follower = match follow {
            RunFollow::Live(follower) => AnyFollower::Here(follower),
            RunFollow::Remote(follower) => AnyFollower::Remote(follower),
            RunFollow::Ended(events) => {
                terms.disconnect_stop.into_iter().for_each(|mut stop| stop.disarm());
                return Ok(Self::Ended(events.into_iter()));
            }
        };
        Ok(Self::Live(Box::new(LiveRunReader {
            follower,
            credential_end: CredentialEnd::watch(&call),
            server: call.server,
            caller: call.caller,
            principal: run.principal,
            session: run.session_key,
            _permit: terms.permit,
            disconnect_stop: terms.disconnect_stop,
        })))
    }

    /// The next event, or why there is none for this client any more.
    pub(crate) async fn next(&mut self) -> Option<Result<Arc<RunEvent>, StreamEnd>> {
        match self {
            Self::Ended(events) => events.next().map(|event| Ok(Arc::new(event))),
            Self::Live(reader) => reader.next().await,
        }
    }
}

impl LiveRunReader {
    /// The next event, or why the reader gets none any more.
    async fn next(&mut self) -> Option<Result<Arc<RunEvent>, StreamEnd>> {
        loop {
            let event = match self.wait_next().await? {
                Ok(event) => event,
                Err(end) => return Some(Err(end)),
            };
            if matches!(event.kind, EventKind::Ended { .. }) {
                self.disconnect_stop.iter_mut().for_each(DisconnectStop::disarm);
            }
            if let Some(event) = self.server.engine().visible_event(&self.caller, event) {
                return Some(Ok(event));
            }
        }
    }

    async fn wait_next(&mut self) -> Option<Result<Arc<RunEvent>, StreamEnd>> {
        let Self { follower, server, caller, principal, session, credential_end, _permit: _, disconnect_stop: _ } =
            self;
        let engine = server.engine();
        tokio::select! {
            biased;
            refusal = credential_end.wait() => Some(Err(StreamEnd::Credential(refusal))),
            () = engine.wait_run_withdrawn(caller, principal, session) => Some(Err(StreamEnd::SharingWithdrawn)),
            event = follower.next() => event.map(Ok),
            // When the daemon closes, hand out the events that are ready; do not wait for more.
            () = engine.wait_for_close() => follower.try_next().map(Ok),
        }
    }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ProblemResponse> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let text = id.to_str().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| problem_response(ErrorCode::InvalidRequest, "Last-Event-ID must be the number of an event"))
}

/// The last event of a stream that the server ends before the run: `{code, reason}`. It has no id, so that a client
/// resumes behind the last event of the run.
fn closed_event(end: &StreamEnd) -> Event {
    Event::default().event("stream.closed").data(json!({"code": end.code(), "reason": end.reason()}).to_string())
}

fn sse_event(event: &RunEvent) -> Event {
    let data = serde_json::to_string(event).unwrap_or_default();
    Event::default().id(event.seq.to_string()).event(event.name()).data(data)
}
