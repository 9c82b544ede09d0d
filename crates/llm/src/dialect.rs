//! The wire formats of model providers: everything that differs between them, and the table of all of them.
//!
//! A dialect is pure and synchronous: it turns a conversation into a request, and received data into an answer.
//! Sending, retries, time limits and stops are the same for all dialects and know none of them. `docs/add-a-provider.md`
//! says how to add one.

mod anthropic;
mod gemini;
mod openai;
mod responses;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;

use quell_kernel::client_request::AnswerOptions;
use quell_kernel::prompt::{ImageUsage, Prompt};
use quell_net::SseEvent;
use quell_protocol::Usage;
use reqwest::Url;
use reqwest::header::HeaderName;
use serde_json::Value;

use super::ModelCallRequest;
use super::error_report::ProviderErrorReport;
use super::partial_answer::{PartialAnswer, ResponseError, StreamStatus};

pub(super) use anthropic::AnthropicMessages;
pub(super) use gemini::GeminiContent;
pub(super) use openai::ChatCompletions;
pub(super) use responses::OpenAiResponses;

/// All dialects, in the order in which the schema and error texts list them. The first one whose environment variables
/// are set gives the provider of a daemon without any section.
pub(super) static DIALECTS: &[&dyn Dialect] =
    &[&ChatCompletions::OPENAI, &OpenAiResponses, &AnthropicMessages, &GeminiContent, &ChatCompletions::DEMO];

/// The wire format of a provider: how a history becomes a request, and a stream becomes an answer.
pub(super) trait Dialect: fmt::Debug + Sync {
    /// The value of `kind` in the configuration.
    fn kind(&self) -> &'static str;

    /// One sentence for the schema of the configuration.
    fn description(&self) -> &'static str;

    /// The base URL of a section that names none.
    ///
    /// # Errors
    /// The reason why such a section is incomplete.
    fn default_base_url(&self) -> Result<&'static str, &'static str>;

    /// The provider that environment variables configure when there is no section.
    fn environment(&self) -> Option<&'static ProviderEnvironment> {
        None
    }

    /// Whether a request can ask for thinking.
    fn has_thinking(&self) -> bool {
        false
    }

    /// Whether a request can let the provider search the web by itself.
    fn has_web_search(&self) -> bool {
        false
    }

    /// Whether a request can hold pictures. Without, the prompt names them in text.
    fn has_pictures(&self) -> bool {
        true
    }

    /// Whether a server of this dialect can have OpenAI's audio endpoints.
    fn has_audio(&self) -> bool {
        false
    }

    fn key_header(&self, key: &str) -> (HeaderName, String);

    /// The headers of each request, besides the key and those that all dialects have.
    fn fixed_headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Renders a prompt. The caller counts the pictures.
    fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation;

    /// The request for a streamed answer. `model` is the name that the provider uses; it may contain slashes.
    ///
    /// # Errors
    /// [`EncodeError`], also for an option of the answer that the API does not have.
    fn encode_request(
        &self,
        base_url: &Url,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> Result<EncodedRequest, EncodeError>;

    fn apply_event(&self, event: &SseEvent, partial: &mut PartialAnswer) -> Result<StreamStatus, ResponseError>;

    /// Applies the whole response of a server that was asked to stream and did not.
    fn apply_whole_response(&self, body: &[u8], partial: &mut PartialAnswer) -> Result<(), ResponseError>;

    /// Parses the body of an error response. The default reads every shape that is known so far.
    fn parse_error(&self, body: &str) -> ProviderErrorReport {
        ProviderErrorReport::from_body(body)
    }

    /// The URL of the model list, for the doctor.
    fn model_list_url(&self, base_url: &Url) -> Url {
        url_below(base_url, &["models"])
    }

    /// The names in a model list. The default reads `{"data": [{"id": ...}]}`. None when the body is no list.
    fn parse_model_list(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: Value = serde_json::from_slice(body).ok()?;
        let id = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
        Some(list.get("data")?.as_array()?.iter().filter_map(id).collect())
    }
}

/// Why a request cannot be written in a wire format.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("`{option}`: {problem}")]
    UnsupportedOption {
        /// The name of the option as in [`AnswerOptions`].
        option: &'static str,
        /// What the API does not have, and what to do.
        problem: &'static str,
    },
}

impl EncodeError {
    pub(super) fn unsupported(option: &'static str, problem: &'static str) -> Self {
        Self::UnsupportedOption { option, problem }
    }
}

/// OpenAI's words for the effort of reasoning with a budget: its APIs know no budgets.
fn effort_of_budget(tokens: u32) -> &'static str {
    match tokens {
        0..4096 => "low",
        4096..16384 => "medium",
        16384.. => "high",
    }
}

/// The word for the effort of reasoning, which OpenAI's models understand.
fn openai_effort(answer: &AnswerOptions) -> Result<Option<&str>, EncodeError> {
    match answer.reasoning_effort.as_deref() {
        Some("max") => Err(EncodeError::unsupported("reasoning_effort", "there is no `max`; use `xhigh`")),
        word => Ok(word),
    }
}

/// A schema with the description of the answer in it, for an API that has no other place for it.
fn described_schema(schema: &Value, description: Option<&str>) -> Value {
    let mut schema = schema.clone();
    if let (Some(fields), Some(description)) = (schema.as_object_mut(), description) {
        fields.entry("description").or_insert_with(|| description.into());
    }
    schema
}

/// A provider that environment variables configure.
#[derive(Debug)]
pub struct ProviderEnvironment {
    /// The name of the provider's section.
    pub provider: &'static str,
    pub key_variable: &'static str,
    pub base_url_variable: &'static str,
    /// The end of a base URL that may be missing in the variable.
    pub base_url_suffix: Option<&'static str>,
    pub default_model: &'static str,
}

/// A conversation in the wire format of one dialect. Send it only to a model of that dialect: see
/// [`ModelHandle::encode_conversation`](super::ModelHandle::encode_conversation).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The system prompt, where the dialect has it apart from the messages; otherwise empty.
    pub(super) system: String,
    pub(super) messages: Vec<Value>,
    /// The number and size of the pictures in the messages, for the token estimate.
    pub(super) pictures: ImageUsage,
}

/// A request, complete but for its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EncodedRequest {
    pub(super) url: Url,
    /// JSON.
    pub(super) body: String,
}

/// The URL with these segments after the path of `base_url`. Slashes inside a segment are escaped; the query stays.
pub(super) fn url_below(base_url: &Url, segments: &[&str]) -> Url {
    let mut url = base_url.clone();
    // Only a URL that cannot be a base has no path, and no base URL of a provider is one.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Reads a count of tokens in either of OpenAI's formats, by the names of its fields. `None` if there is no count.
fn read_usage(usage: &Value, input_field: &str, output_field: &str) -> Option<Usage> {
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let (input, output) = (count(input_field), count(output_field));
    if input.is_none() && output.is_none() {
        return None;
    }
    let cached = usage.pointer(&format!("/{input_field}_details/cached_tokens")).and_then(Value::as_u64);
    Some(Usage {
        input_tokens: input.unwrap_or_default(),
        output_tokens: output.unwrap_or_default(),
        cached_tokens: cached.unwrap_or_default(),
        estimated: false,
    })
}
