//! The response stream of a call that follows a run: progress from the events of the run, then the answer.
//!
//! The id of an event within a session is made of the call and the number of the run's event. So a lost stream is
//! continued from the events that the run keeps, and the server keeps no copies.
//!
//! The frames are written here: a session begins its streams with an event that has an id and an empty `data` field,
//! which axum leaves out.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quell_protocol::{EventKind, RunEvent};
use serde_json::{Value, json};

use super::methods;
use super::run_result::{progress_text, run_result, state_result};
use super::session_table::{AttachedCall, CallPurpose, FollowedCall};
use super::tasks::related_task;
use super::versions::ProtocolEra;
use crate::disconnect_stop::DisconnectStop;
use crate::http::{ApiCall, RunEventReader};
use crate::json_rpc::{JsonRpcFailure, notification_message, result_message};
use crate::keep_alive::KeepAliveTimer;
use crate::stream_end::StreamEnd;

pub(super) struct CallStream {
    call: ApiCall,
    followed: FollowedCall,
    reader: RunEventReader,
    /// `None` without sessions.
    session_call: Option<AttachedCall>,
    /// Present where the end of the stream is a cancel.
    disconnect_stop: Option<DisconnectStop>,
    /// The first event, which has no data.
    priming: Option<String>,
    keep_alive: KeepAliveTimer,
    is_finished: bool,
}

impl CallStream {
    /// Continues, or begins, the stream of a call within a session.
    pub(super) async fn open_in_session(
        call: ApiCall,
        session_call: AttachedCall,
        after: u64,
    ) -> Result<Self, JsonRpcFailure> {
        let mut stream = Self::open_stateless(call, session_call.followed.clone(), after).await?;
        stream.priming = session_call.is_primed.then(|| format!("id: {}\ndata: \n\n", session_call.event_id(after)));
        stream.session_call = Some(session_call);
        Ok(stream)
    }

    /// Begins the stream of a call without a session.
    pub(super) async fn open_stateless(
        call: ApiCall,
        followed: FollowedCall,
        after: u64,
    ) -> Result<Self, JsonRpcFailure> {
        let reader = RunEventReader::open(call.clone(), &followed.run, after).await?;
        let (session_call, disconnect_stop, priming) = (None, None, None);
        let (keep_alive, is_finished) = (KeepAliveTimer::start(), false);
        Ok(Self { call, followed, reader, session_call, disconnect_stop, priming, keep_alive, is_finished })
    }

    /// Stops the run when the stream ends before its answer.
    pub(super) fn stopped_by(mut self, disconnect_stop: Option<DisconnectStop>) -> Self {
        self.disconnect_stop = disconnect_stop;
        self
    }

    /// The next event, as it is sent.
    async fn next(&mut self) -> Option<String> {
        let event = self.next_event().await;
        self.keep_alive.reset();
        event
    }

    async fn next_event(&mut self) -> Option<String> {
        if let Some(event) = self.priming.take() {
            return Some(event);
        }
        while !self.is_finished {
            tokio::select! {
                biased;
                // No answer follows a cancel.
                () = wait_cancelled(self.session_call.as_ref()) => self.end(),
                () = wait_deadline(self.followed.purpose) => return Some(self.answer(None).await),
                // So that both sides notice a dead connection. Events that are not sent do not put it off.
                () = self.keep_alive.wait() => return Some(":\n\n".to_owned()),
                event = self.reader.next() => match event {
                    Some(Ok(event)) if matches!(event.kind, EventKind::Ended { .. }) => {
                        return Some(self.answer(Some(&event)).await);
                    }
                    Some(Ok(event)) => if let Some(progress) = self.progress_event(&event) {
                        return Some(progress);
                    },
                    Some(Err(end)) => return Some(self.refuse(&end)),
                    None => return Some(self.answer(None).await),
                },
            }
        }
        None
    }

    fn progress_event(&self, event: &RunEvent) -> Option<String> {
        let token = self.followed.progress_token.as_ref()?;
        let message = progress_text(&event.kind)?;
        // Numbers of events rise, as the protocol wants it of progress.
        let params = json!({"progressToken": token, "progress": event.seq, "message": message});
        Some(self.sse_event(&notification_message("notifications/progress", &params), event.seq))
    }

    /// The answer, which is the last event of the stream. `end` is the last event of the run.
    async fn answer(&mut self, end: Option<&RunEvent>) -> String {
        let id = &self.followed.request;
        let message = match self.call.find_readable_run(&self.followed.run).await {
            Ok(mut run) => {
                if let Some(EventKind::Ended { verdict, receipt, text, .. }) = end.map(|end| &end.kind) {
                    run.verdict.get_or_insert_with(|| verdict.clone());
                    run.receipt.get_or_insert_with(|| (**receipt).clone());
                    run.output = run.output.or_else(|| text.clone());
                }
                let result = match self.followed.purpose {
                    CallPurpose::RunAgent => run_result(&run),
                    CallPurpose::Watch { .. } => state_result(&run),
                    CallPurpose::TaskResult => related_task(run_result(&run), &run.run_id),
                };
                result_message(id, &methods::complete_result(self.era(), result))
            }
            Err(problem) => JsonRpcFailure::from(problem).to_json(Some(id)),
        };
        self.finish(&message, end.map_or(u64::MAX, |end| end.seq))
    }

    /// The answer to a client that may not read the run any more. Where the end of the stream is a cancel, it stops the
    /// run; else the run goes on.
    fn refuse(&mut self, end: &StreamEnd) -> String {
        drop(self.disconnect_stop.take());
        let failure = JsonRpcFailure::new(401, end.reason()).with_data(json!({"code": end.code()}));
        let message = failure.to_json(Some(&self.followed.request));
        self.finish(&message, u64::MAX)
    }

    fn finish(&mut self, message: &Value, seq: u64) -> String {
        self.end();
        if let Some(session_call) = &self.session_call {
            session_call.set_answered();
        }
        self.sse_event(message, seq)
    }

    fn end(&mut self) {
        self.is_finished = true;
        if let Some(disconnect_stop) = &mut self.disconnect_stop {
            disconnect_stop.disarm();
        }
    }

    fn sse_event(&self, message: &Value, seq: u64) -> String {
        let id = self.session_call.as_ref().map(|call| format!("id: {}\n", call.event_id(seq))).unwrap_or_default();
        format!("{id}event: message\ndata: {message}\n\n")
    }

    fn era(&self) -> ProtocolEra {
        if self.session_call.is_some() { ProtocolEra::Session } else { ProtocolEra::Stateless }
    }
}

impl IntoResponse for CallStream {
    fn into_response(self) -> Response {
        let events = stream::unfold(self, |mut call_stream| async move {
            let event = call_stream.next().await?;
            Some((Ok::<_, Infallible>(event), call_stream))
        });
        event_stream(Body::from_stream(events))
    }
}

pub(super) fn event_stream(events: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
        ("x-accel-buffering", "no"),
    ];
    (headers, events).into_response()
}

async fn wait_cancelled(session_call: Option<&AttachedCall>) {
    match session_call {
        Some(session_call) => session_call.cancelled.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn wait_deadline(purpose: CallPurpose) {
    match purpose {
        CallPurpose::Watch { until } => tokio::time::sleep_until(until).await,
        CallPurpose::RunAgent | CallPurpose::TaskResult => std::future::pending().await,
    }
}
