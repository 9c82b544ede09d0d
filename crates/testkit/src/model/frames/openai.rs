//! OpenAI chat completions: chunks with deltas.

use serde_json::{Value, json};

use super::super::behaviour::{End, LineEnd, UsageFrame};
use super::super::record::Recorded;
use super::{Ending, Frames, comment, event};

pub(super) struct Chunks {
    id: String,
    model: Value,
    line_end: LineEnd,
    /// The counts, where they are to be sent.
    usage: Option<(u64, u64)>,
    begun: bool,
    calls: usize,
}

impl Chunks {
    pub(super) fn new(request: &Recorded, line_end: LineEnd, usage: (UsageFrame, (u64, u64))) -> Self {
        let asked = request.body.pointer("/stream_options/include_usage") == Some(&json!(true));
        let wanted = match usage.0 {
            UsageFrame::AsAsked => asked,
            UsageFrame::Always => true,
            UsageFrame::Never => false,
        };
        let model = request.body.get("model").cloned().unwrap_or(Value::Null);
        let id = format!("chatcmpl-{}", request.index);
        Self { id, model, line_end, usage: wanted.then_some(usage.1), begun: false, calls: 0 }
    }

    /// A chunk with this delta, behind the one that names the role.
    fn deltas(&mut self, delta: Value) -> Vec<Vec<u8>> {
        let role = json!({"role": "assistant", "content": ""});
        let opening = (!self.begun).then(|| self.delta(&role));
        self.begun = true;
        opening.into_iter().chain([self.delta(&delta)]).collect()
    }

    fn delta(&self, delta: &Value) -> Vec<u8> {
        self.chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null)
    }

    fn chunk(&self, choices: Value, usage: Value) -> Vec<u8> {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": self.model,
            "choices": choices,
        });
        if !usage.is_null() {
            chunk["usage"] = usage;
        }
        event(self.line_end, None, &chunk.to_string())
    }
}

impl Frames for Chunks {
    fn text(&mut self, text: &str) -> Vec<Vec<u8>> {
        self.deltas(json!({"content": text}))
    }

    fn thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        self.deltas(json!({"reasoning_content": text}))
    }

    fn redacted(&mut self, _: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        let index = self.calls;
        self.calls += 1;
        let call = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        let mut frames = self.deltas(json!({"tool_calls": [call]}));
        for piece in arguments {
            frames.push(self.delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})));
        }
        frames
    }

    fn error(&mut self, message: &str) -> Vec<Vec<u8>> {
        let error = json!({"error": {"message": message, "type": "server_error", "code": null}});
        vec![event(self.line_end, None, &error.to_string())]
    }

    fn comment(&self, text: &str) -> Vec<u8> {
        comment(self.line_end, text)
    }

    fn ending(&mut self, ending: &Ending<'_>) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        if ending.end != End::WithoutFinish {
            let reason = ending.reason.unwrap_or(if self.calls > 0 { "tool_calls" } else { "stop" });
            frames.push(self.chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null));
        }
        if let Some((input, output)) = self.usage {
            let usage = json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
            frames.push(self.chunk(json!([]), usage));
        }
        if ending.end != End::WithoutDone {
            frames.push(event(self.line_end, None, "[DONE]"));
        }
        frames
    }
}
