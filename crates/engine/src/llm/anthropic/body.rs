//! The body of a messages request, with the API's rules about lengths and thinking.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use crate::llm::{ModelRequest, ThinkingMode, ToolSpec};

/// The most tokens of an answer where the agent names none: the wire demands a number, and every model since Claude 3.5
/// takes this one.
const DEFAULT_MAX_TOKENS: u32 = 8192;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Text<'a>; 1]>,
    messages: Vec<Cow<'a, Value>>,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Value>,
}

#[derive(Serialize)]
struct Text<'a> {
    r#type: &'static str,
    text: &'a str,
    cache_control: Value,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

/// The body of a request for `model`.
pub(in crate::llm) fn body(model: &str, request: &ModelRequest<'_>) -> serde_json::Result<String> {
    let conversation = request.conversation;
    // What is thought is part of the answer's length.
    let beside = match request.thinking {
        None => 0,
        Some(ThinkingMode::Adaptive) => DEFAULT_MAX_TOKENS,
        Some(ThinkingMode::Tokens(budget)) => budget,
    };
    let max_tokens = request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.saturating_add(beside));
    let thinking = request.thinking.and_then(|mode| match mode {
        ThinkingMode::Adaptive => Some(json!({"type": "adaptive"})),
        ThinkingMode::Tokens(budget) => {
            let possible = budget < max_tokens && !in_unthought_loop(&conversation.messages);
            possible.then(|| json!({"type": "enabled", "budget_tokens": budget}))
        }
    });
    serde_json::to_string(&Body {
        model,
        max_tokens,
        system: Some(conversation.system.as_str()).filter(|text| !text.is_empty()).map(system),
        messages: kept(&conversation.messages),
        stream: true,
        tools: request.tools.iter().map(tool).collect(),
        // A thinking model takes no other temperature than its own.
        temperature: request.temperature.filter(|_| thinking.is_none()),
        thinking,
    })
}

/// Asks the API to keep the request up to here for the next one; of itself it keeps nothing.
fn keep() -> Value {
    json!({"type": "ephemeral"})
}

/// Tools and prompt are kept apart from the messages: other sessions of the agent have the same.
fn system(text: &str) -> [Text<'_>; 1] {
    [Text { r#type: "text", text, cache_control: keep() }]
}

/// The messages, kept up to the last block.
fn kept(messages: &[Value]) -> Vec<Cow<'_, Value>> {
    let mut messages: Vec<Cow<'_, Value>> = messages.iter().map(Cow::Borrowed).collect();
    let content = messages.last_mut().and_then(|last| last.to_mut().get_mut("content"));
    let last = content.and_then(Value::as_array_mut).and_then(|blocks| blocks.last_mut());
    if let Some(block) = last.and_then(Value::as_object_mut) {
        block.insert("cache_control".to_owned(), keep());
    }
    messages
}

/// True while a model works off calls that were made without thinking, by another model or before a change of the
/// settings: where thinking is on, the message with the calls has to begin with it, so it has to wait for the next answer.
fn in_unthought_loop(messages: &[Value]) -> bool {
    let [.., said, heard] = messages else { return false };
    let answers_calls = kinds(heard).any(|kind| kind == "tool_result");
    answers_calls && !kinds(said).next().is_some_and(|kind| matches!(kind, "thinking" | "redacted_thinking"))
}

fn kinds(message: &Value) -> impl Iterator<Item = &str> {
    let blocks = message.get("content").and_then(Value::as_array).into_iter().flatten();
    blocks.filter_map(|block| block.get("type").and_then(Value::as_str))
}

fn tool(tool: &ToolSpec) -> Tool<'_> {
    Tool { name: &tool.name, description: &tool.description, input_schema: &tool.parameters }
}

#[cfg(test)]
mod tests;
