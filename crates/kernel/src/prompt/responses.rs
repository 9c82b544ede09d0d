//! Renders a prompt as the `input` of a request in the format of OpenAI's Responses API.
//!
//! The input is a flat list of items: messages, reasoning, searches of the provider, calls and their results. Nothing is
//! stored at the provider, so each request holds everything, with the reasoning encrypted.

#[cfg(test)]
mod check;

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{DialectRules, Prompt, PromptCall, PromptLine, PromptPart, build_lines, is_blank};
use crate::turn::{MessageBlock, ModelMessage, Thinking};

#[cfg(test)]
pub(super) use check::check_items;

/// The parts of a request that come from turns.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesInput {
    /// System prompt of the agent. If it is empty, omit it from the request.
    pub instructions: String,
    pub items: Vec<Value>,
}

/// Builds the instructions and the input items of a request.
pub fn build_input(prompt: &Prompt<'_>) -> ResponsesInput {
    let mut items = Vec::new();
    // The API refuses an item that occurs twice.
    let mut item_ids = HashSet::new();
    for line in build_lines(prompt, &DialectRules { is_legal_call_id, accepts_thinking }) {
        match line {
            PromptLine::User(parts) => {
                let content: Vec<Value> = parts.iter().map(render_part).collect();
                items.push(json!({"type": "message", "role": "user", "content": content}));
            }
            PromptLine::Assistant(message) => push_assistant(&message, &mut items, &mut item_ids),
        }
    }
    let instructions = if is_blank(prompt.system) { String::new() } else { prompt.system.to_owned() };
    ResponsesInput { instructions, items }
}

fn push_assistant(message: &ModelMessage<PromptCall<'_>>, items: &mut Vec<Value>, item_ids: &mut HashSet<String>) {
    for block in &message.blocks {
        match block {
            MessageBlock::Thinking(Thinking::Item { id, summary, encrypted }) => {
                if item_ids.insert(id.clone()) {
                    items.push(render_reasoning(id, summary, encrypted));
                }
            }
            MessageBlock::Thinking(Thinking::WebSearch { part }) => {
                if search_id(part).is_some_and(|id| item_ids.insert(id.to_owned())) {
                    items.push(part.clone());
                }
            }
            MessageBlock::Thinking(_) => {}
            MessageBlock::Text { text } => {
                let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
                items.push(json!({"type": "message", "role": "assistant", "content": content}));
            }
            MessageBlock::Call(call) => items.push(render_call(call)),
        }
    }
    items.extend(message.calls().map(render_result));
}

fn render_part(part: &PromptPart<'_>) -> Value {
    let url = match part {
        PromptPart::Text(text) => return json!({"type": "input_text", "text": text}),
        PromptPart::Image(image) => format!("data:{};base64,{}", image.media_type(), image.base64()),
        PromptPart::Url(url) => url.clone(),
    };
    json!({"type": "input_image", "image_url": url, "detail": "auto"})
}

fn render_reasoning(id: &str, summary: &[String], encrypted: &str) -> Value {
    let summary: Vec<Value> = summary.iter().map(|text| json!({"type": "summary_text", "text": text})).collect();
    json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": encrypted})
}

fn render_call(call: &PromptCall<'_>) -> Value {
    // Arguments are JSON inside a string in this format.
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({"type": "function_call", "call_id": call.id, "name": call.tool, "arguments": arguments})
}

fn render_result(call: &PromptCall<'_>) -> Value {
    let output = match call.pictures.as_slice() {
        [] => json!(call.output),
        pictures => {
            let text = json!({"type": "input_text", "text": call.output});
            std::iter::once(text).chain(pictures.iter().map(render_part)).collect()
        }
    };
    json!({"type": "function_call_output", "call_id": call.id, "output": output})
}

fn accepts_thinking(thinking: &Thinking) -> bool {
    match thinking {
        Thinking::Item { .. } => thinking.is_returnable(),
        Thinking::WebSearch { part } => search_id(part).is_some(),
        Thinking::Shown { .. }
        | Thinking::Open { .. }
        | Thinking::Redacted { .. }
        | Thinking::BlockSignature { .. } => false,
    }
}

/// The id of a search of this API.
fn search_id(part: &Value) -> Option<&str> {
    let id = part.get("id").and_then(Value::as_str)?;
    (part["type"] == "web_search_call" && !is_blank(id)).then_some(id)
}

/// The service refuses ids of more than 64 characters.
fn is_legal_call_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
