//! Build requests and parse streaming events and whole responses of Google's Gemini API.

use quell_kernel::ToolSpec;
use quell_kernel::client_request::{AnswerFormat, AnswerOptions, ToolChoice};
use quell_kernel::prompt::{self, Prompt};
use quell_net::SseEvent;
use quell_protocol::Usage;
use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Conversation, Dialect, EncodeError, EncodedRequest, ProviderEnvironment, described_schema, url_below};
use crate::error_report::ProviderErrorReport;
use crate::partial_answer::{PartialAnswer, ResponseError, StreamStatus, null_as_default};
use crate::tool_calls::ToolCallFragment;
use crate::{FinishReason, ModelCallRequest, ThinkingMode};

#[derive(Debug)]
pub(crate) struct GeminiContent;

/// One event, or the whole answer of a server that does not stream.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiResponse {
    #[serde(default, deserialize_with = "null_as_default")]
    candidates: Vec<GeminiCandidate>,
    #[serde(default)]
    prompt_feedback: Value,
    #[serde(default)]
    usage_metadata: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiCandidate {
    #[serde(default)]
    index: u64,
    #[serde(default, deserialize_with = "null_as_default")]
    content: GeminiParts,
    #[serde(default, deserialize_with = "null_as_default")]
    finish_reason: String,
    #[serde(default, deserialize_with = "null_as_default")]
    grounding_metadata: GroundingMetadata,
}

/// What the service has searched for, and the pages that it found.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct GroundingMetadata {
    #[serde(default, deserialize_with = "null_as_default")]
    web_search_queries: Vec<String>,
    /// Each with the field `web` if it is a page.
    #[serde(default, deserialize_with = "null_as_default")]
    grounding_chunks: Vec<Value>,
}

#[derive(Deserialize, Default)]
struct GeminiParts {
    #[serde(default, deserialize_with = "null_as_default")]
    parts: Vec<GeminiPart>,
}

/// A part: a text, a call or a search. Parts of other kinds have none of these, and are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiPart {
    #[serde(default, deserialize_with = "null_as_default")]
    text: String,
    /// True for reasoning.
    #[serde(default, deserialize_with = "null_as_default")]
    thought: bool,
    #[serde(default, deserialize_with = "null_as_default")]
    thought_signature: String,
    #[serde(default)]
    function_call: Option<GeminiCall>,
    /// A search of the service itself.
    #[serde(default)]
    tool_call: Option<Value>,
    /// The result of such a search.
    #[serde(default)]
    tool_response: Option<Value>,
}

#[derive(Deserialize)]
struct GeminiCall {
    #[serde(default, deserialize_with = "null_as_default")]
    id: String,
    #[serde(default, deserialize_with = "null_as_default")]
    name: String,
    #[serde(default)]
    args: Value,
}

