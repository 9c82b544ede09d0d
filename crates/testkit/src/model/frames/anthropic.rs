//! Anthropic messages: a message of blocks, each opened, filled and closed, one after the other.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::{Value, json};

use super::super::behaviour::{End, LineEnd, UsageFrame};
use super::super::record::Recorded;
use super::{Ending, Frames, comment, event};

pub(super) struct Blocks {
    id: String,
    model: Value,
    line_end: LineEnd,
    /// The counts, where they are to be sent.
    usage: Option<(u64, u64)>,
    begun: bool,
    /// The number of the block that is open or comes next.
    index: usize,
    open: Option<Open>,
    /// Calls so far.
    calls: usize,
}

/// A block that may still grow.
enum Open {
    Text,
    /// Its text so far, which the signature will cover together with its place among the calls.
    Thinking(String),
}

/// The server's proof that this reasoning is its own, unchanged, and stands behind so many calls of its message.
pub(in super::super) fn signature(text: &str, calls_before: usize) -> String {
    let mut hasher = DefaultHasher::new();
    (text, calls_before).hash(&mut hasher);
    format!("signed-{:016x}", hasher.finish())
}

impl Blocks {
    pub(super) fn new(request: &Recorded, line_end: LineEnd, usage: (UsageFrame, (u64, u64))) -> Self {
        let usage = (usage.0 != UsageFrame::Never).then_some(usage.1);
        let model = request.body.get("model").cloned().unwrap_or(Value::Null);
        let id = format!("msg_{}", request.index);
        Self { id, model, line_end, usage, begun: false, index: 0, open: None, calls: 0 }
    }

    fn event(&self, event_: &Value) -> Vec<u8> {
        let name = event_.get("type").and_then(Value::as_str);
        event(self.line_end, name, &event_.to_string())
    }

    /// What stands before anything else, once: the message without its content, and a ping as the service sends it.
    fn opening(&mut self) -> Vec<Vec<u8>> {
        if std::mem::replace(&mut self.begun, true) {
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
        vec![self.event(&json!({"type": "message_start", "message": message})), self.event(&json!({"type": "ping"}))]
    }

    fn close(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        match self.open.take() {
            None => return frames,
            Some(Open::Text) => {}
            Some(Open::Thinking(text)) => {
                frames.push(self.delta(&json!({"type": "signature_delta", "signature": signature(&text, self.calls)})));
            }
        }
        frames.push(self.stop());
        frames
    }

    fn start(&self, block: &Value) -> Vec<u8> {
        self.event(&json!({"type": "content_block_start", "index": self.index, "content_block": block}))
    }

    fn delta(&self, delta: &Value) -> Vec<u8> {
        self.event(&json!({"type": "content_block_delta", "index": self.index, "delta": delta}))
    }

    /// Closes the block and counts on.
    fn stop(&mut self) -> Vec<u8> {
        let frame = self.event(&json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
        frame
    }
}

impl Frames for Blocks {
    fn text(&mut self, text: &str) -> Vec<Vec<u8>> {
        let mut frames = self.opening();
        if !matches!(self.open, Some(Open::Text)) {
            frames.extend(self.close());
            frames.push(self.start(&json!({"type": "text", "text": ""})));
            self.open = Some(Open::Text);
        }
        frames.push(self.delta(&json!({"type": "text_delta", "text": text})));
        frames
    }

    fn thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        let mut frames = self.opening();
        if !matches!(self.open, Some(Open::Thinking(_))) {
            frames.extend(self.close());
            frames.push(self.start(&json!({"type": "thinking", "thinking": "", "signature": ""})));
            self.open = Some(Open::Thinking(String::new()));
        }
        if let Some(Open::Thinking(whole)) = &mut self.open {
            whole.push_str(text);
        }
        frames.push(self.delta(&json!({"type": "thinking_delta", "thinking": text})));
        frames
    }

    fn redacted(&mut self, data: &str) -> Vec<Vec<u8>> {
        let mut frames = self.opening();
        frames.extend(self.close());
        frames.push(self.start(&json!({"type": "redacted_thinking", "data": data})));
        frames.push(self.stop());
        frames
    }

    fn call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        let mut frames = self.opening();
        frames.extend(self.close());
        self.calls += 1;
        frames.push(self.start(&json!({"type": "tool_use", "id": id, "name": name, "input": {}})));
        for piece in arguments {
            frames.push(self.delta(&json!({"type": "input_json_delta", "partial_json": piece})));
        }
        frames.push(self.stop());
        frames
    }

    fn error(&mut self, message: &str) -> Vec<Vec<u8>> {
        let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": message}});
        vec![self.event(&error)]
    }

    fn comment(&self, text: &str) -> Vec<u8> {
        comment(self.line_end, text)
    }

    fn ending(&mut self, ending: &Ending<'_>) -> Vec<Vec<u8>> {
        let mut frames = self.opening();
        frames.extend(self.close());
        if ending.end != End::WithoutFinish {
            let reason = ending.reason.unwrap_or(if self.calls > 0 { "tool_use" } else { "end_turn" });
            let delta = json!({"stop_reason": reason, "stop_sequence": null});
            let mut last = json!({"type": "message_delta", "delta": delta});
            if let Some((_, output)) = self.usage {
                last["usage"] = json!({"output_tokens": output});
            }
            frames.push(self.event(&last));
        }
        if ending.end != End::WithoutDone {
            frames.push(self.event(&json!({"type": "message_stop"})));
        }
        frames
    }
}
