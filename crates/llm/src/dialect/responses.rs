//! Build requests and parse streaming events and whole responses of OpenAI's Responses API.

use quell_kernel::ToolSpec;
use quell_kernel::client_request::{AnswerFormat, AnswerOptions, ToolChoice};
use quell_kernel::prompt::{self, Prompt};
use quell_net::SseEvent;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Conversation, Dialect, EncodeError, EncodedRequest, effort_of_budget, openai_effort, read_usage, url_below,
};
use crate::error_report::ProviderErrorReport;
use crate::partial_answer::{PartialAnswer, ResponseError, StreamStatus, null_as_default};
use crate::tool_calls::ToolCallFragment;
use crate::{FinishReason, ModelCallRequest, ThinkingMode};

#[derive(Debug)]
pub(crate) struct OpenAiResponses;

/// One event. Other events repeat what these say, or are unknown; they are ignored.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum ResponsesEvent {
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        #[serde(default)]
        output_index: u64,
        item: OutputItem,
    },
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        #[serde(default)]
        output_index: u64,
        item: OutputItem,
    },
    #[serde(rename = "response.output_text.delta", alias = "response.refusal.delta")]
    TextDelta { delta: String },
    #[serde(rename = "response.output_text.annotation.added")]
    Annotation {
        #[serde(default)]
        annotation: Value,
    },
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryPart {
        #[serde(default)]
        summary_index: u64,
    },
    #[serde(rename = "response.reasoning_summary_text.delta", alias = "response.reasoning_text.delta")]
    ThinkingDelta { delta: String },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        #[serde(default)]
        output_index: u64,
        delta: String,
    },
    #[serde(rename = "response.completed", alias = "response.incomplete", alias = "response.failed")]
    End { response: ResponseEnd },
    #[serde(rename = "response.created", alias = "response.in_progress", alias = "response.queued")]
    Begin,
    #[serde(rename = "error")]
    Error(Value),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputItem {
    Message {
        #[serde(default, deserialize_with = "null_as_default")]
        content: Vec<Value>,
    },
    Reasoning {
        #[serde(default, deserialize_with = "null_as_default")]
        id: String,
        #[serde(default, deserialize_with = "null_as_default")]
        summary: Vec<Value>,
        #[serde(default, deserialize_with = "null_as_default")]
        encrypted_content: String,
    },
    FunctionCall {
        #[serde(default, deserialize_with = "null_as_default")]
        call_id: String,
        #[serde(default, deserialize_with = "null_as_default")]
        name: String,
        #[serde(default, deserialize_with = "null_as_default")]
        arguments: String,
    },
    /// A search that the provider itself carried out.
    WebSearchCall {
        #[serde(default, deserialize_with = "null_as_default")]
        id: String,
        #[serde(default, deserialize_with = "null_as_default")]
        status: String,
        #[serde(default)]
        action: Value,
    },
    /// Of a tool that is not asked for here.
    #[serde(other)]
    Other,
}

/// A response at its end. `output` is read only from a whole body.
#[derive(Deserialize)]
struct ResponseEnd {
    #[serde(default, deserialize_with = "null_as_default")]
    status: String,
    #[serde(default)]
    incomplete_details: Value,
    #[serde(default)]
    error: Value,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct WholeResponse {
    #[serde(default, deserialize_with = "null_as_default")]
    output: Vec<OutputItem>,
    #[serde(flatten)]
    end: ResponseEnd,
}

impl Dialect for OpenAiResponses {
    fn kind(&self) -> &'static str {
        "openai-responses"
    }