impl Dialect for GeminiContent {
    fn kind(&self) -> &'static str {
        "gemini"
    }

    fn description(&self) -> &'static str {
        "Google Gemini."
    }

    fn default_base_url(&self) -> Result<&'static str, &'static str> {
        Ok("https://generativelanguage.googleapis.com/v1beta")
    }

    fn environment(&self) -> Option<&'static ProviderEnvironment> {
        Some(&ProviderEnvironment {
            provider: "gemini",
            key_variable: "GEMINI_API_KEY",
            base_url_variable: "GEMINI_BASE_URL",
            base_url_suffix: None,
            default_model: "gemini-2.5-flash",
        })
    }

    fn has_thinking(&self) -> bool {
        true
    }

    fn has_web_search(&self) -> bool {
        true
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-goog-api-key"), key.to_owned())
    }

    fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        let prompt::gemini::GeminiContents { system, contents } = prompt::gemini::build_contents(prompt);
        Conversation { system, messages: contents, ..Conversation::default() }
    }

    fn encode_request(
        &self,
        base_url: &Url,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> Result<EncodedRequest, EncodeError> {
        let answer = request.answer;
        let mut url = url_below(base_url, &["models", &format!("{model}:streamGenerateContent")]);
        url.query_pairs_mut().append_pair("alt", "sse");
        let mut body = json!({"contents": request.conversation.messages});
        if !request.conversation.system.is_empty() {
            body["systemInstruction"] = json!({"parts": [{"text": request.conversation.system}]});
        }
        let mut tool_config = Map::new();
        let declarations: Vec<Value> = request.tools.iter().map(encode_tool).collect();
        let functions = (!declarations.is_empty()).then(|| json!({"functionDeclarations": declarations}));
        // The tool of the API is no function, so that no other tool can be taken for it.
        let web_search = request.web_search.then(|| json!({"googleSearch": {}}));
        if functions.is_some() && web_search.is_some() {
            // Without, the API refuses its own tools beside functions.
            tool_config.insert("includeServerSideToolInvocations".to_owned(), json!(true));
        }
        if functions.is_some() {
            let calling = function_calling(answer)?.map(|calling| ("functionCallingConfig".to_owned(), calling));
            tool_config.extend(calling);
        }
        if !tool_config.is_empty() {
            body["toolConfig"] = Value::Object(tool_config);
        }
        let tools: Vec<Value> = functions.into_iter().chain(web_search).collect();
        if !tools.is_empty() {
            body["tools"] = Value::Array(tools);
        }
        let generation = generation_config(request)?;
        if !generation.is_empty() {
            body["generationConfig"] = Value::Object(generation);
        }
        Ok(EncodedRequest { url, body: serde_json::to_string(&body)? })
    }

    /// The format has no end mark: the stream ends after the event with the reason.
    fn apply_event(&self, event: &SseEvent, partial: &mut PartialAnswer) -> Result<StreamStatus, ResponseError> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(StreamStatus::More);
        }
        let response = serde_json::from_str::<GeminiResponse>(data)
            .map_err(|error| ResponseError::Unreadable(format!("an event that is no piece of content: {error}")))?;
        apply_response(response, partial)?;
        Ok(StreamStatus::More)
    }

    fn apply_whole_response(&self, body: &[u8], partial: &mut PartialAnswer) -> Result<(), ResponseError> {
        let response = serde_json::from_slice::<GeminiResponse>(body)
            .map_err(|error| ResponseError::Unreadable(format!("a body that is no content: {error}")))?;
        apply_response(response, partial)
    }

    /// The API answers a request for a stream with a list that holds the error.
    fn parse_error(&self, body: &str) -> ProviderErrorReport {
        let of_list = serde_json::from_str::<Vec<Value>>(body).ok().and_then(|list| list.into_iter().next());
        match of_list {
            Some(first) => ProviderErrorReport::from_json(first.get("error").unwrap_or(&first)),
            None => ProviderErrorReport::from_body(body),
        }
    }

    fn model_list_url(&self, base_url: &Url) -> Url {
        let mut url = url_below(base_url, &["models"]);
        // The API lists 50 models at a time unless the size is set; 1000 is its maximum.
        url.query_pairs_mut().append_pair("pageSize", "1000");
        url
    }

    fn parse_model_list(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: Value = serde_json::from_slice(body).ok()?;
        let name = |model: &Value| {
            let name = model.get("name").and_then(Value::as_str)?;
            Some(name.strip_prefix("models/").unwrap_or(name).to_owned())
        };
        Some(list.get("models")?.as_array()?.iter().filter_map(name).collect())
    }
}

fn apply_response(response: GeminiResponse, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    if !response.error.is_null() {
        return Err(ResponseError::Reported(ProviderErrorReport::from_json(&response.error)));
    }
    // Each event has a running count, so the last count is the right one.
    partial.usage = parse_usage(&response.usage_metadata).or(partial.usage);
    if response.prompt_feedback.get("blockReason").is_some_and(|reason| !reason.is_null()) {
        partial.has_begun = true;
        partial.finish_reason = Some(FinishReason::ContentFilter);
    }
    // One answer was requested; further candidates are ignored.
    for candidate in response.candidates.into_iter().filter(|candidate| candidate.index == 0) {
        partial.has_begun = true;
        candidate.content.parts.into_iter().try_for_each(|part| apply_part(part, partial))?;
        apply_grounding(&candidate.grounding_metadata, partial)?;
        if !candidate.finish_reason.is_empty() {
            partial.finish_reason = Some(parse_finish_reason(candidate.finish_reason, partial.call_count() > 0));
        }
    }
    Ok(())
}

fn apply_grounding(grounding: &GroundingMetadata, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    grounding.web_search_queries.iter().try_for_each(|query| partial.report_search(query))?;
    for page in grounding.grounding_chunks.iter().filter_map(|chunk| chunk.get("web")) {
        let field = |name: &str| page.get(name).and_then(Value::as_str).unwrap_or_default();
        partial.citations.add(field("uri"), field("title"));
    }
    Ok(())
}

/// A search of the service, or its result, as it has to be sent back.
fn apply_web_search(
    kind: &str,
    value: Value,
    signature: String,
    partial: &mut PartialAnswer,
) -> Result<(), ResponseError> {
    let queries = value.pointer("/args/queries").and_then(Value::as_array).into_iter().flatten();
    queries.filter_map(Value::as_str).try_for_each(|query| partial.report_search(query))?;
    let mut part = json!({kind: value});
    if !signature.is_empty() {
        part["thoughtSignature"] = json!(signature);
    }
    partial.push_web_search(part)
}

