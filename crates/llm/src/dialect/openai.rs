//! Build requests and parse streaming events and whole responses of the OpenAI chat completions API.

use quell_kernel::ToolSpec;
use quell_kernel::client_request::{AnswerFormat, AnswerOptions, ToolChoice};
use quell_kernel::prompt::{self, Prompt};
use quell_net::SseEvent;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Conversation, Dialect, EncodeError, EncodedRequest, ProviderEnvironment, effort_of_budget, openai_effort,
    read_usage, url_below,
};
use crate::error_report::ProviderErrorReport;
use crate::partial_answer::{PartialAnswer, ResponseError, StreamStatus, null_as_default};
use crate::tool_calls::ToolCallFragment;
use crate::{FinishReason, ModelCallRequest, ThinkingMode};

/// Chat completions, under one of the kinds that speak them.
#[derive(Debug)]
pub(crate) struct ChatCompletions {
    kind: &'static str,
    description: &'static str,
    default_base_url: Result<&'static str, &'static str>,
    environment: Option<&'static ProviderEnvironment>,
}

impl ChatCompletions {
    pub(crate) const OPENAI: Self = Self {
        kind: "openai",
        description: "OpenAI chat completions, which most servers support.",
        default_base_url: Ok("https://api.openai.com/v1"),
        environment: Some(&ProviderEnvironment {
            provider: "openai",
            key_variable: "OPENAI_API_KEY",
            base_url_variable: "OPENAI_BASE_URL",
            base_url_suffix: None,
            default_model: "gpt-5-mini",
        }),
    };

    pub(crate) const DEMO: Self = Self {
        kind: "demo",
        description: "The built-in demo model, which has the wire format of OpenAI, on a loopback port of this process.",
        default_base_url: Err("the demo model is not started, so it has no base_url"),
        environment: None,
    };
}

#[derive(Serialize)]
struct ChatCompletionRequest<'a> {
    model: &'a str,
    messages: &'a [Value],
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<OpenAiTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct OpenAiTool<'a> {
    r#type: &'static str,
    function: OpenAiFunction<'a>,
}

#[derive(Serialize)]
struct OpenAiFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
}

/// One event, or the whole answer of a server that does not stream. Fields that servers fill with differing types are
/// read as any JSON, so that a field that is not needed cannot break an answer.
#[derive(Deserialize)]
struct OpenAiChunk {
    #[serde(default, deserialize_with = "null_as_default")]
    choices: Vec<OpenAiChoice>,
    #[serde(default)]
    usage: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Deserialize)]
struct OpenAiChoice {
    #[serde(default)]
    index: u64,
    #[serde(default, deserialize_with = "null_as_default")]
    delta: OpenAiDelta,
    #[serde(default, deserialize_with = "null_as_default")]
    message: OpenAiDelta,
    #[serde(default, deserialize_with = "null_as_default")]
    finish_reason: String,
}

#[derive(Deserialize, Default)]
struct OpenAiDelta {
    #[serde(default)]
    content: Value,
    #[serde(default)]
    refusal: Value,
    #[serde(default)]
    reasoning_content: Value,
    #[serde(default)]
    reasoning: Value,
    #[serde(default, deserialize_with = "null_as_default")]
    tool_calls: Vec<OpenAiCallDelta>,
}

#[derive(Deserialize)]
struct OpenAiCallDelta {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, deserialize_with = "null_as_default")]
    id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    function: OpenAiFunctionDelta,
}

#[derive(Deserialize, Default)]
struct OpenAiFunctionDelta {
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl Dialect for ChatCompletions {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn default_base_url(&self) -> Result<&'static str, &'static str> {
        self.default_base_url
    }

    fn environment(&self) -> Option<&'static ProviderEnvironment> {
        self.environment
    }

    fn has_audio(&self) -> bool {
        // The demo model has only completions.
        self.environment.is_some()
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
    }

    fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        Conversation { messages: prompt::openai::build_messages(prompt), ..Conversation::default() }
    }

    fn encode_request(
        &self,
        base_url: &Url,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> Result<EncodedRequest, EncodeError> {
        let answer = request.answer;
        // OpenAI's reasoning models refuse the old name, and most other servers know only the old name.
        let (max_tokens, max_completion_tokens) =
            if is_openai_host(base_url) { (None, answer.max_tokens) } else { (answer.max_tokens, None) };
        let body = serde_json::to_string(&ChatCompletionRequest {
            model,
            messages: &request.conversation.messages,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            tools: request.tools.iter().map(|tool| encode_tool(tool, answer)).collect(),
            tool_choice: tool_choice(answer).filter(|_| !request.tools.is_empty()),
            parallel_tool_calls: answer.parallel_tool_calls.filter(|_| !request.tools.is_empty()),
            temperature: answer.temperature,
            top_p: answer.top_p,
            stop: &answer.stop_sequences,
            response_format: response_format(&answer.format),
            reasoning_effort: openai_effort(answer)?.or(request.thinking.and_then(effort_of_thinking)),
            max_tokens,
            max_completion_tokens,
        })?;
        Ok(EncodedRequest { url: url_below(base_url, &["chat", "completions"]), body })
    }

    fn apply_event(&self, event: &SseEvent, partial: &mut PartialAnswer) -> Result<StreamStatus, ResponseError> {
        let data = event.data.trim();
        if data == "[DONE]" {
            return Ok(StreamStatus::Done);
        }
        if data.is_empty() {
            return Ok(StreamStatus::More);
        }
        if event.name == "error" {
            return Err(ResponseError::Reported(ProviderErrorReport::from_body(data)));
        }
        let chunk = serde_json::from_str::<OpenAiChunk>(data).map_err(|error| {
            ResponseError::Unreadable(format!("an event that is no chat completion chunk: {error}"))
        })?;
        apply_chunk(chunk, partial)?;
        Ok(StreamStatus::More)
    }

    fn apply_whole_response(&self, body: &[u8], partial: &mut PartialAnswer) -> Result<(), ResponseError> {
        let chunk = serde_json::from_slice::<OpenAiChunk>(body)
            .map_err(|error| ResponseError::Unreadable(format!("a body that is no chat completion: {error}")))?;
        apply_chunk(chunk, partial)
    }
}

