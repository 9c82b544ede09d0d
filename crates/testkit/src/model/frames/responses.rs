//! Events of the OpenAI Responses API: a response of output items, each added, filled and done one after the other.

use serde_json::{Value, json};

use super::super::recorded_request::RecordedRequest;
use super::super::request_checks::reasoning_signature;
use super::super::scripted_response::ScriptedTokens;
use super::{FrameEncoder, sse_event};

pub(super) struct ResponsesFrameEncoder {
    id: String,
    model: Value,
    tokens: ScriptedTokens,
    /// Whether the request asked for the reasoning itself.
    has_encrypted_reasoning: bool,
    sequence_number: u64,
    started: bool,
    /// The finished items.
    output: Vec<Value>,
    open: Option<OpenItem>,
    /// Frames that are encoded and not returned yet.
    frames: Vec<Vec<u8>>,
}

/// An item that may still grow, with its text so far.
enum OpenItem {
    Text { text: String, annotations: Vec<Value> },
    Reasoning(String),
}

impl ResponsesFrameEncoder {
    pub(super) fn new(request: &RecordedRequest, tokens: ScriptedTokens) -> Self {
        let includes = request.body.get("include").and_then(Value::as_array);
        let is_encrypted = |name: &Value| name == "reasoning.encrypted_content";
        Self {
            id: request.index.to_string(),
            model: request.body.get("model").cloned().unwrap_or(Value::Null),
            tokens,
            has_encrypted_reasoning: includes.is_some_and(|names| names.iter().any(is_encrypted)),
            sequence_number: 0,
            started: false,
            output: Vec::new(),
            open: None,
            frames: Vec::new(),
        }
    }

    fn push_event(&mut self, kind: &str, fields: Value) {
        let mut event = json!({"type": kind, "sequence_number": self.sequence_number});
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.sequence_number += 1;
        self.frames.push(sse_event(Some(kind), &event.to_string()));
    }

    fn response(&self, status: &str) -> Value {
        json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": 1_700_000_000, "status": status,
            "model": self.model, "output": self.output, "error": null, "incomplete_details": null,
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "store": false,
        })
    }

    /// The first events of a stream, sent once.
    fn start_response(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            let response = self.response("in_progress");
            self.push_event("response.created", json!({"response": response}));
            self.push_event("response.in_progress", json!({"response": response}));
        }
    }

    /// The id of the open item or of the next one.
    fn item_id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.id, self.output.len())
    }

    /// Ends the open item and begins this one.
    fn add_item(&mut self, item: &Value) {
        self.start_response();
        self.end_open_item();
        self.push_event("response.output_item.added", json!({"output_index": self.output.len(), "item": item}));
    }

    /// An event of a part of the item that is open.
    fn push_part_event(&mut self, kind: &str, id: &str, fields: Value) {
        let mut all = json!({"item_id": id, "output_index": self.output.len()});
        if let (Some(all), Value::Object(fields)) = (all.as_object_mut(), fields) {
            all.extend(fields);
        }
        self.push_event(kind, all);
    }

    fn finish_item(&mut self, item: Value) {
        self.push_event("response.output_item.done", json!({"output_index": self.output.len(), "item": item}));
        self.output.push(item);
    }

    fn end_open_item(&mut self) {
        match self.open.take() {
            Some(OpenItem::Text { text, annotations }) => {
                let id = self.item_id("msg");
                let done = json!({"content_index": 0, "text": text, "logprobs": []});
                self.push_part_event("response.output_text.done", &id, done);
                let part = json!({"type": "output_text", "text": text, "annotations": annotations, "logprobs": []});
                self.push_part_event("response.content_part.done", &id, json!({"content_index": 0, "part": part}));
                self.finish_item(
                    json!({"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part]}),
                );
            }
            Some(OpenItem::Reasoning(text)) => {
                let id = self.item_id("rs");
                let done = json!({"summary_index": 0, "text": text});
                self.push_part_event("response.reasoning_summary_text.done", &id, done);
                let part = json!({"type": "summary_text", "text": text});
                let done = json!({"summary_index": 0, "part": part});
                self.push_part_event("response.reasoning_summary_part.done", &id, done);
                let encrypted = reasoning_signature(&id, &text);
                self.finish_reasoning(&id, json!([part]), &encrypted);
            }
            None => {}
        }
    }

    fn finish_reasoning(&mut self, id: &str, summary: Value, encrypted: &str) {
        let mut item = json!({"type": "reasoning", "id": id, "summary": summary});
        if self.has_encrypted_reasoning {
            item["encrypted_content"] = json!(encrypted);
        }
        self.finish_item(item);
    }

    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }

    fn usage(&self) -> Value {
        let ScriptedTokens { input, output, cached } = self.tokens;
        json!({
            "input_tokens": input, "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + output,
        })
    }
}

