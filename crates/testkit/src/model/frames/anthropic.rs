//! Frames of Anthropic messages: a message of blocks, each started, filled and stopped one after the other.

use serde_json::{Value, json};

use super::super::recorded_request::RecordedRequest;
use super::super::request_checks::thinking_signature;
use super::{FrameEncoder, sse_event};

pub(super) struct AnthropicFrameEncoder {
    id: String,
    model: Value,
    /// Input and output tokens.
    tokens: (u64, u64),
    started: bool,
    /// Index of the open block or of the next one.
    index: usize,
    open: Option<OpenBlock>,
    calls: usize,
}

/// A block that may still grow.
enum OpenBlock {
    Text,
    /// Its text so far; the signature covers it together with the number of calls before it.
    Thinking(String),
}

impl AnthropicFrameEncoder {
    pub(super) fn new(request: &RecordedRequest, tokens: (u64, u64)) -> Self {
        let model = request.body.get("model").cloned().unwrap_or(Value::Null);
        let id = format!("msg_{}", request.index);
        Self { id, model, tokens, started: false, index: 0, open: None, calls: 0 }
    }

    fn encode_event(&self, event: &Value) -> Vec<u8> {
        let name = event.get("type").and_then(Value::as_str);
        sse_event(name, &event.to_string())
    }

    /// The first frames of a stream, sent once: the message without content, and a ping as the service sends it.
    fn encode_message_start(&mut self) -> Vec<Vec<u8>> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        let usage = json!({"input_tokens": self.tokens.0, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0, "output_tokens": 1});
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        vec![
            self.encode_event(&json!({"type": "message_start", "message": message})),
            self.encode_event(&json!({"type": "ping"})),
        ]
    }

    fn encode_block_end(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        match self.open.take() {
            None => return frames,
            Some(OpenBlock::Text) => {}
            Some(OpenBlock::Thinking(text)) => {
                frames.push(self.encode_block_delta(
                    &json!({"type": "signature_delta", "signature": thinking_signature(&text, self.calls)}),
                ));
            }
        }
        frames.push(self.encode_block_stop());
        frames
    }

    fn encode_block_start(&self, block: &Value) -> Vec<u8> {
        self.encode_event(&json!({"type": "content_block_start", "index": self.index, "content_block": block}))
    }

    fn encode_block_delta(&self, delta: &Value) -> Vec<u8> {
        self.encode_event(&json!({"type": "content_block_delta", "index": self.index, "delta": delta}))
    }

    /// Stops the block and increments the index.
    fn encode_block_stop(&mut self) -> Vec<u8> {
        let frame = self.encode_event(&json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
        frame
    }
}

impl FrameEncoder for AnthropicFrameEncoder {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>> {
        let mut frames = self.encode_message_start();
        if !matches!(self.open, Some(OpenBlock::Text)) {
            frames.extend(self.encode_block_end());
            frames.push(self.encode_block_start(&json!({"type": "text", "text": ""})));
            self.open = Some(OpenBlock::Text);
        }
        frames.push(self.encode_block_delta(&json!({"type": "text_delta", "text": text})));
        frames
    }

    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        let mut frames = self.encode_message_start();
        if !matches!(self.open, Some(OpenBlock::Thinking(_))) {
            frames.extend(self.encode_block_end());
            frames.push(self.encode_block_start(&json!({"type": "thinking", "thinking": "", "signature": ""})));
            self.open = Some(OpenBlock::Thinking(String::new()));
        }
        if let Some(OpenBlock::Thinking(whole)) = &mut self.open {
            whole.push_str(text);
        }
        frames.push(self.encode_block_delta(&json!({"type": "thinking_delta", "thinking": text})));
        frames
    }

    fn encode_redacted(&mut self, data: &str) -> Vec<Vec<u8>> {
        let mut frames = self.encode_message_start();
        frames.extend(self.encode_block_end());
        frames.push(self.encode_block_start(&json!({"type": "redacted_thinking", "data": data})));
        frames.push(self.encode_block_stop());
        frames
    }

    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        let mut frames = self.encode_message_start();
        frames.extend(self.encode_block_end());
        self.calls += 1;
        frames.push(self.encode_block_start(&json!({"type": "tool_use", "id": id, "name": name, "input": {}})));
        for piece in arguments {
            frames.push(self.encode_block_delta(&json!({"type": "input_json_delta", "partial_json": piece})));
        }
        frames.push(self.encode_block_stop());
        frames
    }

    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>> {
        let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": message}});
        vec![self.encode_event(&error)]
    }

    fn encode_end(&mut self, reason: Option<&str>) -> Vec<Vec<u8>> {
        let mut frames = self.encode_message_start();
        frames.extend(self.encode_block_end());
        let reason = reason.unwrap_or(if self.calls > 0 { "tool_use" } else { "end_turn" });
        let delta = json!({"stop_reason": reason, "stop_sequence": null});
        let usage = json!({"output_tokens": self.tokens.1});
        frames.push(self.encode_event(&json!({"type": "message_delta", "delta": delta, "usage": usage})));
        frames.push(self.encode_event(&json!({"type": "message_stop"})));
        frames
    }
}
