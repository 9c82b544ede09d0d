//! Renders a prompt in the format of Google's Gemini API: `contents` of `parts`, with the roles `user` and `model`.
//!
//! The results of calls are parts of the user content that follows them, all of them and before other parts. A model's
//! signature goes back on the part that it came with.

#[cfg(test)]
mod check;

use serde_json::{Value, json};

use super::{DialectRules, Prompt, PromptCall, PromptLine, PromptPart, build_lines, is_blank};
use crate::turn::{MessageBlock, ModelMessage, Thinking};

#[cfg(test)]
pub(super) use check::check_contents;

/// Appended after a final content of the model, which the API would refuse to answer.
const CONTINUE_TEXT: &str = "(continue)";
/// Stands in place of the signature of a call that another model made: without any, the API refuses the first call of
/// an answer in the current turn ("Thought signatures", ai.google.dev).
const FOREIGN_CALL_SIGNATURE: &str = "skip_thought_signature_validator";
/// Heading of the images of tool results, which are not the user's own text.
const TOOL_IMAGES_HEADING: &str = "[The pictures in the results of the tools above, in their order:]";

/// The parts of a request that come from turns.
#[derive(Debug, Clone, PartialEq)]
pub struct GeminiContents {
    /// System prompt of the agent. If it is empty, omit it from the request.
    pub system: String,
    pub contents: Vec<Value>,
}

/// Builds the system prompt and the contents of a request.
pub fn build_contents(prompt: &Prompt<'_>) -> GeminiContents {
    let mut contents = Vec::new();
    // Results for the beginning of the next user content.
    let mut results: Vec<Value> = Vec::new();
    let mut ends_with_model = false;
    for line in build_lines(prompt, &DialectRules { is_legal_call_id, accepts_thinking }) {
        match line {
            PromptLine::User(parts) => {
                results.extend(parts.iter().map(render_part));
                contents.extend(user_content(std::mem::take(&mut results)));
                ends_with_model = false;
            }
            PromptLine::Assistant(message) => {
                contents.extend(user_content(std::mem::take(&mut results)));
                contents.push(json!({"role": "model", "parts": render_blocks(&message)}));
                results = render_results(&message);
                ends_with_model = results.is_empty();
            }
        }
    }
    contents.extend(user_content(results));
    if ends_with_model {
        contents.extend(user_content(vec![json!({"text": CONTINUE_TEXT})]));
    }
    let system = if is_blank(prompt.system) { String::new() } else { prompt.system.to_owned() };
    GeminiContents { system, contents }
}

fn user_content(parts: Vec<Value>) -> Option<Value> {
    (!parts.is_empty()).then(|| json!({"role": "user", "parts": parts}))
}

fn render_part(part: &PromptPart<'_>) -> Value {
    match part {
        PromptPart::Text(text) => json!({"text": text}),
        PromptPart::Image(image) => {
            json!({"inlineData": {"mimeType": image.media_type(), "data": image.base64()}})
        }
        PromptPart::Url(url) => json!({"fileData": {"fileUri": url}}),
    }
}

fn render_blocks(message: &ModelMessage<PromptCall<'_>>) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut own_signature = None;
    let mut has_call = false;
    for block in &message.blocks {
        let mut part = match block {
            MessageBlock::Thinking(Thinking::BlockSignature { signature }) => {
                own_signature = Some(signature);
                continue;
            }
            MessageBlock::Thinking(Thinking::WebSearch { part }) => {
                parts.push(part.clone());
                continue;
            }
            MessageBlock::Thinking(_) => continue,
            MessageBlock::Text { text } => json!({"text": text}),
            MessageBlock::Call(call) => {
                json!({"functionCall": {"id": call.id, "name": call.tool, "args": call.arguments}})
            }
        };
        let is_first_call = matches!(block, MessageBlock::Call(_)) && !std::mem::replace(&mut has_call, true);
        let foreign_signature = is_first_call.then_some(FOREIGN_CALL_SIGNATURE);
        if let Some(signature) = own_signature.take().map(String::as_str).or(foreign_signature) {
            part["thoughtSignature"] = json!(signature);
        }
        parts.push(part);
    }
    parts
}

/// The results of all calls of a message, and behind them their images: a result is JSON in this format.
fn render_results(message: &ModelMessage<PromptCall<'_>>) -> Vec<Value> {
    let mut parts: Vec<Value> = message.calls().map(render_result).collect();
    let mut images = message.calls().flat_map(|call| &call.pictures).map(render_part).peekable();
    if images.peek().is_some() {
        parts.push(json!({"text": TOOL_IMAGES_HEADING}));
        parts.extend(images);
    }
    parts
}

fn render_result(call: &PromptCall<'_>) -> Value {
    // The API names these two keys for the output and for the details of an error.
    let key = if call.failed { "error" } else { "output" };
    json!({"functionResponse": {"id": call.id, "name": call.tool, "response": {key: call.output}}})
}

fn accepts_thinking(thinking: &Thinking) -> bool {
    match thinking {
        Thinking::BlockSignature { .. } => thinking.is_returnable(),
        Thinking::WebSearch { part } => ["toolCall", "toolResponse"].iter().any(|kind| part.get(*kind).is_some()),
        Thinking::Shown { .. } | Thinking::Open { .. } | Thinking::Redacted { .. } | Thinking::Item { .. } => false,
    }
}

/// 1 to 64 letters, digits, `_` and `-`.
fn is_legal_call_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
