//! Encode the frames of a stream in the dialect of its request.

mod anthropic;
mod gemini;
mod openai;
mod responses;

use super::recorded_request::RecordedRequest;
use super::scripted_response::{ScriptedTokens, UsageReporting};
use crate::history_check::corpus::ModelDialect;

/// Encodes the frames of one stream. It remembers open blocks, so call it in the order of the stream.
pub(super) trait FrameEncoder: Send {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>>;
    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>>;
    /// Reasoning that only the provider can read; no frames if the dialect has none.
    fn encode_redacted(&mut self, data: &str) -> Vec<Vec<u8>>;
    /// A call with its arguments in these pieces.
    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>>;
    /// A search that the provider itself carries out; no frames if the dialect has none.
    fn encode_web_search(&mut self, _query: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// A page that the open text is based on; no frames if the dialect has none.
    fn encode_citation(&mut self, _url: &str, _title: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// An error object in place of a frame.
    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>>;
    /// The end of a complete answer, with this finish reason or the dialect's own.
    fn encode_end(&mut self, reason: Option<&str>) -> Vec<Vec<u8>>;
}

/// The encoder for an answer to this request, with these token counts.
pub(super) fn frame_encoder(
    request: &RecordedRequest,
    usage: UsageReporting,
    tokens: ScriptedTokens,
) -> Box<dyn FrameEncoder> {
    match request.dialect {
        ModelDialect::OpenAi => Box::new(openai::OpenAiFrameEncoder::new(request, usage, tokens)),
        ModelDialect::OpenAiResponses => Box::new(responses::ResponsesFrameEncoder::new(request, tokens)),
        ModelDialect::Gemini => Box::new(gemini::GeminiFrameEncoder::new(request, tokens)),
        ModelDialect::Anthropic => Box::new(anthropic::AnthropicFrameEncoder::new(request, tokens)),
    }
}

fn sse_event(name: Option<&str>, data: &str) -> Vec<u8> {
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {data}\n\n").into_bytes()
}
