//! An answer in the form of Anthropic's messages, whole or as events. Pure.
//!
//! The blocks of a stream follow each other as the model writes them, with one exception. The signature of reasoning is
//! known only at the end, so the block of signed reasoning stays open until then; clients find a block by its index.

use std::fmt::Write;

use axum::http::HeaderName;
use quell_kernel::client_request::AnswerEnd;
use quell_kernel::client_request::anthropic::{UNSIGNED, reasoning_signature, thinking_block};
use quell_kernel::turn::{AnsweredCall, CODE_REFUSED, MessageBlock, ModelMessage, Thinking, ToolCall, is_blank};
use quell_protocol::{RunId, Usage, Verdict};
use serde_json::{Value, json};

use super::error::{REQUEST_ID_HEADER, error_event};
use crate::answer_stream::{AnswerEncoder, WholeMessage, push_json_text};
use crate::client_run::AnswerOutcome;
use crate::http::ProblemResponse;

/// Begins the id of every answer, as clients know it.
const ID_PREFIX: &str = "msg_";

/// Whether the reasoning of an answer gets a signature, with which a client sends it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasoning {
    Signed,
    /// For people only: an agent's reasoning belongs to steps that the client does not see.
    Unsigned,
}

/// Renders one answer.
#[derive(Debug)]
pub(super) struct AnthropicAnswer {
    id: String,
    model: String,
    reasoning: Reasoning,
    has_begun: bool,
    /// The number of blocks that have begun.
    block_count: usize,
    open_block: Option<GrowingBlock>,
    /// The indices of the blocks of reasoning that wait for their signature.
    unsigned_blocks: Vec<usize>,
}

/// The block that grows, which is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrowingBlock {
    Text,
    Thinking,
}

/// Why an answer ended, in Anthropic's words.
#[derive(Debug, PartialEq, Eq)]
struct StopWords {
    reason: &'static str,
    sequence: Option<String>,
}

impl AnthropicAnswer {
    pub(super) fn new(model: &str, reasoning: Reasoning) -> Self {
        Self {
            id: String::new(),
            model: model.to_owned(),
            reasoning,
            has_begun: false,
            block_count: 0,
            open_block: None,
            unsigned_blocks: Vec::new(),
        }
    }

    /// The model's message, if a client sends its reasoning back.
    fn signed<'m>(&self, message: Option<&'m WholeMessage>) -> Option<&'m WholeMessage> {
        message.filter(|_| self.reasoning == Reasoning::Signed)
    }

    /// A message without content.
    fn message_object(&self, usage: Usage) -> Value {
        json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage_object(usage)})
    }

    /// Writes the first event. The tokens of the input are known at the end only.
    fn begin(&mut self, frames: &mut String) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let message = self.message_object(Usage::default());
            write_event("message_start", &json!({"type": "message_start", "message": message}), frames);
        }
    }

    /// Makes the block of this kind the one that grows.
    fn open(&mut self, kind: GrowingBlock, frames: &mut String) {
        self.begin(frames);
        if self.open_block == Some(kind) {
            return;
        }
        self.close_block(frames);
        self.start_block(
            &match kind {
                GrowingBlock::Text => json!({"type": "text", "text": ""}),
                GrowingBlock::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            },
            frames,
        );
        self.open_block = Some(kind);
    }

    fn start_block(&mut self, block: &Value, frames: &mut String) {
        let start = json!({"type": "content_block_start", "index": self.block_count, "content_block": block});
        write_event("content_block_start", &start, frames);
        self.block_count += 1;
    }

    /// Ends the block that grows. Reasoning that gets a signature stays open.
    fn close_block(&mut self, frames: &mut String) {
        let Some(index) = self.block_count.checked_sub(1) else { return };
        match self.open_block.take() {
            None => {}
            Some(GrowingBlock::Text) => stop_block(index, frames),
            Some(GrowingBlock::Thinking) if self.reasoning == Reasoning::Signed => self.unsigned_blocks.push(index),
            Some(GrowingBlock::Thinking) => sign_block(index, UNSIGNED, frames),
        }
    }

    fn sign_blocks(&mut self, groups: &[Vec<&Thinking>], frames: &mut String) {
        let signatures: Vec<String> = match groups.len() == self.unsigned_blocks.len() {
            true => groups.iter().map(|group| reasoning_signature(group)).collect(),
            false => Vec::new(),
        };
        for (at, index) in std::mem::take(&mut self.unsigned_blocks).into_iter().enumerate() {
            sign_block(index, signatures.get(at).map_or(UNSIGNED, String::as_str), frames);
        }
    }

    fn write_whole_block(&mut self, block: &Value, frames: &mut String) {
        let index = self.block_count;
        self.start_block(block, frames);
        stop_block(index, frames);
    }

    fn write_call(&mut self, call: &ToolCall, frames: &mut String) {
        self.start_block(&json!({"type": "tool_use", "id": call.id, "name": call.tool, "input": {}}), frames);
        self.write_delta(r#""input_json_delta","partial_json""#, &input_of(call).to_string(), frames);
        stop_block(self.block_count - 1, frames);
    }

    /// `kind` is the type of the delta and the name of its field, as JSON.
    fn write_delta(&self, kind: &str, text: &str, frames: &mut String) {
        let index = self.block_count - 1;
        // Writing to a string cannot fail.
        let _ = write!(
            frames,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":{kind}:"
        );
        push_json_text(text, frames);
        frames.push_str("}}\n\n");
    }
}

