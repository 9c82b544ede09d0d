//! Frames of Anthropic messages: a message of blocks, each started, filled and stopped one after the other.

use serde_json::{Value, json};

use super::super::recorded_request::RecordedRequest;
use super::super::request_checks::thinking_signature;
use super::super::scripted_response::{LineEnd, StreamEnd, UsageReporting};
use super::{FrameEncoder, StreamEndFrames, sse_comment, sse_event};

pub(super) struct AnthropicFrameEncoder {
    id: String,
    model: Value,
    line_end: LineEnd,
    /// Input and output tokens, if they are sent.
    usage: Option<(u64, u64)>,
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
    pub(super) fn new(request: &RecordedRequest, line_end: LineEnd, usage: (UsageReporting, (u64, u64))) -> Self {
        let usage = (usage.0 != UsageReporting::Never).then_some(usage.1);
        let model = request.body.get("model").cloned().unwrap_or(Value::Null);
        let id = format!("msg_{}", request.index);
        Self { id, model, line_end, usage, started: false, index: 0, open: None, calls: 0 }
    }

    fn encode_event(&self, event: &Value) -> Vec<u8> {
        let name = event.get("type").and_then(Value::as_str);
        sse_event(self.line_end, name, &event.to_string())
    }

    /// The first frames of a stream, sent once: the message without content, and a ping as the service sends it.
    fn encode_message_start(&mut self) -> Vec<Vec<u8>> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        let mut message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null,
        });
        if let Some((input, _)) = self.usage {
            message["usage"] = json!({"input_tokens": input, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0, "output_tokens": 1});
        }
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

    fn encode_comment(&self, text: &str) -> Vec<u8> {
        sse_comment(self.line_end, text)
    }

    fn encode_end(&mut self, ending: &StreamEndFrames<'_>) -> Vec<Vec<u8>> {
        let mut frames = self.encode_message_start();
        frames.extend(self.encode_block_end());
        if ending.end != StreamEnd::WithoutFinish {
            let reason = ending.reason.unwrap_or(if self.calls > 0 { "tool_use" } else { "end_turn" });
            let delta = json!({"stop_reason": reason, "stop_sequence": null});
            let mut last = json!({"type": "message_delta", "delta": delta});
            if let Some((_, output)) = self.usage {
                last["usage"] = json!({"output_tokens": output});
            }
            frames.push(self.encode_event(&last));
        }
        if ending.end != StreamEnd::WithoutDone {
            frames.push(self.encode_event(&json!({"type": "message_stop"})));
        }
        frames
    }
}
