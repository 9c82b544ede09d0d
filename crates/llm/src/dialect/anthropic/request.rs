//! Build the JSON body of a Messages request: thinking budget, output limit, cache marks.

use std::borrow::Cow;

use quell_kernel::ToolSpec;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{ModelCallRequest, ThinkingMode};

/// The maximum number of tokens of an answer when the agent sets none. The API requires a number, and every model since
/// Claude 3.5 accepts this one.
const DEFAULT_MAX_TOKENS: u32 = 8192;

#[derive(Serialize)]
struct MessagesApiRequest<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[SystemTextBlock<'a>; 1]>,
    messages: Vec<Cow<'a, Value>>,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<AnthropicTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Value>,
}

#[derive(Serialize)]
struct SystemTextBlock<'a> {
    r#type: &'static str,
    text: &'a str,
    cache_control: Value,
}

#[derive(Serialize)]
struct AnthropicTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

pub(super) fn request_body(model: &str, request: &ModelCallRequest<'_>) -> serde_json::Result<String> {
    let conversation = request.conversation;
    // Thinking counts towards the length of the answer.
    let thinking_tokens = match request.thinking {
        None => 0,
        Some(ThinkingMode::Adaptive) => DEFAULT_MAX_TOKENS,
        Some(ThinkingMode::Tokens(budget)) => budget,
    };
    let max_tokens = request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.saturating_add(thinking_tokens));
    let thinking = request.thinking.and_then(|mode| match mode {
        ThinkingMode::Adaptive => Some(json!({"type": "adaptive"})),
        ThinkingMode::Tokens(budget) => {
            let possible = budget < max_tokens && !answers_calls_without_thinking(&conversation.messages);
            possible.then(|| json!({"type": "enabled", "budget_tokens": budget}))
        }
    });
    serde_json::to_string(&MessagesApiRequest {
        model,
        max_tokens,
        system: Some(conversation.system.as_str()).filter(|text| !text.is_empty()).map(system_block),
        messages: with_cached_prefix(&conversation.messages),
        stream: true,
        tools: request.tools.iter().map(encode_tool).collect(),
        // A thinking model accepts only its default temperature.
        temperature: request.temperature.filter(|_| thinking.is_none()),
        thinking,
    })
}

/// Asks the API to cache the request up to this block; it caches nothing by itself.
fn ephemeral_cache_control() -> Value {
    json!({"type": "ephemeral"})
}

/// The system prompt gets a cache mark of its own, because other sessions of the agent share tools and prompt.
fn system_block(text: &str) -> [SystemTextBlock<'_>; 1] {
    [SystemTextBlock { r#type: "text", text, cache_control: ephemeral_cache_control() }]
}

/// The messages with a cache mark at their last block.
fn with_cached_prefix(messages: &[Value]) -> Vec<Cow<'_, Value>> {
    let mut messages: Vec<Cow<'_, Value>> = messages.iter().map(Cow::Borrowed).collect();
    let content = messages.last_mut().and_then(|last| last.to_mut().get_mut("content"));
    let last = content.and_then(Value::as_array_mut).and_then(|blocks| blocks.last_mut());
    if let Some(block) = last.and_then(Value::as_object_mut) {
        block.insert("cache_control".to_owned(), ephemeral_cache_control());
    }
    messages
}

/// True while the model answers calls that were made without thinking, by another model or before a change of the
/// settings. With thinking on, the message with the calls must begin with thinking; so thinking waits for the next
/// answer.
fn answers_calls_without_thinking(messages: &[Value]) -> bool {
    let [.., assistant_message, user_message] = messages else { return false };
    let answers_calls = block_types(user_message).any(|kind| kind == "tool_result");
    answers_calls
        && !block_types(assistant_message).next().is_some_and(|kind| matches!(kind, "thinking" | "redacted_thinking"))
}

fn block_types(message: &Value) -> impl Iterator<Item = &str> {
    let blocks = message.get("content").and_then(Value::as_array).into_iter().flatten();
    blocks.filter_map(|block| block.get("type").and_then(Value::as_str))
}

fn encode_tool(tool: &ToolSpec) -> AnthropicTool<'_> {
    AnthropicTool { name: &tool.name, description: &tool.description, input_schema: &tool.parameters }
}

#[cfg(test)]
mod tests;
