//! Stream the events of a run as server-sent events, resumable by `Last-Event-ID` or `?after=`. The stream ends after
//! `run.ended`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quell_engine::access::Credential;
use quell_engine::engine::{Follower, RunFollow};
use quell_protocol::{ErrorCode, RunEvent};
use serde::Deserialize;
use tokio::sync::watch;

use super::auth::request_credential;
use super::extractors::QueryParams;
use super::runs::{parse_run_id, run_not_found};
use super::{ApiCall, ProblemResponse, problem_response};
use crate::budget::Reservation;
use crate::state::ServerState;

/// Pause after which a comment is sent, so that both sides notice a dead connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

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
    let Some(permit) = call.server.budgets().streams.reserve_one() else {
        return Err(problem_response(
            ErrorCode::TooManyConnections,
            "close a stream, or raise max_connections in [server]; stops are not counted and still get in",
        ));
    };
    call.find_readable_run(&id).await?;
    let follow = call.engine().follow_run(&id, after).await?.ok_or_else(|| run_not_found(&id))?;
    let reader = match follow {
        RunFollow::Live(follower) => {
            let revocations = call.engine().access().subscribe_revocations();
            let credential = request_credential(&headers, &call.server);
            RunEventReader::Live { follower, server: call.server, credential, revocations, _permit: permit }
        }
        RunFollow::Ended(events) => RunEventReader::Ended(events.into_iter()),
    };
    let stream = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(sse_event(&event)), reader))
    });
    let sse = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL));
    Ok(([("x-accel-buffering", "no")], sse).into_response())
}

enum RunEventReader {
    Live {
        follower: Follower,
        server: ServerState,
        /// The reader's credential; the stream ends when it is revoked.
        credential: Option<Credential>,
        revocations: watch::Receiver<()>,
        _permit: Reservation,
    },
    Ended(std::vec::IntoIter<RunEvent>),
}

impl RunEventReader {
    async fn next(&mut self) -> Option<Arc<RunEvent>> {
        match self {
            Self::Ended(events) => events.next().map(Arc::new),
            Self::Live { follower, server, credential, revocations, _permit: _ } => {
                let signed_out = async {
                    let is_authorized = || {
                        credential
                            .as_ref()
                            .is_some_and(|credential| server.engine().access().resolve_credential(credential).is_some())
                    };
                    // The sender lives as long as the engine. Every iteration checks the credential again.
                    while is_authorized() && revocations.changed().await.is_ok() {}
                };
                tokio::select! {
                    biased;
                    () = signed_out => None,
                    event = follower.next() => event,
                    // When the daemon closes, hand out the events that are ready; do not wait for more.
                    () = server.engine().wait_for_close() => follower.try_next(),
                }
            }
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

fn sse_event(event: &RunEvent) -> Event {
    let data = serde_json::to_string(event).unwrap_or_default();
    Event::default().id(event.seq.to_string()).event(event.name()).data(data)
}