    fn description(&self) -> &'static str {
        "OpenAI responses, which keep the reasoning of OpenAI's own models."
    }

    fn default_base_url(&self) -> Result<&'static str, &'static str> {
        Ok("https://api.openai.com/v1")
    }

    fn has_thinking(&self) -> bool {
        true
    }

    fn has_audio(&self) -> bool {
        true
    }

    fn has_web_search(&self) -> bool {
        true
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
    }

    fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        let prompt::responses::ResponsesInput { instructions, items } = prompt::responses::build_input(prompt);
        Conversation { system: instructions, messages: items, ..Conversation::default() }
    }

    fn encode_request(
        &self,
        base_url: &Url,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> Result<EncodedRequest, EncodeError> {
        let answer = request.answer;
        if !answer.stop_sequences.is_empty() {
            let problem =
                "the Responses API has no stop sequences; leave them out, or use a provider of the kind openai";
            return Err(EncodeError::unsupported("stop_sequences", problem));
        }
        let mut body = json!({
            "model": model,
            "input": request.conversation.messages,
            "stream": true,
            "store": false,
            "parallel_tool_calls": answer.parallel_tool_calls.unwrap_or(true),
        });
        let mut set = |name: &str, value: Value| body[name] = value;
        if !request.conversation.system.is_empty() {
            set("instructions", json!(request.conversation.system));
        }
        if is_reasoning_model(model) {
            set("include", json!(["reasoning.encrypted_content"]));
        }
        // The tool of the API has no name, so that no other tool can be taken for it.
        let web_search = request.web_search.then(|| json!({"type": "web_search"}));
        let tools: Vec<Value> = request.tools.iter().map(|tool| encode_tool(tool, answer)).chain(web_search).collect();
        if !tools.is_empty() {
            tool_choice(answer).into_iter().for_each(|choice| set("tool_choice", choice));
            set("tools", Value::Array(tools));
        }
        if let Some(setting) = reasoning_setting(request.thinking, openai_effort(answer)?) {
            set("reasoning", setting);
        }
        // A model that thinks accepts only its default temperature.
        let temperature = answer.temperature.filter(|_| request.thinking.is_none());
        let numbers = [
            ("temperature", temperature.map(Value::from)),
            ("top_p", answer.top_p.map(Value::from)),
            ("max_output_tokens", answer.max_tokens.map(Value::from)),
            ("text", text_format(&answer.format).map(|format| json!({"format": format}))),
        ];
        for (name, value) in numbers.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            set(name, value);
        }
        Ok(EncodedRequest { url: url_below(base_url, &["responses"]), body: serde_json::to_string(&body)? })
    }

    fn apply_event(&self, event: &SseEvent, partial: &mut PartialAnswer) -> Result<StreamStatus, ResponseError> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(StreamStatus::More);
        }
        // Some compatible servers end with the mark of chat completions.
        if data == "[DONE]" {
            return Ok(StreamStatus::Done);
        }
        let event = serde_json::from_str::<ResponsesEvent>(data).map_err(|error| {
            ResponseError::Unreadable(format!("an event that is none of the responses API: {error}"))
        })?;
        match event {
            ResponsesEvent::Begin => partial.has_begun = true,
            ResponsesEvent::ItemAdded { output_index, item } => apply_item_start(output_index, item, partial)?,
            ResponsesEvent::ItemDone { output_index, item } => apply_item_end(output_index, item, partial)?,
            ResponsesEvent::TextDelta { delta } => partial.append_text(&delta)?,
            ResponsesEvent::Annotation { annotation } => add_citation(&annotation, partial),
            ResponsesEvent::SummaryPart { summary_index: 0 } | ResponsesEvent::Other => {}
            ResponsesEvent::SummaryPart { .. } => partial.append_thinking("\n\n")?,
            ResponsesEvent::ThinkingDelta { delta } => partial.append_thinking(&delta)?,
            ResponsesEvent::ArgumentsDelta { output_index, delta } => {
                let fragment = ToolCallFragment { index: Some(output_index), arguments: delta, ..Default::default() };
                partial.append_call_fragment(0, fragment)?;
            }
            ResponsesEvent::End { response } => {
                apply_end(response, partial)?;
                return Ok(StreamStatus::Done);
            }
            ResponsesEvent::Error(error) => {
                return Err(ResponseError::Reported(parse_error_report(error.get("error").unwrap_or(&error))));
            }
        }
        Ok(StreamStatus::More)
    }

    fn apply_whole_response(&self, body: &[u8], partial: &mut PartialAnswer) -> Result<(), ResponseError> {
        let whole = serde_json::from_slice::<WholeResponse>(body)
            .map_err(|error| ResponseError::Unreadable(format!("a body that is no response: {error}")))?;
        for (index, item) in (0..).zip(whole.output) {
            if let OutputItem::Message { content } = &item {
                content.iter().try_for_each(|part| partial.append_text(message_text(part)))?;
            }
            apply_item_start(index, item.without_content(), partial)?;
            apply_item_end(index, item, partial)?;
        }
        apply_end(whole.end, partial)
    }
}

impl OutputItem {
    /// The item as it begins.
    fn without_content(&self) -> Self {
        match self {
            Self::FunctionCall { call_id, name, .. } => {
                Self::FunctionCall { call_id: call_id.clone(), name: name.clone(), arguments: String::new() }
            }
            _ => Self::Other,
        }
    }
}

fn message_text(part: &Value) -> &str {
    part.get("text").or_else(|| part.get("refusal")).and_then(Value::as_str).unwrap_or_default()
}

fn apply_item_start(index: u64, item: OutputItem, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    partial.has_begun = true;
    match item {
        OutputItem::Reasoning { .. } => {
            partial.begin_signed_thinking();
            Ok(())
        }
        // The arguments follow in pieces.
        OutputItem::FunctionCall { call_id, name, .. } => partial.append_call_fragment(
            0,
            ToolCallFragment { index: Some(index), id: call_id, name, arguments: String::new() },
        ),
        OutputItem::Message { .. } | OutputItem::WebSearchCall { .. } | OutputItem::Other => Ok(()),
    }
}

