//! Read a response to its end, enforce the idle timeouts, and tell a complete answer from a truncated one.

use std::time::Duration;

use bytes::Bytes;
use quell_net::{SseDecoder, SseEvent, root_cause};
use quell_scope::{Cancelled, Point};
use reqwest::Response;
use tokio::time::{Instant, timeout};

use super::attempt_failure::AttemptFailure;
use super::model_call::{CallProgress, ModelCall};
use super::partial_answer::{PartialAnswer, ResponseError, StreamStatus};

/// The maximum length of a line. A whole answer of 128,000 tokens in one event is about 1 MiB of JSON.
pub(super) const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// The maximum size of the data of one event, over all its lines, and of a response that is no stream.
const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

/// The maximum size of all events of a stream. The longest answers are some 40 MB in the most verbose dialect.
const MAX_STREAM_BYTES: usize = 256 * 1024 * 1024;

/// How long the usage and the end mark may take once the model has said why it stopped. The answer is complete then,
/// and some servers send neither and keep the connection open.
const TAIL_TIMEOUT: Duration = Duration::from_secs(5);

/// Measures how long an answer has sent no content. Comments and white space keep a connection open but are no content.
struct SilenceTimer {
    since: Instant,
    before_first_event: bool,
}

impl SilenceTimer {
    fn new() -> Self {
        Self { since: Instant::now(), before_first_event: true }
    }

    fn restart(&mut self) {
        *self = Self { since: Instant::now(), before_first_event: false };
    }
}

impl ModelCall<'_> {
    /// Reads a stream to its end mark. It is complete when the model said why it stopped, or the server said that it is
    /// done.
    pub(super) async fn read_stream(
        &self,
        mut response: Response,
        progress: &mut CallProgress<'_>,
    ) -> Result<(), AttemptFailure> {
        let (mut decoder, mut silence) = (SseDecoder::new(MAX_LINE_BYTES, MAX_EVENT_BYTES), SilenceTimer::new());
        let mut received_bytes = 0_usize;
        loop {
            let chunk = match self.next_chunk(&mut response, &progress.partial, &silence).await? {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return self.end_without_mark(decoder, progress),
                // The model has said why it stopped, so the answer is complete, however its connection ends.
                Err(_) if progress.partial.finish_reason.is_some() => return Ok(()),
                Err(failure) => return Err(failure),
            };
            // Events without content are in no other count, and may be endless.
            received_bytes = received_bytes.saturating_add(chunk.len());
            if received_bytes > MAX_STREAM_BYTES {
                return Err(self
                    .provider
                    .unreadable_failure(format!("a stream of more than {MAX_STREAM_BYTES} bytes")));
            }
            let mut rest = &chunk[..];
            while let Some(event) = decoder
                .next_event(&mut rest)
                .map_err(|oversize| self.provider.unreadable_failure(oversize.to_string()))?
            {
                // A chunk may hold many events, and none may reach the sink after a stop.
                if self.scope.is_cancelled() {
                    return Err(Cancelled.into());
                }
                if self
                    .apply_event(&event, progress)
                    .map_err(|error| self.provider.response_failure(error, &progress.partial))?
                    == StreamStatus::Done
                {
                    return self.end_with_mark(&progress.partial);
                }
                silence.restart();
            }
        }
    }

    /// Reads an answer that is no stream although one was requested.
    pub(super) async fn read_whole_response(
        &self,
        mut response: Response,
        progress: &mut CallProgress<'_>,
    ) -> Result<(), AttemptFailure> {
        let (mut body, mut silence) = (Vec::new(), SilenceTimer::new());
        while let Some(chunk) = self.next_chunk(&mut response, &progress.partial, &silence).await?? {
            let is_blank = chunk.trim_ascii().is_empty();
            if !is_blank {
                silence.restart();
            }
            if is_blank && body.is_empty() {
                // White space before an answer has no meaning, and it may be endless.
                continue;
            }
            body.extend_from_slice(&chunk);
            if body.len() > MAX_EVENT_BYTES {
                return Err(self.provider.unreadable_failure(format!("a body of more than {MAX_EVENT_BYTES} bytes")));
            }
        }
        let applied = self.provider.dialect.apply_whole_response(&body, &mut progress.partial);
        progress.send_deltas();
        applied.map_err(|error| self.provider.response_failure(error, &progress.partial))?;
        self.end_with_mark(&progress.partial)
    }

    /// The next bytes, or the end. The outer error is a stop.
    async fn next_chunk(
        &self,
        response: &mut Response,
        partial: &PartialAnswer,
        silence: &SilenceTimer,
    ) -> Result<Result<Option<Bytes>, AttemptFailure>, Cancelled> {
        let idle = self.provider.idle_timeout;
        let wait = if partial.finish_reason.is_some() { idle.min(TAIL_TIMEOUT) } else { idle };
        let max_silence = if silence.before_first_event { self.provider.header_timeout } else { wait };
        let left = max_silence.saturating_sub(silence.since.elapsed());
        let in_time = async {
            // With a flood of comments, `timeout` would always find a chunk ready, so check the time left first.
            // waits: raced below, as `in_time`.
            if left.is_zero() { None } else { timeout(wait.min(left), response.chunk()).await.ok() }
        };
        let next = self.scope.race(Point::ModelStream, in_time).await?;
        Ok(match next {
            Some(Ok(chunk)) => Ok(chunk),
            Some(Err(error)) => Err(self.provider.truncated_failure(root_cause(&error))),
            None if silence.before_first_event && silence.since.elapsed() >= max_silence => {
                Err(self.provider.header_timeout_failure())
            }
            None => Err(self.provider.idle_timeout_failure(wait)),
        })
    }

    /// The server closed the connection without an end mark. A last event counts when it is complete: some servers omit
    /// the blank line.
    fn end_without_mark(&self, decoder: SseDecoder, progress: &mut CallProgress<'_>) -> Result<(), AttemptFailure> {
        let applied = decoder.into_unfinished_event().map(|event| self.apply_event(&event, progress));
        let partial = &progress.partial;
        match applied {
            Some(Ok(StreamStatus::Done)) => self.end_with_mark(partial),
            Some(Err(error @ ResponseError::Reported(_))) => Err(self.provider.response_failure(error, partial)),
            _ if partial.finish_reason.is_some() => Ok(()),
            Some(Err(ResponseError::Unreadable(_))) => {
                Err(self.provider.truncated_failure("in the middle of an event"))
            }
            Some(Ok(StreamStatus::More)) | None => {
                Err(self.provider.truncated_failure("the stream ended without an end mark"))
            }
        }
    }

    /// The server sent its end mark.
    fn end_with_mark(&self, partial: &PartialAnswer) -> Result<(), AttemptFailure> {
        if partial.has_begun {
            Ok(())
        } else {
            Err(self.provider.truncated_failure("it held nothing but its end mark"))
        }
    }

    fn apply_event(&self, event: &SseEvent, progress: &mut CallProgress<'_>) -> Result<StreamStatus, ResponseError> {
        let applied = self.provider.dialect.apply_event(event, &mut progress.partial);
        progress.send_deltas();
        applied
    }
}