impl FrameEncoder for ResponsesFrameEncoder {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>> {
        let id = match &self.open {
            Some(OpenItem::Text { .. }) => self.item_id("msg"),
            _ => {
                self.start_response();
                self.end_open_item();
                let id = self.item_id("msg");
                self.add_item(
                    &json!({"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []}),
                );
                let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
                self.push_part_event("response.content_part.added", &id, json!({"content_index": 0, "part": part}));
                self.open = Some(OpenItem::Text { text: String::new(), annotations: Vec::new() });
                id
            }
        };
        if let Some(OpenItem::Text { text: whole, .. }) = &mut self.open {
            whole.push_str(text);
        }
        let delta = json!({"content_index": 0, "delta": text, "logprobs": []});
        self.push_part_event("response.output_text.delta", &id, delta);
        self.take_frames()
    }

    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        let id = match &self.open {
            Some(OpenItem::Reasoning(_)) => self.item_id("rs"),
            _ => {
                self.start_response();
                self.end_open_item();
                let id = self.item_id("rs");
                self.add_item(&json!({"type": "reasoning", "id": id, "summary": []}));
                let part = json!({"summary_index": 0, "part": {"type": "summary_text", "text": ""}});
                self.push_part_event("response.reasoning_summary_part.added", &id, part);
                self.open = Some(OpenItem::Reasoning(String::new()));
                id
            }
        };
        if let Some(OpenItem::Reasoning(whole)) = &mut self.open {
            whole.push_str(text);
        }
        let delta = json!({"summary_index": 0, "delta": text});
        self.push_part_event("response.reasoning_summary_text.delta", &id, delta);
        self.take_frames()
    }

    fn encode_redacted(&mut self, data: &str) -> Vec<Vec<u8>> {
        self.start_response();
        self.end_open_item();
        let id = self.item_id("rs");
        self.add_item(&json!({"type": "reasoning", "id": id, "summary": []}));
        self.finish_reasoning(&id, json!([]), data);
        self.take_frames()
    }

    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        self.start_response();
        self.end_open_item();
        let item_id = self.item_id("fc");
        let item = |status: &str, arguments: &str| {
            json!({"type": "function_call", "id": item_id, "call_id": id, "name": name, "arguments": arguments,
                "status": status})
        };
        self.add_item(&item("in_progress", ""));
        for piece in arguments {
            self.push_part_event("response.function_call_arguments.delta", &item_id, json!({"delta": piece}));
        }
        let whole = arguments.concat();
        self.push_part_event(
            "response.function_call_arguments.done",
            &item_id,
            json!({"name": name, "arguments": whole}),
        );
        self.finish_item(item("completed", &whole));
        self.take_frames()
    }

    fn encode_web_search(&mut self, query: &str) -> Vec<Vec<u8>> {
        self.start_response();
        self.end_open_item();
        let id = self.item_id("ws");
        let action = json!({"type": "search", "query": query, "queries": [query]});
        let item = |status: &str| json!({"type": "web_search_call", "id": id, "status": status, "action": action});
        self.add_item(&item("in_progress"));
        for state in ["in_progress", "searching", "completed"] {
            self.push_part_event(&format!("response.web_search_call.{state}"), &id, json!({}));
        }
        self.finish_item(item("completed"));
        self.take_frames()
    }

    fn encode_citation(&mut self, url: &str, title: &str) -> Vec<Vec<u8>> {
        let id = self.item_id("msg");
        if let Some(OpenItem::Text { text, annotations }) = &mut self.open {
            let annotation = json!({"type": "url_citation", "url": url, "title": title, "start_index": 0,
                "end_index": text.chars().count()});
            let fields = json!({"content_index": 0, "annotation_index": annotations.len(), "annotation": annotation});
            annotations.push(annotation);
            self.push_part_event("response.output_text.annotation.added", &id, fields);
        }
        self.take_frames()
    }

    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>> {
        self.push_event("error", json!({"code": "server_error", "message": message, "param": null}));
        self.take_frames()
    }

    fn encode_end(&mut self, reason: Option<&str>) -> Vec<Vec<u8>> {
        self.start_response();
        self.end_open_item();
        let status = if reason.is_some() { "incomplete" } else { "completed" };
        let mut response = self.response(status);
        response["usage"] = self.usage();
        if let Some(reason) = reason {
            response["incomplete_details"] = json!({"reason": reason});
        }
        self.push_event(&format!("response.{status}"), json!({"response": response}));
        self.take_frames()
    }
}