impl AnswerEncoder for AnthropicAnswer {
    const REQUEST_ID_HEADER: HeaderName = REQUEST_ID_HEADER;

    fn set_run(&mut self, run: &RunId) {
        self.id = format!("{ID_PREFIX}{run}");
    }

    fn write_text(&mut self, text: &str, frames: &mut String) {
        self.open(GrowingBlock::Text, frames);
        self.write_delta(r#""text_delta","text""#, text, frames);
    }

    fn write_thinking(&mut self, text: &str, frames: &mut String) {
        self.open(GrowingBlock::Thinking, frames);
        self.write_delta(r#""thinking_delta","thinking""#, text, frames);
    }

    fn write_waiting(&mut self, frames: &mut String) {
        self.begin(frames);
        write_event("ping", &json!({"type": "ping"}), frames);
    }

    fn write_end(&mut self, outcome: &AnswerOutcome, message: Option<&WholeMessage>, frames: &mut String) -> bool {
        let Some(StopWords { reason, sequence }) = stop_words(outcome) else { return false };
        self.begin(frames);
        let groups = self.signed(message).map(reasoning_groups).unwrap_or_default();
        let (readable, hidden): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| is_readable(group));
        self.close_block(frames);
        self.sign_blocks(&readable, frames);
        for block in hidden.iter().filter_map(|group| thinking_block(group)) {
            self.write_whole_block(&block, frames);
        }
        for call in calls_of(outcome) {
            self.write_call(call, frames);
        }
        let end = json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage_object(outcome.usage)});
        write_event("message_delta", &end, frames);
        write_event("message_stop", &json!({"type": "message_stop"}), frames);
        true
    }

    fn whole(&self, text: &str, outcome: &AnswerOutcome, message: Option<&WholeMessage>) -> Option<Value> {
        let StopWords { reason, sequence } = stop_words(outcome)?;
        let mut content = match self.signed(message) {
            Some(message) => content_of(message),
            None if is_blank(text) => Vec::new(),
            None => vec![json!({"type": "text", "text": text})],
        };
        content.extend(
            calls_of(outcome)
                .iter()
                .map(|call| json!({"type": "tool_use", "id": call.id, "name": call.tool, "input": input_of(call)})),
        );
        let mut whole = self.message_object(outcome.usage);
        whole["content"] = content.into();
        whole["stop_reason"] = json!(reason);
        whole["stop_sequence"] = json!(sequence);
        Some(whole)
    }

    fn write_problem(&mut self, problem: &ProblemResponse, frames: &mut String) {
        let run = self.id.strip_prefix(ID_PREFIX).unwrap_or_default();
        frames.push_str(&error_event(problem, run));
    }

    fn is_answer(&self, outcome: &AnswerOutcome) -> bool {
        stop_words(outcome).is_some()
    }
}

