//! Pieces of a Gemini answer: each event is a whole response with the parts that are new.

use serde_json::{Value, json};

use super::super::recorded_request::RecordedRequest;
use super::super::request_checks::part_signature;
use super::super::scripted_response::ScriptedTokens;
use super::{FrameEncoder, sse_event};
use crate::history_check::list_of;

pub(super) struct GeminiFrameEncoder {
    id: String,
    tokens: ScriptedTokens,
    has_thought: bool,
    calls: usize,
    /// Whether the request has functions, so that searches are parts of the answer, too.
    has_functions: bool,
    searches: Vec<String>,
    pages: Vec<Value>,
}

impl GeminiFrameEncoder {
    pub(super) fn new(request: &RecordedRequest, tokens: ScriptedTokens) -> Self {
        let has_functions =
            list_of(&request.body, "tools").iter().any(|tool| tool.get("functionDeclarations").is_some());
        let (searches, pages) = (Vec::new(), Vec::new());
        let id = format!("answer-{}", request.index);
        Self { id, tokens, has_thought: false, calls: 0, has_functions, searches, pages }
    }

    fn encode_parts(&self, parts: Value, finish_reason: Option<&str>) -> Vec<Vec<u8>> {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        let mut usage = json!({"promptTokenCount": self.tokens.input, "totalTokenCount": self.tokens.input});
        if let Some(reason) = finish_reason {
            candidate["finishReason"] = json!(reason);
            if !self.searches.is_empty() {
                candidate["groundingMetadata"] = json!({
                    "webSearchQueries": self.searches, "groundingChunks": self.pages, "groundingSupports": [],
                    "searchEntryPoint": {"renderedContent": "<div></div>"},
                });
            }
            usage["candidatesTokenCount"] = json!(self.tokens.output);
            usage["totalTokenCount"] = json!(self.tokens.input + self.tokens.output);
        }
        if self.tokens.cached > 0 {
            usage["cachedContentTokenCount"] = json!(self.tokens.cached);
        }
        let event = json!({
            "candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted", "responseId": self.id,
        });
        vec![sse_event(None, &event.to_string())]
    }
}

impl FrameEncoder for GeminiFrameEncoder {
    fn encode_text(&mut self, text: &str) -> Vec<Vec<u8>> {
        self.encode_parts(json!([{"text": text}]), None)
    }

    fn encode_thinking(&mut self, text: &str) -> Vec<Vec<u8>> {
        self.has_thought = true;
        self.encode_parts(json!([{"text": text, "thought": true}]), None)
    }

    fn encode_redacted(&mut self, _: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// The API sends a call as a whole. The first call of an answer is signed.
    fn encode_tool_call(&mut self, id: &str, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        let arguments = arguments.concat();
        let arguments = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
        let mut part = json!({"functionCall": {"id": id, "name": name, "args": arguments}});
        if self.calls == 0 {
            part["thoughtSignature"] = json!(part_signature(&part));
        }
        self.calls += 1;
        self.encode_parts(json!([part]), None)
    }

    /// Beside functions, the API sends a search and its result as signed parts; otherwise only what it found, at the end.
    fn encode_web_search(&mut self, query: &str) -> Vec<Vec<u8>> {
        let id = format!("{}-search-{}", self.id, self.searches.len());
        self.searches.push(query.to_owned());
        if !self.has_functions {
            return Vec::new();
        }
        let mut call = json!({"toolCall": {"id": id, "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": [query]}}});
        let mut result = json!({"toolResponse": {"id": id, "toolType": "GOOGLE_SEARCH_WEB",
            "response": {"search_suggestions": "<div></div>"}}});
        for part in [&mut call, &mut result] {
            part["thoughtSignature"] = json!(part_signature(part));
        }
        self.encode_parts(json!([call, result]), None)
    }

    fn encode_citation(&mut self, url: &str, title: &str) -> Vec<Vec<u8>> {
        self.pages.push(json!({"web": {"uri": url, "title": title}}));
        Vec::new()
    }

    fn encode_error(&mut self, message: &str) -> Vec<Vec<u8>> {
        let error = json!({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}});
        vec![sse_event(None, &error.to_string())]
    }

    fn encode_end(&mut self, reason: Option<&str>) -> Vec<Vec<u8>> {
        // Behind reasoning, the last part may be a signature without content.
        let parts = match self.has_thought && self.calls == 0 {
            true => json!([{"text": "", "thoughtSignature": part_signature(&json!({"text": ""}))}]),
            false => json!([{"text": ""}]),
        };
        self.encode_parts(parts, Some(reason.unwrap_or("STOP")))
    }
}
