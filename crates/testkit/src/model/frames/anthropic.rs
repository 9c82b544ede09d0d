//! Frames of Anthropic messages: a message of blocks, each started, filled and stopped one after the other.

use serde_json::{Value, json};

use super::super::recorded_request::RecordedRequest;
use super::super::request_checks::thinking_signature;
use super::super::scripted_response::ScriptedTokens;
use super::{FrameEncoder, sse_event};

pub(super) struct AnthropicFrameEncoder {
    id: String,
    model: Value,
    tokens: ScriptedTokens,
    started: bool,
    /// Index of the open block or of the next one.
    index: usize,
    open: Option<OpenBlock>,
    calls: usize,
    /// Frames that are encoded and not returned yet.
    frames: Vec<Vec<u8>>,
}

/// A block that may still grow.
enum OpenBlock {
    Text,
    /// Its text so far; the signature covers it together with the number of calls before it.
    Thinking(String),
}

impl AnthropicFrameEncoder {
    pub(super) fn new(request: &RecordedRequest, tokens: ScriptedTokens) -> Self {
        let model = request.body.get("model").cloned().unwrap_or(Value::Null);
        let id = format!("msg_{}", request.index);
        Self { id, model, tokens, started: false, index: 0, open: None, calls: 0, frames: Vec::new() }
    }

    fn push_event(&mut self, event: &Value) {
        self.frames.push(sse_event(event["type"].as_str(), &event.to_string()));
    }

    /// The first frames of a stream, sent once: the message without content, and a ping as the service sends it.
    fn start_message(&mut self) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        // The service counts what it read from the cache apart from the rest.
        let ScriptedTokens { input, cached, .. } = self.tokens;
        let usage = json!({"input_tokens": input - cached, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached, "output_tokens": 1});
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        self.push_event(&json!({"type": "message_start", "message": message}));
        self.push_event(&json!({"type": "ping"}));
    }

    /// Ends the open block and starts this one.
    fn start_block(&mut self, block: &Value) {
        self.start_message();
        self.end_open_block();
        self.push_event(&json!({"type": "content_block_start", "index": self.index, "content_block": block}));
    }

    fn push_delta(&mut self, delta: &Value) {
        self.push_event(&json!({"type": "content_block_delta", "index": self.index, "delta": delta}));
    }

    fn end_block(&mut self) {
        self.push_event(&json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
    }

    fn end_open_block(&mut self) {
        let Some(open) = self.open.take() else { return };
        if let OpenBlock::Thinking(text) = open {
            let signature = thinking_signature(&text, self.calls);
            self.push_delta(&json!({"type": "signature_delta", "signature": signature}));
        }
        self.end_block();
    }

    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }
}

impl FrameEncoder for AnthropicFrameEncoder {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>> {
        if !matches!(self.open, Some(OpenBlock::Text)) {
            self.start_block(&json!({"type": "text", "text": ""}));
            self.open = Some(OpenBlock::Text);
        }
        self.push_delta(&json!({"type": "text_delta", "text": text}));
        self.take_frames()
    }

    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        if !matches!(self.open, Some(OpenBlock::Thinking(_))) {
            self.start_block(&json!({"type": "thinking", "thinking": "", "signature": ""}));
            self.open = Some(OpenBlock::Thinking(String::new()));
        }
        if let Some(OpenBlock::Thinking(whole)) = &mut self.open {
            whole.push_str(text);
        }
        self.push_delta(&json!({"type": "thinking_delta", "thinking": text}));
        self.take_frames()
    }

    fn encode_redacted(&mut self, data: &str) -> Vec<Vec<u8>> {
        self.start_block(&json!({"type": "redacted_thinking", "data": data}));
        self.end_block();
        self.take_frames()
    }

    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        self.start_block(&json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
        self.calls += 1;
        for piece in arguments {
            self.push_delta(&json!({"type": "input_json_delta", "partial_json": piece}));
        }
        self.end_block();
        self.take_frames()
    }

    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>> {
        self.push_event(&json!({"type": "error", "error": {"type": "overloaded_error", "message": message}}));
        self.take_frames()
    }

    fn encode_end(&mut self, reason: Option<&str>) -> Vec<Vec<u8>> {
        self.start_message();
        self.end_open_block();
        let reason = reason.unwrap_or(if self.calls > 0 { "tool_use" } else { "end_turn" });
        let delta = json!({"stop_reason": reason, "stop_sequence": null});
        let usage = json!({"output_tokens": self.tokens.output});
        self.push_event(&json!({"type": "message_delta", "delta": delta, "usage": usage}));
        self.push_event(&json!({"type": "message_stop"}));
        self.take_frames()
    }
}
