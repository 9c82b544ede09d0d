//! Parse the streaming events and whole responses of the Anthropic Messages API. `request` builds its requests.

mod request;

use quell_kernel::prompt::{self, Prompt};
use quell_net::SseEvent;
use quell_protocol::Usage;
use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::Value;

use super::{Conversation, Dialect, EncodeError, EncodedRequest, ProviderEnvironment, url_below};
use crate::error_report::ProviderErrorReport;
use crate::partial_answer::{PartialAnswer, ResponseError, StreamStatus, null_as_default};
use crate::tool_calls::ToolCallFragment;
use crate::{FinishReason, ModelCallRequest};

#[derive(Debug)]
pub(crate) struct AnthropicMessages;

/// One event. Unknown events, which newer models may send, are ignored, and so are pings.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicEvent {
    MessageStart {
        message: AnthropicMessage,
    },
    ContentBlockStart {
        #[serde(default)]
        index: u64,
        content_block: AnthropicContentBlock,
    },
    ContentBlockDelta {
        #[serde(default)]
        index: u64,
        delta: AnthropicContentDelta,
    },
    MessageDelta {
        delta: AnthropicMessageEnd,
        #[serde(default)]
        usage: Value,
    },
    MessageStop,
    Error {
        #[serde(default)]
        error: Value,
    },
    #[serde(other)]
    Other,
}

/// The whole body of a response that is not a stream.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicResponse {
    Message(AnthropicMessage),
    Error {
        #[serde(default)]
        error: Value,
    },
}

/// A message: complete in a whole body, without content at the start of a stream.
#[derive(Deserialize)]
struct AnthropicMessage {
    #[serde(default, deserialize_with = "null_as_default")]
    content: Vec<AnthropicContentBlock>,
    #[serde(flatten)]
    end: AnthropicMessageEnd,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicContentBlock {
    Text {
        #[serde(default, deserialize_with = "null_as_default")]
        text: String,
    },
    Thinking {
        #[serde(default, deserialize_with = "null_as_default")]
        thinking: String,
        #[serde(default, deserialize_with = "null_as_default")]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        #[serde(default, deserialize_with = "null_as_default")]
        id: String,
        #[serde(default, deserialize_with = "null_as_default")]
        name: String,
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum AnthropicContentDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct AnthropicMessageEnd {
    #[serde(default, deserialize_with = "null_as_default")]
    stop_reason: String,
    #[serde(default, deserialize_with = "null_as_default")]
    stop_sequence: String,
}

impl Dialect for AnthropicMessages {
    fn kind(&self) -> &'static str {
        "anthropic"
    }

    fn description(&self) -> &'static str {
        "Anthropic messages."
    }

    fn default_base_url(&self) -> Result<&'static str, &'static str> {
        Ok("https://api.anthropic.com/v1")
    }

    fn environment(&self) -> Option<&'static ProviderEnvironment> {
        Some(&ProviderEnvironment {
            provider: "anthropic",
            key_variable: "ANTHROPIC_API_KEY",
            base_url_variable: "ANTHROPIC_BASE_URL",
            // Anthropic's own programs expect the variable without it and append it.
            base_url_suffix: Some("/v1"),
            default_model: "claude-sonnet-4-5",
        })
    }

    fn has_thinking(&self) -> bool {
        true
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-api-key"), key.to_owned())
    }

    /// Without the version, every request is refused.
    fn fixed_headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", "2023-06-01")]
    }

    fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        let prompt::anthropic::AnthropicRequest { system, messages } = prompt::anthropic::build_request(prompt);
        Conversation { system, messages, ..Conversation::default() }
    }

    fn encode_request(
        &self,
        base_url: &Url,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> Result<EncodedRequest, EncodeError> {
        Ok(EncodedRequest { url: url_below(base_url, &["messages"]), body: request::request_body(model, request)? })
    }

    fn apply_event(&self, event: &SseEvent, partial: &mut PartialAnswer) -> Result<StreamStatus, ResponseError> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(StreamStatus::More);
        }
        let stream_event = serde_json::from_str::<AnthropicEvent>(data).map_err(|error| {
            ResponseError::Unreadable(format!("an event that is none of the messages API: {error}"))
        })?;
        match stream_event {
            AnthropicEvent::MessageStart { message } => apply_message(message, partial)?,
            AnthropicEvent::ContentBlockStart { index, content_block } => {
                apply_block(index, content_block, partial)?;
            }
            AnthropicEvent::ContentBlockDelta { index, delta } => apply_delta(index, delta, partial)?,
            AnthropicEvent::MessageDelta { delta, usage } => {
                update_usage(&usage, partial);
                set_finish_reason(delta, partial);
            }
            AnthropicEvent::MessageStop => return Ok(StreamStatus::Done),
            AnthropicEvent::Error { error } => return Err(ResponseError::Reported(parse_error_report(&error))),
            AnthropicEvent::Other => {}
        }
        Ok(StreamStatus::More)
    }

    fn apply_whole_response(&self, body: &[u8], partial: &mut PartialAnswer) -> Result<(), ResponseError> {
        let whole = serde_json::from_slice::<AnthropicResponse>(body)
            .map_err(|error| ResponseError::Unreadable(format!("a body that is no message: {error}")))?;
        match whole {
            AnthropicResponse::Message(message) => {
                apply_message(message, partial)?;
                partial.usage = partial.usage.map(|usage| Usage { estimated: false, ..usage });
                Ok(())
            }
            AnthropicResponse::Error { error } => Err(ResponseError::Reported(parse_error_report(&error))),
        }
    }

    fn model_list_url(&self, base_url: &Url) -> Url {
        let mut url = url_below(base_url, &["models"]);
        // The API lists 20 models at a time unless the limit is set; 1000 is its maximum.
        url.query_pairs_mut().append_pair("limit", "1000");
        url
    }
}

