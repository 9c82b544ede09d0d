//! Send one scripted response, step by step, and record what was sent.

use std::io;
use std::time::Instant;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::frames::{FrameEncoder, frame_encoder};
use super::recorded_request::{RecordedRequest, ResponseOutcome};
use super::scripted_response::{ScriptedResponse, ScriptedStream, StreamStep};
use super::shared_state::ModelServerState;
use crate::fake_server::FakeHttpReply;

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const STREAM_END: &[u8] = b"0\r\n\r\n";

pub(super) struct ScriptedResponseWriter<'a, W> {
    writer: W,
    request: &'a RecordedRequest,
    stage: &'a ModelServerState,
    /// Bytes of one write of the body; everything at once if absent.
    write_size: Option<usize>,
}

impl<'a, W: AsyncWrite + Unpin> ScriptedResponseWriter<'a, W> {
    pub(super) fn new(writer: W, request: &'a RecordedRequest, stage: &'a ModelServerState) -> Self {
        Self { writer, request, stage, write_size: None }
    }

    /// Answers one request. Never returns from a silence; the caller drops it when the client disconnects.
    pub(super) async fn send(&mut self, response: &ScriptedResponse) -> io::Result<ResponseOutcome> {
        match response {
            ScriptedResponse::Stream(script) => self.send_stream(script).await,
            ScriptedResponse::Status { code, headers, body } => {
                let reply = FakeHttpReply { headers: headers.clone(), ..FakeHttpReply::new(*code, body.clone()) };
                self.writer.write_all(&reply.into_bytes()).await?;
                self.request.update_progress(|progress| progress.first_byte = Some(Instant::now()));
                Ok(ResponseOutcome::Status(*code))
            }
            ScriptedResponse::SilentBeforeHeaders => self.stay_silent().await,
        }
    }

    async fn send_stream(&mut self, script: &ScriptedStream) -> io::Result<ResponseOutcome> {
        self.write_size = script.write_size;
        let mut frames = frame_encoder(self.request, script.usage, script.tokens);
        if let Some(gate) = &script.hold_headers {
            self.wait_at_gate(gate).await;
        }
        self.writer.write_all(STREAM_HEAD).await?;
        for step in &script.steps {
            self.send_step(step, script, &mut *frames).await?;
        }
        // A stream ends behind an error, without a finish reason.
        if !matches!(script.steps.last(), Some(StreamStep::Error { .. })) {
            self.write_frames(&frames.encode_end(script.finish_reason.as_deref())).await?;
        }
        self.writer.write_all(STREAM_END).await?;
        Ok(ResponseOutcome::Complete)
    }

    async fn send_step(
        &mut self,
        step: &StreamStep,
        script: &ScriptedStream,
        frames: &mut dyn FrameEncoder,
    ) -> io::Result<()> {
        match step {
            StreamStep::Text(text) => self.write_frames(&frames.encode_text(text)).await,
            StreamStep::Thinking(text) => self.write_frames(&frames.encode_thinking(text)).await,
            StreamStep::Redacted(data) => self.write_frames(&frames.encode_redacted(data)).await,
            StreamStep::WebSearch(query) => self.write_frames(&frames.encode_web_search(query)).await,
            StreamStep::Citation { url, title } => self.write_frames(&frames.encode_citation(url, title)).await,
            StreamStep::Error { message } => self.write_frames(&frames.encode_error(message)).await,
            StreamStep::ToolCall { id, name, arguments } => {
                let arguments = split_chars(arguments, script.arguments_chunk_size);
                self.write_frames(&frames.encode_tool_call(id, name, &arguments)).await
            }
            StreamStep::HugeOutput { bytes } => {
                let text = "y".repeat(4096);
                for _ in 0..bytes.div_ceil(text.len()) {
                    self.write_frames(&frames.encode_text(&text)).await?;
                }
                Ok(())
            }
            StreamStep::TokensForever { every } => {
                let mut pace = tokio::time::interval(*every);
                loop {
                    pace.tick().await;
                    self.write_frames(&frames.encode_text("tok ")).await?;
                }
            }
            StreamStep::Raw { bytes, times } => {
                for _ in 0..*times {
                    self.write_frames(std::slice::from_ref(bytes)).await?;
                }
                Ok(())
            }
            StreamStep::Disconnect => {
                self.writer.flush().await?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            StreamStep::WaitFor(gate) => {
                self.wait_at_gate(gate).await;
                Ok(())
            }
            StreamStep::Pause(time) => {
                tokio::time::sleep(*time).await;
                Ok(())
            }
            StreamStep::Silent => self.stay_silent().await,
        }
    }

    async fn stay_silent<T>(&self) -> T {
        self.request.update_progress(|progress| progress.paused = true);
        std::future::pending().await
    }

    async fn wait_at_gate(&self, name: &str) {
        self.request.update_progress(|progress| progress.paused = true);
        self.stage.wait_for_gate(name).await;
        self.request.update_progress(|progress| progress.paused = false);
    }

    /// Writes a part of the body, each piece as an HTTP chunk.
    async fn write_frames(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        for frame in frames {
            for piece in frame.chunks(self.write_size.unwrap_or(frame.len()).max(1)) {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                self.writer.write_all(&chunk).await?;
                self.request.update_progress(|progress| {
                    progress.first_byte.get_or_insert_with(Instant::now);
                });
            }
        }
        Ok(())
    }
}

fn split_chars(text: &str, size: Option<usize>) -> Vec<String> {
    let Some(size) = size else { return vec![text.to_owned()] };
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).map(|piece| piece.iter().collect()).collect()
}
