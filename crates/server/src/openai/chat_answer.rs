//! An answer in the form of chat completions, whole or as chunks. Pure.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderName;
use quell_kernel::client_request::AnswerEnd;
use quell_kernel::turn::{CODE_REFUSED, ToolCall};
use quell_protocol::{RunId, Usage, Verdict};
use serde_json::{Value, json};

use super::REQUEST_ID_HEADER;
use super::error::problem_body;
use crate::answer_stream::{AnswerEncoder, WholeMessage, push_json_text};
use crate::client_run::AnswerOutcome;
use crate::http::ProblemResponse;

/// Renders one answer.
#[derive(Debug)]
pub(super) struct ChatAnswer {
    id: String,
    created: u64,
    model: String,
    include_usage: bool,
    /// The beginning of every chunk, up to its delta.
    chunk_start: String,
    has_begun: bool,
}

/// Begins the id of every answer, as clients know it.
const ID_PREFIX: &str = "chatcmpl-";

impl ChatAnswer {
    pub(super) fn new(model: &str, include_usage: bool) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (model, id, chunk_start) = (model.to_owned(), String::new(), String::new());
        Self { id, created, model, include_usage, chunk_start, has_begun: false }
    }
}

impl AnswerEncoder for ChatAnswer {
    const REQUEST_ID_HEADER: HeaderName = REQUEST_ID_HEADER;

    fn set_run(&mut self, run: &RunId) {
        self.id = format!("{ID_PREFIX}{run}");
        let (id, model) = (json!(self.id), json!(self.model));
        self.chunk_start = format!(
            r#"data: {{"id":{id},"object":"chat.completion.chunk","created":{},"model":{model},"choices":[{{"index":0,"delta":"#,
            self.created
        );
    }

    fn write_text(&mut self, text: &str, frames: &mut String) {
        self.begin(frames);
        self.write_delta(r#"{"content":"#, text, frames);
    }

    /// Reasoning has no place in OpenAI's format; this is the field that other servers use.
    fn write_thinking(&mut self, text: &str, frames: &mut String) {
        self.begin(frames);
        self.write_delta(r#"{"reasoning_content":"#, text, frames);
    }

    fn write_waiting(&mut self, frames: &mut String) {
        frames.push_str(": waiting\n\n");
    }

    fn write_end(&mut self, outcome: &AnswerOutcome, _: Option<&WholeMessage>, frames: &mut String) -> bool {
        let Some(reason) = finish_reason(outcome) else { return false };
        self.begin(frames);
        let calls = calls_of(outcome);
        if !calls.is_empty() {
            let calls: Vec<Value> = calls.iter().enumerate().map(|(index, call)| call_delta(index, call)).collect();
            self.write_chunk(&json!({"tool_calls": calls}).to_string(), None, frames);
        }
        self.write_chunk("{}", Some(reason), frames);
        if self.include_usage {
            let (id, created, model) = (&self.id, self.created, &self.model);
            let usage = json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model,
                "choices": [], "usage": usage_object(outcome.usage)});
            // Writing to a string cannot fail.
            let _ = write!(frames, "data: {usage}\n\n");
        }
        frames.push_str("data: [DONE]\n\n");
        true
    }

    fn write_problem(&mut self, problem: &ProblemResponse, frames: &mut String) {
        let error = problem_body(problem);
        // Writing to a string cannot fail.
        let _ = write!(frames, "data: {error}\n\n");
    }

    fn is_answer(&self, outcome: &AnswerOutcome) -> bool {
        finish_reason(outcome).is_some()
    }

    fn whole(&self, text: &str, outcome: &AnswerOutcome, _: Option<&WholeMessage>) -> Option<Value> {
        let reason = finish_reason(outcome)?;
        let calls: Vec<Value> = calls_of(outcome).iter().map(call_object).collect();
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        Some(json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": reason}],
            "usage": usage_object(outcome.usage),
        }))
    }
}

impl ChatAnswer {
    /// Writes the first chunk, which names the role.
    fn begin(&mut self, frames: &mut String) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.write_chunk(r#"{"role":"assistant","content":""}"#, None, frames);
        }
    }

    /// The chunk that is written for each piece of text. `field` is the beginning of the delta, up to the text.
    fn write_delta(&self, field: &str, text: &str, frames: &mut String) {
        frames.extend([&self.chunk_start, field]);
        push_json_text(text, frames);
        frames.push('}');
        self.end_chunk(None, frames);
    }

    fn write_chunk(&self, delta: &str, finish_reason: Option<&str>, frames: &mut String) {
        frames.extend([&self.chunk_start, delta]);
        self.end_chunk(finish_reason, frames);
    }

    fn end_chunk(&self, finish_reason: Option<&str>, frames: &mut String) {
        frames.push_str(r#","logprobs":null,"finish_reason":"#);
        match finish_reason {
            None => frames.push_str("null"),
            Some(reason) => frames.extend(["\"", reason, "\""]),
        }
        frames.push_str(if self.include_usage { "}],\"usage\":null}\n\n" } else { "}]}\n\n" });
    }
}

/// Why the answer ended, in OpenAI's word; `None` if the run gave no answer.
fn finish_reason(outcome: &AnswerOutcome) -> Option<&'static str> {
    match (&outcome.verdict, &outcome.answer) {
        (Verdict::Completed, Some(answer)) => Some(match answer.end {
            AnswerEnd::Done | AnswerEnd::StopSequence(_) => "stop",
            AnswerEnd::Length => "length",
            AnswerEnd::Calls => "tool_calls",
            AnswerEnd::Filtered => "content_filter",
        }),
        // What an agent calls a failure has a word of its own here.
        (Verdict::Failed { code, .. }, _) if code == "truncated" => Some("length"),
        (Verdict::Failed { code, .. }, _) if code == CODE_REFUSED => Some("content_filter"),
        _ => None,
    }
}

fn calls_of(outcome: &AnswerOutcome) -> &[ToolCall] {
    outcome.answer.as_ref().map_or(&[], |answer| &answer.calls)
}

fn call_object(call: &ToolCall) -> Value {
    // Arguments are JSON inside a string in this format.
    json!({"id": call.id, "type": "function",
        "function": {"name": call.tool, "arguments": call.arguments.to_string()}})
}

fn call_delta(index: usize, call: &ToolCall) -> Value {
    let mut delta = call_object(call);
    delta["index"] = index.into();
    delta
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}
