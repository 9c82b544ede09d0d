//! Answer a client of a model API: whole, or as a stream of the events of that API.

use std::convert::Infallible;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use quell_kernel::turn::{AnsweredCall, ModelMessage};
use quell_protocol::{ErrorCode, RunId};
use serde_json::Value;

use crate::budget::Reservation;
use crate::client_run::{
    AnswerOutcome, AnswerPart, AnswerReader, AnswerRequest, run_headers, stream_permit, verdict_problem,
};
use crate::http::{ApiCall, ProblemResponse, problem_response};

/// Bytes of events that are sent together if they are here.
const MAX_CHUNK_BYTES: usize = 16 * 1024;

/// Bytes of an event with a piece of text, and of the end of an answer; more is taken as needed.
const FRAME_BYTES: usize = 512;

/// How the client wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerMode {
    Whole,
    Stream,
}

impl AnswerMode {
    pub(crate) fn of(stream: bool) -> Self {
        if stream { Self::Stream } else { Self::Whole }
    }
}

/// Renders one answer in the form of an API.
pub(crate) trait AnswerEncoder: Send + 'static {
    /// The header in which the clients of the API look for the id of the request.
    const REQUEST_ID_HEADER: HeaderName;

    /// Names the run, before anything is written.
    fn set_run(&mut self, run: &RunId);
    fn write_text(&mut self, text: &str, frames: &mut String);
    fn write_thinking(&mut self, text: &str, frames: &mut String);
    /// Shows that the stream is alive.
    fn write_waiting(&mut self, frames: &mut String);
    /// Writes the end of an answer; false if the run gave none, and nothing was written. `message` is the model's last
    /// one.
    fn write_end(&mut self, outcome: &AnswerOutcome, message: Option<&WholeMessage>, frames: &mut String) -> bool;
    /// Writes the end of a stream without an answer.
    fn write_problem(&mut self, problem: &ProblemResponse, frames: &mut String);
    fn is_answer(&self, outcome: &AnswerOutcome) -> bool;
    /// The whole answer; `None` if the run gave none.
    fn whole(&self, text: &str, outcome: &AnswerOutcome, message: Option<&WholeMessage>) -> Option<Value>;
}

/// A message of the model, with the results of its calls.
pub(crate) type WholeMessage = ModelMessage<AnsweredCall>;

/// Starts the run of a request and answers with what it says. Both modes take a place among the streams.
///
/// # Errors
/// The answer to the client: nothing was started, or the run gave no answer.
///
/// # Cancel safety
/// Safe: dropped at any time, as is the response, it stops the run.
pub(crate) async fn answer_client<E: AnswerEncoder>(
    call: &ApiCall,
    request: AnswerRequest,
    mode: AnswerMode,
    mut encoder: E,
) -> Result<Response, ProblemResponse> {
    let permit = stream_permit(call)?;
    let mut reader = AnswerReader::start(call, request).await?;
    encoder.set_run(reader.run_id());
    let run = run_headers(&reader, E::REQUEST_ID_HEADER);
    if mode == AnswerMode::Whole {
        let (text, outcome) = reader.read_whole().await;
        let outcome = outcome.ok_or_else(|| problem_response(ErrorCode::Internal, "the run has gone"))?;
        let message = reader.model_message();
        let body = encoder.whole(&text, &outcome, message.as_ref()).ok_or_else(|| verdict_problem(&outcome.verdict))?;
        return Ok((run, Json(body)).into_response());
    }
    // A failure before the first part has a status of its own.
    let first = reader.next().await;
    if let Some(AnswerPart::Ended(outcome)) = &first
        && !encoder.is_answer(outcome)
    {
        return Err(verdict_problem(&outcome.verdict));
    }
    let answer = AnswerStream { encoder, reader, first, is_over: false, _permit: permit };
    let frames = stream::unfold(answer, |mut answer| async move {
        // waits: for the run, which a dropped stream stops.
        let frames = answer.next_frames().await?;
        Some((Ok::<_, Infallible>(frames), answer))
    });
    let sse = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((run, sse, Body::from_stream(frames)).into_response())
}

/// Writes a text as a JSON string. Most pieces of an answer need no escapes.
pub(crate) fn push_json_text(text: &str, frames: &mut String) {
    let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        frames.extend(["\"", text, "\""]);
    } else {
        frames.push_str(&Value::from(text).to_string());
    }
}

/// The answer of a run as events. Dropping it stops the run.
struct AnswerStream<E> {
    encoder: E,
    reader: AnswerReader,
    /// The part that was read before the response began.
    first: Option<AnswerPart>,
    is_over: bool,
    _permit: Reservation,
}

impl<E: AnswerEncoder> AnswerStream<E> {
    /// The next events: all that are here, at most about [`MAX_CHUNK_BYTES`].
    async fn next_frames(&mut self) -> Option<Bytes> {
        let mut frames = String::with_capacity(FRAME_BYTES);
        let mut next = match self.first.take() {
            _ if self.is_over => None,
            Some(part) => Some(part),
            // waits: for the run, which a dropped stream stops.
            None => self.reader.next().await,
        };
        while let Some(part) = next {
            self.write(part, &mut frames);
            let is_full = self.is_over || frames.len() >= MAX_CHUNK_BYTES;
            next = if is_full { None } else { self.reader.try_next() };
        }
        (!frames.is_empty()).then(|| frames.into())
    }

    fn write(&mut self, part: AnswerPart, frames: &mut String) {
        match part {
            AnswerPart::Text(text) => self.encoder.write_text(&text, frames),
            AnswerPart::Thinking(text) => self.encoder.write_thinking(&text, frames),
            AnswerPart::StillWaiting => self.encoder.write_waiting(frames),
            AnswerPart::Ended(outcome) => {
                self.is_over = true;
                let message = self.reader.model_message();
                if !self.encoder.write_end(&outcome, message.as_ref(), frames) {
                    self.encoder.write_problem(&verdict_problem(&outcome.verdict), frames);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_as_json() {
        for text in ["", "plain ü 안녕 \u{7f}", "a \"quote\" \\ and\nlines\t\u{0}\u{1f}"] {
            let mut frames = String::new();
            push_json_text(text, &mut frames);
            assert_eq!(serde_json::from_str::<String>(&frames).unwrap(), text, "{frames}");
        }
    }
}
