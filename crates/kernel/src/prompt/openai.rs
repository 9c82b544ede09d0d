//! Renders a prompt in the OpenAI chat format: `system`, `user`, `assistant` with `tool_calls`, `tool`.
//!
//! Models that send reasoning as `reasoning_content` get it back with the calls that it led to. Some of them refuse
//! such a call without its reasoning, also in later turns.

#[cfg(test)]
mod check;

use serde_json::{Value, json};

use super::{DialectRules, Prompt, PromptCall, PromptLine, PromptPart, Vision, build_lines, is_blank};
use crate::turn::{ModelMessage, Thinking};

#[cfg(test)]
pub(super) use check::check_messages;

/// The `messages` of a chat request.
pub fn build_messages(prompt: &Prompt<'_>) -> Vec<Value> {
    let mut messages = Vec::new();
    if !is_blank(prompt.system) {
        messages.push(json!({"role": "system", "content": prompt.system}));
    }
    // Tool results are text only in this format, so their images begin the next user message.
    let mut tool_images: Vec<Value> = Vec::new();
    for line in build_lines(prompt, &DialectRules { is_legal_call_id, accepts_thinking }) {
        match line {
            PromptLine::User(parts) if tool_images.is_empty() => {
                messages.push(json!({"role": "user", "content": user_content(&parts, prompt.vision)}));
            }
            PromptLine::User(parts) => {
                tool_images.extend(parts.iter().map(render_part));
                messages.extend(user_message(std::mem::take(&mut tool_images)));
            }
            PromptLine::Assistant(message) => {
                messages.extend(user_message(std::mem::take(&mut tool_images)));
                messages.push(render_assistant(&message));
                messages.extend(message.calls().map(render_result));
                let mut images = message.calls().flat_map(|call| &call.pictures).map(render_part).peekable();
                if images.peek().is_some() {
                    tool_images.push(json!({"type": "text", "text": TOOL_IMAGES_HEADING}));
                    tool_images.extend(images);
                }
            }
        }
    }
    messages.extend(user_message(tool_images));
    messages
}

/// Heading of the images of tool results, which are not the user's own text.
const TOOL_IMAGES_HEADING: &str = "[The pictures in the results of the tools above, in their order:]";

fn user_message(parts: Vec<Value>) -> Option<Value> {
    (!parts.is_empty()).then(|| json!({"role": "user", "content": parts}))
}

/// Plain text for a model without vision, whose server may accept nothing else. Otherwise always a list of parts, so
/// that the message stays the same before and after an image is appended to it.
fn user_content(parts: &[PromptPart<'_>], vision: Vision<'_>) -> Value {
    match (vision, parts) {
        (Vision::TextOnly, [PromptPart::Text(text)]) => json!(text),
        _ => parts.iter().map(render_part).collect(),
    }
}

fn render_part(part: &PromptPart<'_>) -> Value {
    let url = match part {
        PromptPart::Text(text) => return json!({"type": "text", "text": text}),
        PromptPart::Image(image) => format!("data:{};base64,{}", image.media_type(), image.base64()),
        PromptPart::Url(url) => url.clone(),
    };
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn render_assistant(source: &ModelMessage<PromptCall<'_>>) -> Value {
    let text = source.text();
    let calls: Vec<Value> = source.calls().map(render_call).collect();
    if calls.is_empty() {
        return json!({"role": "assistant", "content": text});
    }
    let content = if text.is_empty() { Value::Null } else { Value::String(text) };
    let mut message = json!({"role": "assistant", "content": content, "tool_calls": calls});
    let reasoning: String = source.thinking().filter_map(open_thinking).collect();
    if !reasoning.is_empty() {
        message["reasoning_content"] = Value::String(reasoning);
    }
    message
}

fn accepts_thinking(thinking: &Thinking) -> bool {
    open_thinking(thinking).is_some() && thinking.is_returnable()
}

fn open_thinking(thinking: &Thinking) -> Option<&str> {
    match thinking {
        Thinking::Open { text } => Some(text),
        Thinking::Shown { .. }
        | Thinking::Redacted { .. }
        | Thinking::Item { .. }
        | Thinking::BlockSignature { .. }
        | Thinking::WebSearch { .. } => None,
    }
}

fn render_call(call: &PromptCall<'_>) -> Value {
    // Arguments are JSON inside a string in this format.
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": arguments}})
}

fn render_result(call: &PromptCall<'_>) -> Value {
    json!({"role": "tool", "tool_call_id": call.id, "content": call.output})
}

/// The service refuses ids of more than 40 characters.
fn is_legal_call_id(id: &str) -> bool {
    (1..=40).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