fn apply_part(part: GeminiPart, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    if let Some(call) = part.tool_call {
        return apply_web_search("toolCall", call, part.thought_signature, partial);
    }
    if let Some(result) = part.tool_response {
        return apply_web_search("toolResponse", result, part.thought_signature, partial);
    }
    if part.thought {
        return partial.append_thinking(&part.text);
    }
    // A signature without content has no part in the next request to go back on.
    let has_content = !part.text.trim().is_empty() || part.function_call.is_some();
    let is_signed = has_content && !part.thought_signature.is_empty();
    if is_signed {
        partial.push_block_signature(part.thought_signature)?;
    }
    if let Some(GeminiCall { id, name, args }) = part.function_call {
        let arguments = if args.is_null() { String::new() } else { args.to_string() };
        // A call comes as a whole, so each one has a number of its own.
        let index = u64::try_from(partial.call_count()).ok();
        return partial.append_call_fragment(0, ToolCallFragment { index, id, name, arguments });
    }
    partial.append_text(&part.text)?;
    if is_signed {
        partial.end_signed_text();
    }
    Ok(())
}

fn parse_finish_reason(reason: String, has_calls: bool) -> FinishReason {
    match reason.as_str() {
        "STOP" if has_calls => FinishReason::ToolCalls,
        "STOP" => FinishReason::Stop,
        "MAX_TOKENS" => FinishReason::Length,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "MODEL_ARMOR" => {
            FinishReason::ContentFilter
        }
        reason if reason.starts_with("IMAGE_") => FinishReason::ContentFilter,
        _ => FinishReason::Other(reason),
    }
}

fn parse_usage(usage: &Value) -> Option<Usage> {
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let input = [count("promptTokenCount"), count("toolUsePromptTokenCount")];
    let output = [count("candidatesTokenCount"), count("thoughtsTokenCount")];
    if input.iter().chain(&output).all(Option::is_none) {
        return None;
    }
    let sum = |counts: [Option<u64>; 2]| counts.into_iter().flatten().fold(0, u64::saturating_add);
    // The first pieces of an answer may count only the input.
    let estimated = output.iter().all(Option::is_none);
    let cached_tokens = count("cachedContentTokenCount").unwrap_or_default();
    Some(Usage { input_tokens: sum(input), output_tokens: sum(output), cached_tokens, estimated })
}

fn generation_config(request: &ModelCallRequest<'_>) -> Result<Map<String, Value>, EncodeError> {
    let answer = request.answer;
    let (media_type, schema) = match &answer.format {
        AnswerFormat::Text => (None, None),
        AnswerFormat::JsonObject => (Some(json!("application/json")), None),
        // The API has no name for a schema, and is always strict.
        AnswerFormat::JsonSchema { description, schema, .. } => {
            (Some(json!("application/json")), Some(described_schema(schema, description.as_deref())))
        }
    };
    let settings = [
        ("temperature", answer.temperature.map(Value::from)),
        ("topP", answer.top_p.map(Value::from)),
        ("maxOutputTokens", answer.max_tokens.map(Value::from)),
        ("stopSequences", (!answer.stop_sequences.is_empty()).then(|| json!(answer.stop_sequences))),
        ("responseMimeType", media_type),
        ("responseJsonSchema", schema),
        ("thinkingConfig", thinking_config(request)?),
    ];
    Ok(settings.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

/// A client's word for the effort comes before a budget: the API takes only one of them.
fn thinking_config(request: &ModelCallRequest<'_>) -> Result<Option<Value>, EncodeError> {
    let mut config = match request.answer.reasoning_effort.as_deref() {
        None => return Ok(request.thinking.map(thinking_setting)),
        Some("none") => json!({"thinkingBudget": 0}),
        Some(level @ ("minimal" | "low" | "medium" | "high")) => json!({"thinkingLevel": level}),
        Some(_) => {
            let problem = "Gemini has the levels none, minimal, low, medium and high";
            return Err(EncodeError::unsupported("reasoning_effort", problem));
        }
    };
    if request.thinking.is_some() {
        config["includeThoughts"] = json!(true);
    }
    Ok(Some(config))
}

fn function_calling(answer: &AnswerOptions) -> Result<Option<Value>, EncodeError> {
    if answer.parallel_tool_calls == Some(false) {
        let problem = "Gemini cannot be limited to one call at a time; leave it out";
        return Err(EncodeError::unsupported("parallel_tool_calls", problem));
    }
    Ok(match &answer.tool_choice {
        ToolChoice::Auto if answer.strict_tools.is_empty() => None,
        // In this mode, all calls match their schema.
        ToolChoice::Auto => Some(json!({"mode": "VALIDATED"})),
        ToolChoice::None => Some(json!({"mode": "NONE"})),
        ToolChoice::Required => Some(json!({"mode": "ANY"})),
        ToolChoice::Named(name) => Some(json!({"mode": "ANY", "allowedFunctionNames": [name]})),
    })
}

fn thinking_setting(mode: ThinkingMode) -> Value {
    // In this API, -1 lets the model decide.
    let budget = match mode {
        ThinkingMode::Adaptive => -1,
        ThinkingMode::Tokens(budget) => i64::from(budget),
    };
    json!({"includeThoughts": true, "thinkingBudget": budget})
}

/// The API takes JSON Schema in this field; its field `parameters` knows only a part of it.
fn encode_tool(tool: &ToolSpec) -> Value {
    json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": &*tool.parameters})
}

#[cfg(test)]
mod tests;