fn apply_chunk(chunk: OpenAiChunk, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    if !chunk.error.is_null() {
        return Err(ResponseError::Reported(ProviderErrorReport::from_json(&chunk.error)));
    }
    // Some servers send a running count with each chunk, so the last count is the right one.
    partial.usage = read_usage(&chunk.usage, "prompt_tokens", "completion_tokens").or(partial.usage);
    // One answer was requested; further choices are ignored.
    for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
        partial.has_begun = true;
        apply_delta(choice.delta, partial)?;
        apply_delta(choice.message, partial)?;
        if !choice.finish_reason.is_empty() {
            partial.finish_reason = Some(parse_finish_reason(choice.finish_reason));
        }
    }
    Ok(())
}

fn apply_delta(delta: OpenAiDelta, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    // Servers that know both names send the same text under both.
    match &delta.reasoning_content {
        Value::Null => partial.append_thinking(delta.reasoning.as_str().unwrap_or_default())?,
        reasoning => partial.append_open_thinking(reasoning.as_str().unwrap_or_default())?,
    }
    apply_content(&delta.content, partial)?;
    partial.append_text(delta.refusal.as_str().unwrap_or_default())?;
    for (position, call) in delta.tool_calls.into_iter().enumerate() {
        let arguments = match call.function.arguments {
            Value::String(text) => text,
            Value::Null => String::new(),
            // Some servers send the arguments as JSON instead of text.
            json => json.to_string(),
        };
        partial.append_call_fragment(
            position,
            ToolCallFragment { index: call.index, id: call.id, name: call.function.name, arguments },
        )?;
    }
    Ok(())
}

/// Text, or a list of parts, as Mistral's reasoning models send it: `text` parts, and `thinking` parts with parts of
/// their own.
fn apply_content(content: &Value, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    let text_of = |part: &Value| part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
    match content {
        Value::String(text) => partial.append_text(text),
        Value::Array(parts) => parts.iter().try_for_each(|part| match part.get("thinking") {
            Some(Value::Array(thoughts)) => {
                thoughts.iter().try_for_each(|thought| partial.append_thinking(&text_of(thought)))
            }
            Some(thinking) => partial.append_thinking(thinking.as_str().unwrap_or_default()),
            None => partial.append_text(&text_of(part)),
        }),
        _ => Ok(()),
    }
}

fn encode_tool<'a>(tool: &'a ToolSpec, answer: &AnswerOptions) -> OpenAiTool<'a> {
    let ToolSpec { name, description, parameters } = tool;
    let strict = answer.strict_tools.contains(name);
    OpenAiTool { r#type: "function", function: OpenAiFunction { name, description, parameters, strict } }
}

fn tool_choice(answer: &AnswerOptions) -> Option<Value> {
    match &answer.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) => Some(json!({"type": "function", "function": {"name": name}})),
    }
}

fn response_format(format: &AnswerFormat) -> Option<Value> {
    match format {
        AnswerFormat::Text => None,
        AnswerFormat::JsonObject => Some(json!({"type": "json_object"})),
        AnswerFormat::JsonSchema { name, description, schema, strict } => {
            let mut format = json!({"name": name, "schema": &**schema});
            let fields =
                [("description", description.as_ref().map(|text| json!(text))), ("strict", strict.map(Value::Bool))];
            for (field, value) in fields.into_iter().filter_map(|(field, value)| Some((field, value?))) {
                format[field] = value;
            }
            Some(json!({"type": "json_schema", "json_schema": format}))
        }
    }
}

/// Reasoning models of this API think without being asked, so only a budget says anything to them.
fn effort_of_thinking(mode: ThinkingMode) -> Option<&'static str> {
    match mode {
        ThinkingMode::Adaptive => None,
        ThinkingMode::Tokens(budget) => Some(effort_of_budget(budget)),
    }
}

fn is_openai_host(base_url: &Url) -> bool {
    let host = base_url.host_str().unwrap_or_default();
    host == "api.openai.com" || host.ends_with(".openai.azure.com")
}

fn parse_finish_reason(reason: String) -> FinishReason {
    match reason.as_str() {
        "stop" => FinishReason::Stop,
        "length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Other(reason),
    }
}

#[cfg(test)]
mod tests;