/// Why the answer ended; `None` if the run gave none.
fn stop_words(outcome: &AnswerOutcome) -> Option<StopWords> {
    let words = |reason| Some(StopWords { reason, sequence: None });
    match (&outcome.verdict, &outcome.answer) {
        (Verdict::Completed, Some(answer)) => match &answer.end {
            AnswerEnd::Done => words("end_turn"),
            AnswerEnd::StopSequence(sequence) => {
                Some(StopWords { reason: "stop_sequence", sequence: sequence.clone() })
            }
            AnswerEnd::Length => words("max_tokens"),
            AnswerEnd::Calls => words("tool_use"),
            AnswerEnd::Filtered => words("refusal"),
        },
        // What an agent calls a failure has a word of its own here.
        (Verdict::Failed { code, .. }, _) if code == "truncated" => words("max_tokens"),
        (Verdict::Failed { code, .. }, _) if code == CODE_REFUSED => words("refusal"),
        _ => None,
    }
}

fn calls_of(outcome: &AnswerOutcome) -> &[ToolCall] {
    outcome.answer.as_ref().map_or(&[], |answer| &answer.calls)
}

/// The input of a call, which is an object in this format. Text that is no JSON stays readable in it.
fn input_of(call: &ToolCall) -> Value {
    match &call.arguments {
        Value::Object(_) => call.arguments.clone(),
        Value::Null => json!({}),
        other => json!({"input": other}),
    }
}

/// Reasoning and text of a message, in order.
fn content_of(message: &ModelMessage<AnsweredCall>) -> Vec<Value> {
    let is_thinking = |block: &MessageBlock<AnsweredCall>| matches!(block, MessageBlock::Thinking(_));
    let groups = message.blocks.chunk_by(|before, next| is_thinking(before) && is_thinking(next));
    groups
        .filter_map(|group| match group {
            [MessageBlock::Text { text }] if !is_blank(text) => Some(json!({"type": "text", "text": text})),
            [MessageBlock::Text { .. } | MessageBlock::Call(_)] => None,
            thinking => thinking_block(&thinking_pieces(thinking)),
        })
        .collect()
}

/// The pieces of reasoning that follow each other.
fn reasoning_groups(message: &ModelMessage<AnsweredCall>) -> Vec<Vec<&Thinking>> {
    let is_thinking = |block: &MessageBlock<AnsweredCall>| matches!(block, MessageBlock::Thinking(_));
    let groups = message.blocks.chunk_by(|before, next| is_thinking(before) && is_thinking(next));
    groups.map(thinking_pieces).filter(|pieces| !pieces.is_empty()).collect()
}

fn thinking_pieces(blocks: &[MessageBlock<AnsweredCall>]) -> Vec<&Thinking> {
    blocks
        .iter()
        .filter_map(|block| match block {
            MessageBlock::Thinking(thinking) => Some(thinking),
            MessageBlock::Text { .. } | MessageBlock::Call(_) => None,
        })
        .collect()
}

/// True for reasoning that the client has seen in the stream.
fn is_readable(pieces: &[&Thinking]) -> bool {
    pieces.iter().any(|piece| !piece.readable_text().is_empty())
}

fn sign_block(index: usize, signature: &str, frames: &mut String) {
    let delta = json!({"type": "signature_delta", "signature": signature});
    let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
    write_event("content_block_delta", &event, frames);
    stop_block(index, frames);
}

fn stop_block(index: usize, frames: &mut String) {
    write_event("content_block_stop", &json!({"type": "content_block_stop", "index": index}), frames);
}

fn write_event(name: &str, data: &Value, frames: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(frames, "event: {name}\ndata: {data}\n\n");
}

/// Tokens read from a cache are not part of `input_tokens` in this format.
fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    })
}

#[cfg(test)]
mod tests;
