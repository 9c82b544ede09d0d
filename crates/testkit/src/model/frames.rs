//! Encode the frames of a stream in the dialect of its request.

mod anthropic;
mod openai;

use super::recorded_request::RecordedRequest;
use super::scripted_response::{LineEnd, StreamEnd, UsageReporting};
use crate::history_check::corpus::ModelDialect;

/// Encodes the frames of one stream. It remembers open blocks, so call it in the order of the stream.
pub(super) trait FrameEncoder: Send {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>>;
    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>>;
    /// Reasoning that only the provider can read; no frames if the dialect has none.
    fn encode_redacted(&mut self, data: &str) -> Vec<Vec<u8>>;
    /// A call with its arguments in these pieces.
    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>>;
    /// An error object in place of a frame.
    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>>;
    fn encode_comment(&self, text: &str) -> Vec<u8>;
    /// The end, or the part of it that is sent.
    fn encode_end(&mut self, ending: &StreamEndFrames<'_>) -> Vec<Vec<u8>>;
}

pub(super) struct StreamEndFrames<'a> {
    /// Decides which part of the end is left out.
    pub(super) end: StreamEnd,
    /// The reason, if the script names one.
    pub(super) reason: Option<&'a str>,
}

/// The encoder for an answer to this request, with these token counts.
pub(super) fn frame_encoder(
    request: &RecordedRequest,
    line_end: LineEnd,
    usage: (UsageReporting, (u64, u64)),
) -> Box<dyn FrameEncoder> {
    match request.dialect {
        ModelDialect::OpenAi => Box::new(openai::OpenAiFrameEncoder::new(request, line_end, usage)),
        ModelDialect::Anthropic => Box::new(anthropic::AnthropicFrameEncoder::new(request, line_end, usage)),
    }
}

fn sse_event(line_end: LineEnd, name: Option<&str>, data: &str) -> Vec<u8> {
    let end = line_end.as_str();
    let name = name.map(|name| format!("event: {name}{end}")).unwrap_or_default();
    format!("{name}data: {data}{end}{end}").into_bytes()
}

fn sse_comment(line_end: LineEnd, text: &str) -> Vec<u8> {
    let end = line_end.as_str();
    format!(": {text}{end}{end}").into_bytes()
}
