//! Carries out one behaviour, step by step.

use std::io;

use serde_json::json;
use tokio::io::AsyncWrite;

use super::behaviour::{Behaviour, End, Step, Stream, Transfer, UsageFrame};
use super::record::Finish;
use super::stage::Stage;
use super::wire::{Frames, Wire};
use super::wire_http::plain;

/// What becomes of the connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// The next request may come.
    KeepAlive,
    /// It is closed.
    Close,
    /// It is reset.
    Reset,
}

/// Answers one request. Never returns from a silence; the caller drops it when the client leaves.
pub(super) async fn perform<W: AsyncWrite + Unpin>(
    behaviour: &Behaviour,
    stage: &Stage,
    wire: &mut Wire<'_, W>,
) -> io::Result<(Finish, After)> {
    match behaviour {
        Behaviour::Stream(script) => stream(script, stage, wire).await,
        Behaviour::Status { code, headers, body } => {
            wire.whole(&plain(*code, headers, body)).await?;
            Ok((Finish::Status(*code), After::KeepAlive))
        }
        Behaviour::SilentBeforeHeaders => silence(wire).await,
        Behaviour::Reset => Ok((Finish::Cut, After::Reset)),
        Behaviour::Verbatim(bytes) => {
            wire.whole(bytes).await?;
            Ok((Finish::Complete, After::Close))
        }
    }
}

async fn silence<W, T>(wire: &Wire<'_, W>) -> T {
    wire.request.note(|p| p.resting = true);
    std::future::pending().await
}

async fn at_gate<W>(name: &str, stage: &Stage, wire: &Wire<'_, W>) {
    wire.request.note(|p| p.resting = true);
    stage.gate(name).await;
    wire.request.note(|p| p.resting = false);
}

async fn stream<W: AsyncWrite + Unpin>(
    script: &Stream,
    stage: &Stage,
    wire: &mut Wire<'_, W>,
) -> io::Result<(Finish, After)> {
    wire.transfer = script.transfer;
    wire.piece = script.piece;
    let frames = Frames::new(wire.request, script.line_end);
    if let Some(gate) = &script.hold_headers {
        at_gate(gate, stage, wire).await;
    }
    wire.stream_head().await?;
    let mut calls = 0;
    for (index, step) in script.steps.iter().enumerate() {
        if index == 0 && matches!(step, Step::Text(_) | Step::Thinking(_) | Step::ToolCall { .. }) {
            wire.body(&frames.delta(json!({"role": "assistant", "content": ""}))).await?;
        }
        match step {
            Step::WaitFor(gate) => at_gate(gate, stage, wire).await,
            Step::Silent => silence(wire).await,
            Step::ToolCall { id, name, arguments } => {
                let call =
                    json!({"index": calls, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
                wire.body(&frames.delta(json!({"tool_calls": [call]}))).await?;
                for piece in pieces(arguments, script.arguments_piece) {
                    let more = json!({"index": calls, "function": {"arguments": piece}});
                    wire.body(&frames.delta(json!({"tool_calls": [more]}))).await?;
                }
                calls += 1;
            }
            plain => say(plain, &frames, wire).await?,
        }
    }
    finish(script, calls > 0, &frames, wire).await
}

/// The steps that only send.
async fn say<W: AsyncWrite + Unpin>(step: &Step, frames: &Frames, wire: &mut Wire<'_, W>) -> io::Result<()> {
    match step {
        Step::Text(text) => wire.body(&frames.text(text)).await,
        Step::Thinking(text) => wire.body(&frames.delta(json!({"reasoning_content": text}))).await,
        Step::Error { message } => {
            let error = json!({"error": {"message": message, "type": "server_error", "code": null}});
            wire.body(&frames.event(&error.to_string())).await
        }
        Step::Comment(text) => wire.body(&frames.comment(text)).await,
        Step::Raw(bytes) => wire.body(bytes).await,
        Step::HugeFrame { bytes } => wire.body(&frames.text(&"x".repeat(*bytes))).await,
        Step::HugeOutput { bytes } => {
            let size = 4096;
            let frame = frames.text(&"y".repeat(size));
            for _ in 0..bytes.div_ceil(size) {
                wire.body(&frame).await?;
            }
            Ok(())
        }
        Step::TokensForever { every } => {
            let frame = frames.text("tok ");
            let mut pace = tokio::time::interval(*every);
            loop {
                pace.tick().await;
                wire.body(&frame).await?;
            }
        }
        Step::WaitFor(_) | Step::Silent | Step::ToolCall { .. } => Ok(()),
    }
}

async fn finish<W: AsyncWrite + Unpin>(
    script: &Stream,
    called: bool,
    frames: &Frames,
    wire: &mut Wire<'_, W>,
) -> io::Result<(Finish, After)> {
    let reason = script.finish_reason.as_deref().unwrap_or(if called { "tool_calls" } else { "stop" });
    match script.end {
        End::MidEvent => {
            let frame = frames.text("never whole");
            let half = frame.get(..frame.len() / 2).unwrap_or_default();
            wire.body(half).await?;
            return Ok((Finish::Cut, After::Close));
        }
        End::Dropped => return Ok((Finish::Cut, After::Close)),
        End::Reset => return Ok((Finish::Cut, After::Reset)),
        End::WithoutTerminal => {
            wire.end_of_body().await?;
            return Ok((Finish::Cut, after(script.transfer)));
        }
        End::Complete | End::WithoutDone => wire.body(&frames.finish(reason)).await?,
        End::WithoutFinish => {}
    }
    if usage_wanted(script.usage, wire) {
        wire.body(&frames.usage(script.tokens)).await?;
    }
    if script.end != End::WithoutDone {
        wire.body(&frames.event("[DONE]")).await?;
    }
    wire.end_of_body().await?;
    Ok((Finish::Complete, after(script.transfer)))
}

fn after(transfer: Transfer) -> After {
    match transfer {
        Transfer::Chunked => After::KeepAlive,
        Transfer::UntilClose => After::Close,
    }
}

fn usage_wanted<W>(frame: UsageFrame, wire: &Wire<'_, W>) -> bool {
    let asked = wire.request.body.pointer("/stream_options/include_usage") == Some(&json!(true));
    match frame {
        UsageFrame::AsAsked => asked,
        UsageFrame::Always => true,
        UsageFrame::Never => false,
    }
}

fn pieces(text: &str, size: Option<usize>) -> Vec<String> {
    let Some(size) = size else { return vec![text.to_owned()] };
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).map(|piece| piece.iter().collect()).collect()
}
