//! Frames of OpenAI chat completions: chunks with deltas.

use serde_json::{Value, json};

use super::super::recorded_request::RecordedRequest;
use super::super::scripted_response::{ScriptedTokens, UsageReporting};
use super::{FrameEncoder, sse_event};

pub(super) struct OpenAiFrameEncoder {
    id: String,
    model: Value,
    /// None if they are not sent.
    usage: Option<ScriptedTokens>,
    started: bool,
    calls: usize,
}

impl OpenAiFrameEncoder {
    pub(super) fn new(request: &RecordedRequest, usage: UsageReporting, tokens: ScriptedTokens) -> Self {
        let asked = request.body.pointer("/stream_options/include_usage") == Some(&json!(true));
        let usage = (asked || usage == UsageReporting::Always).then_some(tokens);
        let model = request.body.get("model").cloned().unwrap_or(Value::Null);
        Self { id: format!("chatcmpl-{}", request.index), model, usage, started: false, calls: 0 }
    }

    /// A chunk with this delta, after the first chunk, which names the role.
    fn encode_deltas(&mut self, delta: Value) -> Vec<Vec<u8>> {
        let role = json!({"role": "assistant", "content": ""});
        let opening = (!self.started).then(|| self.encode_delta(&role));
        self.started = true;
        opening.into_iter().chain([self.encode_delta(&delta)]).collect()
    }

    fn encode_delta(&self, delta: &Value) -> Vec<u8> {
        self.encode_chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null)
    }

    fn encode_chunk(&self, choices: Value, usage: Value) -> Vec<u8> {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": self.model,
            "choices": choices,
        });
        if !usage.is_null() {
            chunk["usage"] = usage;
        }
        sse_event(None, &chunk.to_string())
    }
}

impl FrameEncoder for OpenAiFrameEncoder {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>> {
        self.encode_deltas(json!({"content": text}))
    }

    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        self.encode_deltas(json!({"reasoning_content": text}))
    }

    fn encode_redacted(&mut self, _: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        let index = self.calls;
        self.calls += 1;
        let call = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        let mut frames = self.encode_deltas(json!({"tool_calls": [call]}));
        for piece in arguments {
            frames
                .push(self.encode_delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})));
        }
        frames
    }

    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>> {
        let error = json!({"error": {"message": message, "type": "server_error", "code": null}});
        vec![sse_event(None, &error.to_string())]
    }

    fn encode_end(&mut self, reason: Option<&str>) -> Vec<Vec<u8>> {
        let reason = reason.unwrap_or(if self.calls > 0 { "tool_calls" } else { "stop" });
        let mut frames =
            vec![self.encode_chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null)];
        if let Some(ScriptedTokens { input, output, cached }) = self.usage {
            let mut usage =
                json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
            if cached > 0 {
                usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
            }
            frames.push(self.encode_chunk(json!([]), usage));
        }
        frames.push(sse_event(None, "[DONE]"));
        frames
    }
}
