//! `POST /v1/chat/completions`.

use std::convert::Infallible;
use std::fmt::Write;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use quell_kernel::client_request::{ClientRequest, openai_chat};
use quell_protocol::{ErrorCode, Surface};
use serde_json::Value;

use super::chat_answer::ChatAnswer;
use crate::budget::Reservation;
use crate::client_run::{
    AnswerPart, AnswerReader, AnswerRequest, bound_session, run_headers, stream_permit, verdict_problem,
};
use crate::http::{ApiCall, JsonBody, ProblemResponse, problem_response};

/// Bytes of frames that are sent together if they are here.
const MAX_CHUNK_BYTES: usize = 16 * 1024;

pub(super) async fn create(
    call: ApiCall,
    headers: HeaderMap,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ProblemResponse> {
    let call = call.on_surface(Surface::Openai);
    call.require_write()?;
    let session = bound_session(&headers, &body)?;
    let ClientRequest { model, conversation, answer, stream } = openai_chat::parse(&body)?;
    let mut chat = ChatAnswer::new(&model, wants_usage(&body));
    let request = AnswerRequest { model, conversation, answer, session };
    if stream {
        let permit = stream_permit(&call)?;
        let mut reader = AnswerReader::start(&call, request).await?;
        chat.set_run(reader.run_id());
        // A failure before the first part has a status of its own.
        let first = reader.next().await;
        if let Some(AnswerPart::Ended(outcome)) = &first
            && chat.finish_reason(outcome).is_none()
        {
            return Err(verdict_problem(&outcome.verdict));
        }
        return Ok(stream_response(ChatStream { chat, reader, first, is_over: false, _permit: permit }));
    }
    let mut reader = AnswerReader::start(&call, request).await?;
    chat.set_run(reader.run_id());
    let run = run_headers(&reader);
    let (text, outcome) = reader.read_whole().await;
    let outcome = outcome.ok_or_else(|| problem_response(ErrorCode::Internal, "the run has gone"))?;
    let Some(body) = chat.whole(&text, &outcome) else { return Err(verdict_problem(&outcome.verdict)) };
    Ok((run, Json(body)).into_response())
}

fn wants_usage(body: &Value) -> bool {
    body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or_default()
}

/// Writes the answer of a run as chunks. Dropping it stops the run.
struct ChatStream {
    chat: ChatAnswer,
    reader: AnswerReader,
    /// The part that was read before the response began.
    first: Option<AnswerPart>,
    is_over: bool,
    _permit: Reservation,
}

impl ChatStream {
    /// The next frames: all that are here, at most about [`MAX_CHUNK_BYTES`].
    async fn next_frames(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut frames = String::new();
        let mut next = match self.first.take() {
            Some(part) => Some(part),
            // waits: for the run, which a dropped stream stops.
            None => self.reader.next().await,
        };
        loop {
            match next {
                Some(part) => self.write(part, &mut frames),
                // The run was never accepted, or its end was read.
                None => self.is_over = frames.is_empty(),
            }
            if self.is_over || frames.len() >= MAX_CHUNK_BYTES {
                break;
            }
            next = self.reader.try_next();
            if next.is_none() {
                break;
            }
        }
        (!frames.is_empty()).then(|| frames.into())
    }

    fn write(&mut self, part: AnswerPart, frames: &mut String) {
        match part {
            AnswerPart::Text(text) => self.chat.write_text(&text, frames),
            AnswerPart::Thinking(text) => self.chat.write_thinking(&text, frames),
            AnswerPart::StillWaiting => frames.push_str(": waiting\n\n"),
            AnswerPart::Ended(outcome) => {
                self.is_over = true;
                if !self.chat.write_end(&outcome, frames) {
                    let error = super::error::problem_body(&verdict_problem(&outcome.verdict));
                    // Writing to a string cannot fail.
                    let _ = write!(frames, "data: {error}\n\n");
                }
            }
        }
    }
}

fn stream_response(chat: ChatStream) -> Response {
    let run = run_headers(&chat.reader);
    let frames = stream::unfold(chat, |mut chat| async move {
        // waits: for the run, which a dropped stream stops.
        let frames = chat.next_frames().await?;
        Some((Ok::<_, Infallible>(frames), chat))
    });
    let sse = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (run, sse, Body::from_stream(frames)).into_response()
}
