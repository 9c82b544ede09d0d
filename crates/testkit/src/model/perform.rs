//! Carries out one behaviour, step by step.

use std::io;

use tokio::io::AsyncWrite;

use super::behaviour::{Behaviour, End, Step, Stream, Transfer};
use super::frames::{Ending, Frames, frames};
use super::record::Finish;
use super::stage::Stage;
use super::wire::Wire;
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
    let mut frames = frames(wire.request, script.line_end, (script.usage, script.tokens));
    if let Some(gate) = &script.hold_headers {
        at_gate(gate, stage, wire).await;
    }
    wire.stream_head().await?;
    for step in &script.steps {
        match step {
            Step::WaitFor(gate) => at_gate(gate, stage, wire).await,
            Step::Silent => silence(wire).await,
            Step::ToolCall { id, name, arguments } => {
                let arguments = pieces(arguments, script.arguments_piece);
                wire.frames(&frames.call(id, name, &arguments)).await?;
            }
            plain => say(plain, &mut *frames, wire).await?,
        }
    }
    finish(script, &mut *frames, wire).await
}

/// The steps that only send.
async fn say<W: AsyncWrite + Unpin>(step: &Step, frames: &mut dyn Frames, wire: &mut Wire<'_, W>) -> io::Result<()> {
    match step {
        Step::Text(text) => wire.frames(&frames.text(text)).await,
        Step::Thinking(text) => wire.frames(&frames.thinking(text)).await,
        Step::Redacted(data) => wire.frames(&frames.redacted(data)).await,
        Step::Error { message } => wire.frames(&frames.error(message)).await,
        Step::Comment(text) => wire.body(&frames.comment(text)).await,
        Step::Raw(bytes) => wire.body(bytes).await,
        Step::HugeFrame { bytes } => wire.frames(&frames.text(&"x".repeat(*bytes))).await,
        Step::HugeOutput { bytes } => {
            let size = 4096;
            let text = "y".repeat(size);
            for _ in 0..bytes.div_ceil(size) {
                wire.frames(&frames.text(&text)).await?;
            }
            Ok(())
        }
        Step::TokensForever { every } => {
            let mut pace = tokio::time::interval(*every);
            loop {
                pace.tick().await;
                wire.frames(&frames.text("tok ")).await?;
            }
        }
        Step::WaitFor(_) | Step::Silent | Step::ToolCall { .. } => Ok(()),
    }
}

async fn finish<W: AsyncWrite + Unpin>(
    script: &Stream,
    frames: &mut dyn Frames,
    wire: &mut Wire<'_, W>,
) -> io::Result<(Finish, After)> {
    match script.end {
        End::MidEvent => {
            let mut never_whole = frames.text("never whole");
            if let Some(last) = never_whole.last_mut() {
                last.truncate(last.len() / 2);
            }
            wire.frames(&never_whole).await?;
            return Ok((Finish::Cut, After::Close));
        }
        End::Dropped => return Ok((Finish::Cut, After::Close)),
        End::Reset => return Ok((Finish::Cut, After::Reset)),
        End::WithoutTerminal => {
            wire.end_of_body().await?;
            return Ok((Finish::Cut, after(script.transfer)));
        }
        End::Complete | End::WithoutDone | End::WithoutFinish => {}
    }
    let ending = Ending { end: script.end, reason: script.finish_reason.as_deref() };
    wire.frames(&frames.ending(&ending)).await?;
    wire.end_of_body().await?;
    Ok((Finish::Complete, after(script.transfer)))
}

fn after(transfer: Transfer) -> After {
    match transfer {
        Transfer::Chunked => After::KeepAlive,
        Transfer::UntilClose => After::Close,
    }
}

fn pieces(text: &str, size: Option<usize>) -> Vec<String> {
    let Some(size) = size else { return vec![text.to_owned()] };
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).map(|piece| piece.iter().collect()).collect()
}
