//! `POST /v1/messages`.

use std::convert::Infallible;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use quell_engine::engine::AGENT_PREFIX;
use quell_kernel::client_request::{ClientRequest, anthropic};
use quell_protocol::{ErrorCode, Surface};
use serde_json::Value;

use super::error::{REQUEST_ID_HEADER, error_event};
use super::message_answer::{AnthropicAnswer, Reasoning, stop_words};
use crate::budget::Reservation;
use crate::client_run::{
    AnswerPart, AnswerReader, AnswerRequest, RUN_HEADER, bound_session, stream_permit, verdict_problem,
};
use crate::http::{ApiCall, JsonBody, ProblemResponse, problem_response};

/// Bytes of events that are sent together if they are here.
const MAX_CHUNK_BYTES: usize = 16 * 1024;

pub(super) async fn create(
    call: ApiCall,
    headers: HeaderMap,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ProblemResponse> {
    let call = call.on_surface(Surface::Anthropic);
    call.require_write()?;
    let session = bound_session(&headers, &body)?;
    let ClientRequest { model, conversation, answer, stream } = anthropic::parse(&body)?;
    // The bodies of images are large.
    drop(body);
    let reasoning = if model.starts_with(AGENT_PREFIX) { Reasoning::Unsigned } else { Reasoning::Signed };
    let mut message = AnthropicAnswer::new(&model, reasoning);
    let permit = if stream { Some(stream_permit(&call)?) } else { None };
    let mut reader = AnswerReader::start(&call, AnswerRequest { model, conversation, answer, session }).await?;
    message.set_run(reader.run_id());
    let Some(permit) = permit else {
        let run = run_headers(&reader);
        let (text, outcome) = reader.read_whole().await;
        let outcome = outcome.ok_or_else(|| problem_response(ErrorCode::Internal, "the run has gone"))?;
        let of_model = (reasoning == Reasoning::Signed).then(|| reader.model_message()).flatten();
        let Some(body) = message.whole(&text, &outcome, of_model.as_ref()) else {
            return Err(verdict_problem(&outcome.verdict));
        };
        return Ok((run, Json(body)).into_response());
    };
    // A failure before the first part has a status of its own.
    let first = reader.next().await;
    if let Some(AnswerPart::Ended(outcome)) = &first
        && stop_words(outcome).is_none()
    {
        return Err(verdict_problem(&outcome.verdict));
    }
    Ok(stream_response(MessageStream { message, reasoning, reader, first, is_over: false, _permit: permit }))
}

/// The headers that name the run of an answer.
fn run_headers(reader: &AnswerReader) -> [(HeaderName, HeaderValue); 2] {
    let Ok(id) = HeaderValue::from_str(reader.run_id().as_str()) else { unreachable!("a run id is plain ASCII") };
    [(RUN_HEADER, id.clone()), (REQUEST_ID_HEADER, id)]
}

/// Writes the answer of a run as events. Dropping it stops the run.
struct MessageStream {
    message: AnthropicAnswer,
    reasoning: Reasoning,
    reader: AnswerReader,
    /// The part that was read before the response began.
    first: Option<AnswerPart>,
    is_over: bool,
    _permit: Reservation,
}

impl MessageStream {
    /// The next events: all that are here, at most about [`MAX_CHUNK_BYTES`].
    async fn next_frames(&mut self) -> Option<Bytes> {
        let mut frames = String::new();
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
            AnswerPart::Text(text) => self.message.write_text(&text, frames),
            AnswerPart::Thinking(text) => self.message.write_thinking(&text, frames),
            AnswerPart::StillWaiting => self.message.write_ping(frames),
            AnswerPart::Ended(outcome) => {
                self.is_over = true;
                let of_model = (self.reasoning == Reasoning::Signed).then(|| self.reader.model_message()).flatten();
                if !self.message.write_end(&outcome, of_model.as_ref(), frames) {
                    let run = self.reader.run_id().as_str();
                    frames.push_str(&error_event(&verdict_problem(&outcome.verdict), run));
                }
            }
        }
    }
}

fn stream_response(message: MessageStream) -> Response {
    let run = run_headers(&message.reader);
    let frames = stream::unfold(message, |mut message| async move {
        // waits: for the run, which a dropped stream stops.
        let frames = message.next_frames().await?;
        Some((Ok::<_, Infallible>(frames), message))
    });
    let sse = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (run, sse, Body::from_stream(frames)).into_response()
}