fn apply_message(message: AnthropicMessage, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    partial.has_begun = true;
    update_usage(&message.usage, partial);
    // The count of output tokens at the start is only the first value, so it counts as an estimate.
    partial.usage = partial.usage.map(|usage| Usage { estimated: true, ..usage });
    for (index, block) in (0..).zip(message.content) {
        apply_block(index, block, partial)?;
    }
    set_finish_reason(message.end, partial);
    Ok(())
}

fn apply_block(index: u64, block: AnthropicContentBlock, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    partial.has_begun = true;
    match block {
        AnthropicContentBlock::Text { text } => partial.append_text(&text),
        AnthropicContentBlock::Thinking { thinking, signature } => {
            partial.begin_signed_thinking();
            partial.append_thinking(&thinking)?;
            partial.append_signature(&signature)
        }
        AnthropicContentBlock::RedactedThinking { data } => partial.push_redacted_thinking(data),
        AnthropicContentBlock::ToolUse { id, name, input } => {
            // A stream starts with an empty object and sends the input in pieces.
            let whole = input.as_object().is_some_and(|fields| !fields.is_empty());
            let arguments = if whole { input.to_string() } else { String::new() };
            partial.append_call_fragment(0, ToolCallFragment { index: Some(index), id, name, arguments })
        }
        AnthropicContentBlock::Other => Ok(()),
    }
}

fn apply_delta(index: u64, delta: AnthropicContentDelta, partial: &mut PartialAnswer) -> Result<(), ResponseError> {
    match delta {
        AnthropicContentDelta::Text { text } => partial.append_text(&text),
        AnthropicContentDelta::Thinking { thinking } => partial.append_thinking(&thinking),
        AnthropicContentDelta::Signature { signature } => partial.append_signature(&signature),
        AnthropicContentDelta::InputJson { partial_json } => partial.append_call_fragment(
            0,
            ToolCallFragment { index: Some(index), arguments: partial_json, ..ToolCallFragment::default() },
        ),
        AnthropicContentDelta::Other => Ok(()),
    }
}

/// Updates the token counts. Input comes at the start, at the end, or both; output grows. An absent or zero count is
/// ignored.
fn update_usage(usage: &Value, partial: &mut PartialAnswer) {
    let field = |name: &str| usage.get(name).and_then(Value::as_u64);
    let (input, output) = (field("input_tokens"), field("output_tokens"));
    if input.is_none() && output.is_none() {
        return;
    }
    // Tokens written to and read from the cache are not in `input_tokens`, but the model read them too.
    let (written, read) = (field("cache_creation_input_tokens"), field("cache_read_input_tokens").unwrap_or_default());
    let input = input.map(|fresh| fresh.saturating_add(written.unwrap_or_default()).saturating_add(read));
    let before = partial.usage.unwrap_or_default();
    partial.usage = Some(Usage {
        input_tokens: input.unwrap_or_default().max(before.input_tokens),
        output_tokens: output.unwrap_or_default().max(before.output_tokens),
        cached_tokens: read.max(before.cached_tokens),
        // A count of the input alone is not complete.
        estimated: output.is_none(),
    });
}

fn set_finish_reason(end: AnthropicMessageEnd, partial: &mut PartialAnswer) {
    let AnthropicMessageEnd { stop_reason: reason, stop_sequence } = end;
    if reason.is_empty() {
        return;
    }
    partial.finish_reason = Some(match reason.as_str() {
        "stop_sequence" if !stop_sequence.is_empty() => FinishReason::StopSequence(stop_sequence),
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "refusal" => FinishReason::ContentFilter,
        "pause_turn" => FinishReason::Paused,
        _ => FinishReason::Other(reason),
    });
}

/// An error report. In a stream there is no HTTP status, so the type of the error determines it.
fn parse_error_report(error: &Value) -> ProviderErrorReport {
    let status = match error.get("type").and_then(Value::as_str) {
        Some("invalid_request_error") => Some(400),
        Some("authentication_error") => Some(401),
        Some("billing_error") => Some(402),
        Some("permission_error") => Some(403),
        Some("not_found_error") => Some(404),
        Some("request_too_large") => Some(413),
        Some("rate_limit_error") => Some(429),
        Some("api_error") => Some(500),
        Some("timeout_error") => Some(504),
        Some("overloaded_error") => Some(529),
        Some(_) | None => None,
    };
    let mut report = ProviderErrorReport::from_json(error);
    report.status = report.status.or(status);
    report
}

#[cfg(test)]
mod tests;
