//! Stream the events of a run and reconnect after the last event received.
//!
//! The cursor is the `seq` of the last event that was handed out. A new connection continues after it, so that no event
//! is repeated or missed.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use quell_net::{SseDecoder, SseEvent};
use quell_protocol::{EventKind, RunEvent, RunId};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};
use tokio::time::{Instant, sleep, timeout};

use super::{ClientError, DaemonClient, REQUEST_TIMEOUT};

/// An event carries at most a whole answer or a whole receipt, in one line.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// The daemon sends a comment every 15 seconds. After three missing ones the connection counts as dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub enum RunEventStreamItem {
    Event(Box<RunEvent>),
    /// The connection is lost; the next attempt follows after the pause.
    Disconnected {
        cause: String,
        pause: Duration,
    },
    Reconnected,
}

pub struct RunEventStream(BoxStream<'static, Result<RunEventStreamItem, ClientError>>);

impl RunEventStream {
    /// Returns the next event; none after `run.ended` and after an error.
    ///
    /// # Errors
    /// A refusal by the daemon, and a connection that stays lost longer than the reconnect policy allows.
    ///
    /// # Cancel safety
    /// Safe: the position in the stream is kept.
    pub async fn next(&mut self) -> Option<Result<RunEventStreamItem, ClientError>> {
        self.0.next().await
    }

    /// Reads to the end of the run and returns only `run.ended`.
    pub(crate) async fn wait_for_end(mut self) -> Result<Option<RunEvent>, ClientError> {
        while let Some(seen) = self.next().await {
            if let RunEventStreamItem::Event(event) = seen?
                && matches!(event.kind, EventKind::Ended { .. })
            {
                return Ok(Some(*event));
            }
        }
        Ok(None)
    }
}

impl DaemonClient {
    /// Follows the events of a run after `seq` `after` (0: from the first) until its `run.ended`.
    #[must_use]
    pub fn follow_run(&self, run: &RunId, after: u64) -> RunEventStream {
        self.follow_run_with_idle_timeout(run, after, IDLE_TIMEOUT)
    }

    /// Like [`DaemonClient::follow_run`], with this idle timeout of a connection.
    pub(super) fn follow_run_with_idle_timeout(&self, run: &RunId, after: u64, idle: Duration) -> RunEventStream {
        RunEventFollower { idle_timeout: idle, ..self.run_event_follower(run, after) }.into_stream()
    }

    pub(super) fn run_event_follower(&self, run: &RunId, after: u64) -> RunEventFollower {
        RunEventFollower {
            client: self.clone(),
            run_id: run.clone(),
            last_seq: after,
            idle_timeout: IDLE_TIMEOUT,
            connection: None,
            buffered_events: VecDeque::new(),
            outage: None,
            finished: false,
        }
    }
}

pub(super) struct RunEventFollower {
    client: DaemonClient,
    run_id: RunId,
    last_seq: u64,
    /// Longest time without data on a live connection.
    pub(super) idle_timeout: Duration,
    connection: Option<(Response, SseDecoder)>,
    buffered_events: VecDeque<RunEvent>,
    outage: Option<RunStreamOutage>,
    finished: bool,
}

/// A lost connection, until an event arrives on a new one.
#[derive(Clone, Copy)]
struct RunStreamOutage {
    since: Instant,
    pause: Duration,
    /// False once reconnected, while no event has arrived yet.
    disconnected: bool,
}

impl RunEventFollower {
    /// Reads the events of a response that is open already.
    pub(super) fn on_connection(mut self, response: Response) -> Self {
        self.connection = Some((response, SseDecoder::new(MAX_EVENT_BYTES, MAX_EVENT_BYTES)));
        self
    }

    pub(super) fn into_stream(self) -> RunEventStream {
        let steps =
            stream::unfold(self, |mut follower| async move { follower.next_item().await.map(|seen| (seen, follower)) });
        RunEventStream(steps.fuse().boxed())
    }

    async fn next_item(&mut self) -> Option<Result<RunEventStreamItem, ClientError>> {
        if self.finished {
            return None;
        }
        let seen = self.read_next_item().await;
        self.finished = match &seen {
            Ok(RunEventStreamItem::Event(event)) => matches!(event.kind, EventKind::Ended { .. }),
            Ok(RunEventStreamItem::Disconnected { .. } | RunEventStreamItem::Reconnected) => false,
            Err(_) => true,
        };
        Some(seen)
    }

    async fn read_next_item(&mut self) -> Result<RunEventStreamItem, ClientError> {
        loop {
            if let Some(event) = self.buffered_events.pop_front() {
                self.last_seq = event.seq;
                self.outage = None;
                return Ok(RunEventStreamItem::Event(Box::new(event)));
            }
            let Some((response, decoder)) = &mut self.connection else {
                match self.open_stream().await {
                    Ok(true) => return Ok(RunEventStreamItem::Reconnected),
                    Ok(false) => continue,
                    Err(error) if error.is_transient() => return self.note_connection_loss(error),
                    Err(error) => return Err(error),
                }
            };
            let Ok(piece) = timeout(self.idle_timeout, response.chunk()).await else {
                let cause = format!("nothing received for {} s", self.idle_timeout.as_secs());
                return self.note_connection_loss(ClientError::ConnectionLost {
                    url: self.client.base_url.to_string(),
                    cause,
                });
            };
            match piece {
                Ok(Some(piece)) => {
                    let (mut rest, mut events) = (&piece[..], Vec::new());
                    let too_large = |_| self.client.unexpected_answer("an event is too large".into());
                    while let Some(event) = decoder.next_event(&mut rest).map_err(too_large)? {
                        events.push(event);
                    }
                    self.buffer_events(&events)?;
                }
                Ok(None) => {
                    let cause = "the daemon closed the stream before the run ended".into();
                    return self.note_connection_loss(ClientError::ConnectionLost {
                        url: self.client.base_url.to_string(),
                        cause,
                    });
                }
                Err(error) => return self.note_connection_loss(self.client.transport_error(&error)),
            }
        }
    }

    /// Opens the stream after the cursor, after the pause that is due. True when a lost connection is back.
    async fn open_stream(&mut self) -> Result<bool, ClientError> {
        if let Some(outage) = self.outage {
            sleep(outage.pause).await;
        }
        let seq = self.last_seq.to_string();
        let path = ["api", "runs", self.run_id.as_str(), "events"];
        let request = self.client.build_request(Method::GET, &path, &[("after", &seq)])?;
        let request = request.header(ACCEPT, "text/event-stream").header("last-event-id", &seq);
        let opened = timeout(REQUEST_TIMEOUT, async {
            let response = request.send().await.map_err(|error| self.client.transport_error(&error))?;
            self.client.check_status(response).await
        });
        let timed_out = |_| ClientError::ConnectionLost {
            url: self.client.base_url.to_string(),
            cause: "it did not answer in time".into(),
        };
        let response = opened.await.map_err(timed_out)??;
        self.connection = Some((response, SseDecoder::new(MAX_EVENT_BYTES, MAX_EVENT_BYTES)));
        let was_disconnected =
            self.outage.as_mut().is_some_and(|outage| std::mem::replace(&mut outage.disconnected, false));
        Ok(was_disconnected)
    }

    fn buffer_events(&mut self, events: &[SseEvent]) -> Result<(), ClientError> {
        for event in events {
            match serde_json::from_str::<RunEvent>(&event.data) {
                Ok(event) if event.run_id != self.run_id || event.seq <= self.last_seq => {}
                Ok(event) if self.buffered_events.back().is_some_and(|last| event.seq <= last.seq) => {}
                Ok(event) => self.buffered_events.push_back(event),
                // A newer daemon may send events that this client does not know; known events must be valid.
                Err(_) if !KNOWN_EVENTS.split(' ').any(|known| known == event.name) => {}
                Err(error) => return Err(self.client.unexpected_answer(format!("an event is invalid: {error}"))),
            }
        }
        Ok(())
    }

    fn note_connection_loss(&mut self, error: ClientError) -> Result<RunEventStreamItem, ClientError> {
        self.connection = None;
        let now = Instant::now();
        let policy = self.client.reconnect_policy;
        let outage = match self.outage {
            None => RunStreamOutage { since: now, pause: policy.initial_pause, disconnected: true },
            Some(before) if now.duration_since(before.since) >= policy.give_up_after => return Err(error),
            Some(before) => {
                RunStreamOutage { pause: (before.pause * 2).min(policy.max_pause), disconnected: true, ..before }
            }
        };
        self.outage = Some(outage);
        let cause = match error {
            ClientError::ConnectionLost { cause, .. } => cause,
            ClientError::NoDaemon { tried } => tried,
            other => other.to_string(),
        };
        Ok(RunEventStreamItem::Disconnected { cause, pause: outage.pause })
    }
}

const KNOWN_EVENTS: &str = "\
    run.queued run.started step.started text.delta thinking.delta tool.waiting tool.started \
    tool.output tool.ended approval.requested approval.updated approval.resolved \
    sub_run.approval_requested sub_run.approval_resolved context.compacted model.retry model.search model.fallback run.snapshot run.ending run.ended usage";
