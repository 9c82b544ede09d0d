//! Send one scripted response, step by step.

use std::io;

use tokio::io::AsyncWrite;

use super::frames::{FrameEncoder, StreamEndFrames, frame_encoder};
use super::http1::plain_response;
use super::recorded_request::ResponseOutcome;
use super::response_writer::ScriptedResponseWriter;
use super::scripted_response::{ScriptedResponse, ScriptedStream, StreamEnd, StreamStep, Transfer};
use super::shared_state::ModelServerState;

/// State of the connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterResponse {
    KeepAlive,
    Close,
    Reset,
}

/// Answers one request. Never returns from a silence; the caller drops it when the client disconnects.
pub(super) async fn send_scripted_response<W: AsyncWrite + Unpin>(
    behaviour: &ScriptedResponse,
    stage: &ModelServerState,
    wire: &mut ScriptedResponseWriter<'_, W>,
) -> io::Result<(ResponseOutcome, AfterResponse)> {
    match behaviour {
        ScriptedResponse::Stream(script) => send_stream(script, stage, wire).await,
        ScriptedResponse::Status { code, headers, body } => {
            wire.write_whole_response(&plain_response(*code, headers, body)).await?;
            Ok((ResponseOutcome::Status(*code), AfterResponse::KeepAlive))
        }
        ScriptedResponse::SilentBeforeHeaders => stay_silent(wire).await,
        ScriptedResponse::Reset => Ok((ResponseOutcome::Cut, AfterResponse::Reset)),
        ScriptedResponse::Verbatim(bytes) => {
            wire.write_whole_response(bytes).await?;
            Ok((ResponseOutcome::Complete, AfterResponse::Close))
        }
    }
}

async fn stay_silent<W, T>(wire: &ScriptedResponseWriter<'_, W>) -> T {
    wire.request.update_progress(|p| p.paused = true);
    std::future::pending().await
}

async fn wait_at_gate<W>(name: &str, stage: &ModelServerState, wire: &ScriptedResponseWriter<'_, W>) {
    wire.request.update_progress(|p| p.paused = true);
    stage.wait_for_gate(name).await;
    wire.request.update_progress(|p| p.paused = false);
}

async fn send_stream<W: AsyncWrite + Unpin>(
    script: &ScriptedStream,
    stage: &ModelServerState,
    wire: &mut ScriptedResponseWriter<'_, W>,
) -> io::Result<(ResponseOutcome, AfterResponse)> {
    wire.transfer = script.transfer;
    wire.write_size = script.write_size;
    let mut frames = frame_encoder(wire.request, script.line_end, (script.usage, script.tokens));
    if let Some(gate) = &script.hold_headers {
        wait_at_gate(gate, stage, wire).await;
    }
    wire.write_stream_head().await?;
    for step in &script.steps {
        match step {
            StreamStep::WaitFor(gate) => wait_at_gate(gate, stage, wire).await,
            StreamStep::Silent => stay_silent(wire).await,
            StreamStep::ToolCall { id, name, arguments } => {
                let arguments = split_chars(arguments, script.arguments_chunk_size);
                wire.write_frames(&frames.encode_tool_call(id, name, &arguments)).await?;
            }
            plain => send_step(plain, &mut *frames, wire).await?,
        }
    }
    finish_stream(script, &mut *frames, wire).await
}

/// Steps that only send.
async fn send_step<W: AsyncWrite + Unpin>(
    step: &StreamStep,
    frames: &mut dyn FrameEncoder,
    wire: &mut ScriptedResponseWriter<'_, W>,
) -> io::Result<()> {
    match step {
        StreamStep::Text(text) => wire.write_frames(&frames.encode_text(text)).await,
        StreamStep::Thinking(text) => wire.write_frames(&frames.encode_thinking(text)).await,
        StreamStep::Redacted(data) => wire.write_frames(&frames.encode_redacted(data)).await,
        StreamStep::Error { message } => wire.write_frames(&frames.encode_error(message)).await,
        StreamStep::Comment(text) => wire.write_body(&frames.encode_comment(text)).await,
        StreamStep::Raw(bytes) => wire.write_body(bytes).await,
        StreamStep::HugeFrame { bytes } => wire.write_frames(&frames.encode_text(&"x".repeat(*bytes))).await,
        StreamStep::HugeOutput { bytes } => {
            let size = 4096;
            let text = "y".repeat(size);
            for _ in 0..bytes.div_ceil(size) {
                wire.write_frames(&frames.encode_text(&text)).await?;
            }
            Ok(())
        }
        StreamStep::TokensForever { every } => {
            let mut pace = tokio::time::interval(*every);
            loop {
                pace.tick().await;
                wire.write_frames(&frames.encode_text("tok ")).await?;
            }
        }
        StreamStep::WaitFor(_) | StreamStep::Silent | StreamStep::ToolCall { .. } => Ok(()),
    }
}

async fn finish_stream<W: AsyncWrite + Unpin>(
    script: &ScriptedStream,
    frames: &mut dyn FrameEncoder,
    wire: &mut ScriptedResponseWriter<'_, W>,
) -> io::Result<(ResponseOutcome, AfterResponse)> {
    match script.end {
        StreamEnd::MidEvent => {
            let mut never_whole = frames.encode_text("never whole");
            if let Some(last) = never_whole.last_mut() {
                last.truncate(last.len() / 2);
            }
            wire.write_frames(&never_whole).await?;
            return Ok((ResponseOutcome::Cut, AfterResponse::Close));
        }
        StreamEnd::Dropped => return Ok((ResponseOutcome::Cut, AfterResponse::Close)),
        StreamEnd::Reset => return Ok((ResponseOutcome::Cut, AfterResponse::Reset)),
        StreamEnd::WithoutTerminal => {
            wire.write_body_end().await?;
            return Ok((ResponseOutcome::Cut, connection_after(script.transfer)));
        }
        StreamEnd::Complete | StreamEnd::WithoutDone | StreamEnd::WithoutFinish => {}
    }
    let ending = StreamEndFrames { end: script.end, reason: script.finish_reason.as_deref() };
    wire.write_frames(&frames.encode_end(&ending)).await?;
    wire.write_body_end().await?;
    Ok((ResponseOutcome::Complete, connection_after(script.transfer)))
}

fn connection_after(transfer: Transfer) -> AfterResponse {
    match transfer {
        Transfer::Chunked => AfterResponse::KeepAlive,
        Transfer::UntilClose => AfterResponse::Close,
    }
}

fn split_chars(text: &str, size: Option<usize>) -> Vec<String> {
    let Some(size) = size else { return vec![text.to_owned()] };
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).map(|piece| piece.iter().collect()).collect()
}
