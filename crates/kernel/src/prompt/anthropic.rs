//! Renders a prompt in the Anthropic Messages format.
//!
//! The format demands strict alternation of `user` and `assistant`, content in blocks, and results first in the user
//! message that follows their calls.

#[cfg(test)]
mod check;

use serde_json::{Value, json};

use super::{DialectRules, Prompt, PromptCall, PromptLine, PromptPart, build_lines, is_blank};
use crate::turn::{MessageBlock, ModelMessage, Thinking};

#[cfg(test)]
pub(super) use check::check_messages;

/// Appended after a final assistant message, which newer models refuse and older ones would continue.
const CONTINUE_TEXT: &str = "(continue)";

/// The parts of a messages request that come from turns.
#[derive(Debug, Clone, PartialEq)]
pub struct AnthropicRequest {
    /// System prompt of the agent. If it is empty, omit it from the request.
    pub system: String,
    pub messages: Vec<Value>,
}

/// Builds the system prompt and the messages of a request.
pub fn build_request(prompt: &Prompt<'_>) -> AnthropicRequest {
    let mut rendered = RenderedMessages::default();
    for line in build_lines(prompt, &DialectRules { is_legal_call_id, accepts_thinking }) {
        match line {
            PromptLine::User(parts) => rendered.push_user_parts(&parts),
            PromptLine::Assistant(message) => rendered.push_assistant(&message),
        }
    }
    rendered.finish();
    let system = if is_blank(prompt.system) { String::new() } else { prompt.system.to_owned() };
    AnthropicRequest { system, messages: rendered.messages }
}

/// Messages so far, and the results for the beginning of the next user message.
#[derive(Default)]
struct RenderedMessages {
    messages: Vec<Value>,
    results: Vec<Value>,
    ends_with_assistant: bool,
}

impl RenderedMessages {
    fn push_user_parts(&mut self, parts: &[PromptPart<'_>]) {
        let mut content = std::mem::take(&mut self.results);
        content.extend(parts.iter().map(render_part));
        self.push_user_content(content);
    }

    fn push_assistant(&mut self, message: &ModelMessage<PromptCall<'_>>) {
        if !self.results.is_empty() {
            let results = std::mem::take(&mut self.results);
            self.push_user_content(results);
        }
        let content: Vec<Value> = message.blocks.iter().filter_map(render_block).collect();
        self.messages.push(json!({"role": "assistant", "content": content}));
        self.results = message.calls().map(render_result).collect();
        self.ends_with_assistant = true;
    }

    fn finish(&mut self) {
        if !self.results.is_empty() {
            let results = std::mem::take(&mut self.results);
            self.push_user_content(results);
        }
        if self.ends_with_assistant {
            self.push_user_parts(&[PromptPart::Text(CONTINUE_TEXT.to_owned())]);
        }
    }

    fn push_user_content(&mut self, content: Vec<Value>) {
        self.messages.push(json!({"role": "user", "content": content}));
        self.ends_with_assistant = false;
    }
}

fn render_part(part: &PromptPart<'_>) -> Value {
    let source = match part {
        PromptPart::Text(text) => return json!({"type": "text", "text": text}),
        PromptPart::Image(image) => {
            json!({"type": "base64", "media_type": image.media_type(), "data": image.base64()})
        }
        PromptPart::Url(url) => json!({"type": "url", "url": url}),
    };
    json!({"type": "image", "source": source})
}

fn accepts_thinking(thinking: &Thinking) -> bool {
    match thinking {
        Thinking::Shown { .. } | Thinking::Redacted { .. } => thinking.is_returnable(),
        Thinking::Open { .. }
        | Thinking::Item { .. }
        | Thinking::BlockSignature { .. }
        | Thinking::WebSearch { .. } => false,
    }
}

fn render_block(block: &MessageBlock<PromptCall<'_>>) -> Option<Value> {
    Some(match block {
        MessageBlock::Thinking(Thinking::Shown { text, signature }) => {
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        MessageBlock::Thinking(Thinking::Redacted { data }) => json!({"type": "redacted_thinking", "data": data}),
        MessageBlock::Thinking(
            Thinking::Open { .. }
            | Thinking::Item { .. }
            | Thinking::BlockSignature { .. }
            | Thinking::WebSearch { .. },
        ) => {
            return None;
        }
        MessageBlock::Text { text } => json!({"type": "text", "text": text}),
        MessageBlock::Call(call) => render_call(call),
    })
}

fn render_call(call: &PromptCall<'_>) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.tool, "input": call.arguments})
}

fn render_result(call: &PromptCall<'_>) -> Value {
    let content = match call.pictures.as_slice() {
        [] => json!(call.output),
        pictures => {
            let text = json!({"type": "text", "text": call.output});
            std::iter::once(text).chain(pictures.iter().map(render_part)).collect()
        }
    };
    let mut block = json!({"type": "tool_result", "tool_use_id": call.id, "content": content});
    if call.failed {
        block["is_error"] = Value::Bool(true);
    }
    block
}

/// 1 to 64 letters, digits, `_` and `-`.
fn is_legal_call_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
