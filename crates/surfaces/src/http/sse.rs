//! A run's events as server-sent events, resumable by `Last-Event-ID` or `?after=`. The stream ends after `run.ended`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quell_engine::access::Credential;
use quell_engine::dispatch::{Follow, Follower};
use quell_protocol::{ErrorCode, RunEvent};
use serde::Deserialize;
use tokio::sync::watch;

use super::auth::credential;
use super::body::Asked;
use super::runs::{known_id, no_run};
use super::{Refused, Visitor, refuse};
use crate::door::{Door, StreamPlace};

/// Silence after which a comment is sent, so that a dead connection is noticed by both sides.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventsQuery {
    after: Option<u64>,
}

pub(super) async fn events(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(id): Path<String>,
    Asked(query): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let id = known_id(&id)?;
    let after = cursor(&headers)?.or(query.after).unwrap_or(0);
    let Some(place) = door.take_stream() else {
        return Err(refuse(
            ErrorCode::TooManyConnections,
            "close a stream, or raise max_connections in [server]; stops are not counted and still get in",
        ));
    };
    let follow = door.engine().follow(&id, after).await?.ok_or_else(|| no_run(&id))?;
    let reader = match follow {
        Follow::Live(follower) => {
            let withdrawals = door.engine().access().withdrawals();
            let shown = credential(&headers, &door);
            Reader::Live { follower, door, shown, withdrawals, _place: place }
        }
        Follow::Over(events) => Reader::Over(events.into_iter()),
    };
    let stream = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(frame(&event)), reader))
    });
    let sse = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([("x-accel-buffering", "no")], sse).into_response())
}

enum Reader {
    Live {
        follower: Follower,
        door: Door,
        /// What the reader showed; the stream ends when that is not good any more.
        shown: Option<Credential>,
        withdrawals: watch::Receiver<()>,
        _place: StreamPlace,
    },
    Over(std::vec::IntoIter<RunEvent>),
}

impl Reader {
    async fn next(&mut self) -> Option<Arc<RunEvent>> {
        match self {
            Self::Over(events) => events.next().map(Arc::new),
            Self::Live { follower, door, shown, withdrawals, _place: _ } => {
                let signed_out = async {
                    let is_welcome =
                        || shown.as_ref().is_some_and(|shown| door.engine().access().owner(shown).is_some());
                    // The sender lives as long as the engine. Each turn asks anew.
                    while is_welcome() && withdrawals.changed().await.is_ok() {}
                };
                tokio::select! {
                    biased;
                    () = signed_out => None,
                    event = follower.next() => event,
                    // The last events of a closing daemon are handed out first; what is stuck does not keep the door open.
                    () = door.engine().closing() => follower.take(),
                }
            }
        }
    }
}

fn cursor(headers: &HeaderMap) -> Result<Option<u64>, Refused> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let text = id.to_str().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| refuse(ErrorCode::InvalidRequest, "Last-Event-ID must be the number of an event"))
}

fn frame(event: &RunEvent) -> Event {
    let data = serde_json::to_string(event).unwrap_or_default();
    Event::default().id(event.seq.to_string()).event(event.name()).data(data)
}
