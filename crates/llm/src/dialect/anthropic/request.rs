//! Build the JSON body of a Messages request: thinking budget, output limit, cache marks.

use std::borrow::Cow;

use quell_kernel::ToolSpec;
use quell_kernel::client_request::{AnswerFormat, AnswerOptions, ToolChoice};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::{EncodeError, described_schema};

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
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<Value>,
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
}

pub(super) fn request_body(model: &str, request: &ModelCallRequest<'_>) -> Result<String, EncodeError> {
    let (conversation, answer) = (request.conversation, request.answer);
    // Thinking counts towards the length of the answer.
    let thinking_tokens = match request.thinking {
        None => 0,
        Some(ThinkingMode::Adaptive) => DEFAULT_MAX_TOKENS,
        Some(ThinkingMode::Tokens(budget)) => budget,
    };
    let max_tokens = answer.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.saturating_add(thinking_tokens));
    let thinking = request.thinking.and_then(|mode| match mode {
        ThinkingMode::Adaptive => Some(json!({"type": "adaptive"})),
        ThinkingMode::Tokens(budget) => {
            let possible = budget < max_tokens && !answers_calls_without_thinking(&conversation.messages);
            possible.then(|| json!({"type": "enabled", "budget_tokens": budget}))
        }
    });
    let body = MessagesApiRequest {
        model,
        max_tokens,
        system: Some(conversation.system.as_str()).filter(|text| !text.is_empty()).map(system_block),
        messages: with_cached_prefix(&conversation.messages),
        stream: true,
        tools: request.tools.iter().map(|tool| encode_tool(tool, answer)).collect(),
        tool_choice: tool_choice(answer).filter(|_| !request.tools.is_empty()),
        // A thinking model accepts only its default temperature.
        temperature: answer.temperature.filter(|_| thinking.is_none()),
        top_p: answer.top_p,
        stop_sequences: &answer.stop_sequences,
        output_config: output_config(answer)?,
        thinking,
    };
    Ok(serde_json::to_string(&body)?)
}

fn tool_choice(answer: &AnswerOptions) -> Option<Value> {
    let at_most_one = answer.parallel_tool_calls == Some(false);
    let mut choice = match &answer.tool_choice {
        ToolChoice::Auto if !at_most_one => return None,
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::None => return Some(json!({"type": "none"})),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Named(name) => json!({"type": "tool", "name": name}),
    };
    if at_most_one {
        choice["disable_parallel_tool_use"] = json!(true);
    }
    Some(choice)
}

fn output_config(answer: &AnswerOptions) -> Result<Option<Value>, EncodeError> {
    let effort = match answer.reasoning_effort.as_deref() {
        // A model that is not asked to think does not.
        None | Some("none") => None,
        Some("minimal") => {
            let problem = "Anthropic has the levels none, low, medium, high, xhigh and max";
            return Err(EncodeError::unsupported("reasoning_effort", problem));
        }
        Some(word) => Some(("effort".to_owned(), json!(word))),
    };
    let format = match &answer.format {
        AnswerFormat::Text => None,
        AnswerFormat::JsonObject => {
            let problem = "Anthropic has no JSON without a schema; give a JSON schema";
            return Err(EncodeError::unsupported("format", problem));
        }
        // The API has no name for a schema, and is always strict.
        AnswerFormat::JsonSchema { description, schema, .. } => {
            let schema = described_schema(schema, description.as_deref());
            Some(("format".to_owned(), json!({"type": "json_schema", "schema": schema})))
        }
    };
    let config: Map<String, Value> = effort.into_iter().chain(format).collect();
    Ok((!config.is_empty()).then_some(Value::Object(config)))
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

fn encode_tool<'a>(tool: &'a ToolSpec, answer: &AnswerOptions) -> AnthropicTool<'a> {
    let ToolSpec { name, description, parameters } = tool;
    AnthropicTool { name, description, input_schema: parameters, strict: answer.strict_tools.contains(name) }
}

#[cfg(test)]
mod tests;