fn apply_item_end(index: u64, item: OutputItem, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    partial.has_begun = true;
    match item {
        OutputItem::Reasoning { id, summary, encrypted_content } => {
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            partial.push_reasoning_item(id, summary.iter().filter_map(text).collect(), encrypted_content)
        }
        OutputItem::FunctionCall { call_id, name, arguments } if !partial.has_arguments(index) => {
            partial.append_call_fragment(0, ToolCallFragment { index: Some(index), id: call_id, name, arguments })
        }
        OutputItem::WebSearchCall { id, status, action } => {
            searched_queries(&action).try_for_each(|query| partial.report_search(query))?;
            partial.push_web_search(web_search_item(&id, &status, action))
        }
        OutputItem::Message { content } => {
            let annotations = content.iter().filter_map(|part| part.get("annotations")?.as_array()).flatten();
            annotations.for_each(|annotation| add_citation(annotation, partial));
            Ok(())
        }
        OutputItem::FunctionCall { .. } | OutputItem::Other => Ok(()),
    }
}

/// The queries of a search; none for an action such as opening a page.
fn searched_queries(action: &Value) -> impl Iterator<Item = &str> {
    let queries = action.get("queries").and_then(Value::as_array);
    let query = action.get("query").filter(|_| queries.is_none_or(Vec::is_empty));
    queries.into_iter().flatten().chain(query).filter_map(Value::as_str)
}

/// The item as the next request has to repeat it.
fn web_search_item(id: &str, status: &str, action: Value) -> Value {
    let status = if status.is_empty() { "completed" } else { status };
    let mut item = json!({"type": "web_search_call", "id": id, "status": status});
    if !action.is_null() {
        item["action"] = action;
    }
    item
}

fn add_citation(annotation: &Value, partial: &mut PartialAnswer) {
    let field = |name: &str| annotation.get(name).and_then(Value::as_str).unwrap_or_default();
    if field("type") == "url_citation" {
        partial.citations.add(field("url"), field("title"));
    }
}

fn apply_end(response: ResponseEnd, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    if !response.error.is_null() || response.status == "failed" {
        return Err(ResponseError::Reported(parse_error_report(&response.error)));
    }
    partial.has_begun = true;
    partial.usage = read_usage(&response.usage, "input_tokens", "output_tokens").or(partial.usage);
    let reason = response.incomplete_details.get("reason").and_then(Value::as_str).unwrap_or_default();
    partial.finish_reason = Some(match (response.status.as_str(), reason) {
        (_, "max_output_tokens") => FinishReason::Length,
        (_, "content_filter") => FinishReason::ContentFilter,
        ("completed" | "", "") if partial.call_count() > 0 => FinishReason::ToolCalls,
        ("completed" | "", "") => FinishReason::Stop,
        (status, "") => FinishReason::Other(status.to_owned()),
        (_, reason) => FinishReason::Other(reason.to_owned()),
    });
    Ok(())
}

/// An error report. In a stream there is no HTTP status, so the code of the error determines it.
fn parse_error_report(error: &Value) -> ProviderErrorReport {
    let status = match error.get("code").and_then(Value::as_str) {
        Some("invalid_prompt" | "context_length_exceeded") => Some(400),
        Some("invalid_api_key") => Some(401),
        Some("rate_limit_exceeded" | "insufficient_quota") => Some(429),
        Some("server_error") => Some(500),
        Some("server_is_overloaded" | "slow_down") => Some(503),
        // Such as `invalid_image_format` and `image_too_large`.
        Some(code) if code.contains("image") => Some(400),
        Some(_) | None => None,
    };
    let mut report = ProviderErrorReport::from_json(error);
    report.status = report.status.or(status);
    report
}

/// False for models of OpenAI that do not reason: they refuse a request for encrypted reasoning.
fn is_reasoning_model(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    !["gpt-3", "gpt-4", "chatgpt-4"].iter().any(|old| name.starts_with(old))
}

/// The API knows levels of effort instead of budgets. A client's word for the effort comes first.
fn reasoning_setting(mode: Option<ThinkingMode>, effort: Option<&str>) -> Option<Value> {
    let of_budget = match mode {
        Some(ThinkingMode::Tokens(budget)) => Some(effort_of_budget(budget)),
        Some(ThinkingMode::Adaptive) | None => None,
    };
    let effort = effort.or(of_budget).map(|word| ("effort".to_owned(), json!(word)));
    let summary = mode.map(|_| ("summary".to_owned(), json!("auto")));
    let setting: Map<String, Value> = effort.into_iter().chain(summary).collect();
    (!setting.is_empty()).then_some(Value::Object(setting))
}

fn tool_choice(answer: &AnswerOptions) -> Option<Value> {
    match &answer.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) => Some(json!({"type": "function", "name": name})),
    }
}

fn text_format(format: &AnswerFormat) -> Option<Value> {
    match format {
        AnswerFormat::Text => None,
        AnswerFormat::JsonObject => Some(json!({"type": "json_object"})),
        AnswerFormat::JsonSchema { name, description, schema, strict } => {
            let mut format = json!({"type": "json_schema", "name": name, "schema": &**schema});
            description.iter().for_each(|text| format["description"] = json!(text));
            strict.iter().for_each(|strict| format["strict"] = json!(strict));
            Some(format)
        }
    }
}

/// Strict schemas must list every property as required, which those of Quell's tools do not.
fn encode_tool(tool: &ToolSpec, answer: &AnswerOptions) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": &*tool.parameters,
        "strict": answer.strict_tools.contains(&tool.name),
    })
}

#[cfg(test)]
mod tests;
