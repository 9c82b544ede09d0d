//! Dispatch on the provider's wire format (OpenAI or Anthropic): URLs, headers, request body, event parsing.

use std::slice;

use quell_kernel::prompt::{self, ImageUsage, Prompt};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::config::ProviderKind;
use super::partial_answer::{PartialAnswer, ResponseError, StreamStatus};
use super::provider::Provider;
use super::sse::ModelStreamEvent;
use super::{ModelCallRequest, ModelSink, anthropic, openai};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderDialect {
    /// OpenAI chat completions.
    Openai,
    /// Anthropic messages.
    Anthropic,
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

impl ProviderDialect {
    pub(super) fn from_kind(kind: ProviderKind) -> Self {
        match kind {
            ProviderKind::Openai | ProviderKind::Demo => Self::Openai,
            ProviderKind::Anthropic => Self::Anthropic,
        }
    }

    pub(super) fn encode_conversation(self, prompt: &Prompt<'_>) -> Conversation {
        let pictures = prompt::image_usage(prompt.turns, prompt.draft, prompt.vision);
        match self {
            Self::Openai => {
                Conversation { system: String::new(), messages: prompt::openai::build_messages(prompt), pictures }
            }
            Self::Anthropic => {
                let prompt::anthropic::AnthropicRequest { system, messages } = prompt::anthropic::build_request(prompt);
                Conversation { system, messages, pictures }
            }
        }
    }

    /// True when the dialect can request thinking.
    pub(super) fn has_thinking(self) -> bool {
        match self {
            Self::Openai => false,
            Self::Anthropic => true,
        }
    }

    /// The path of the endpoint below the base URL.
    pub(super) fn endpoint_path(self) -> &'static [&'static str] {
        match self {
            Self::Openai => &["chat", "completions"],
            Self::Anthropic => &["messages"],
        }
    }

    /// The URL of the model list that belongs to `endpoint`.
    pub(super) fn models_url(self, endpoint: &Url) -> Url {
        let mut url = endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            for _ in self.endpoint_path() {
                path.pop();
            }
            path.push("models");
        }
        if self == Self::Anthropic {
            // The API lists 20 models at a time unless the limit is set; 1000 is its maximum.
            url.query_pairs_mut().append_pair("limit", "1000");
        }
        url
    }

    /// The headers that the dialect requires.
    pub(super) fn fixed_headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Openai => &[],
            Self::Anthropic => slice::from_ref(&anthropic::VERSION_HEADER),
        }
    }

    /// The header that carries the key; none when the key contains a character that a header cannot hold.
    pub(super) fn key_header(self, key: &SecretString) -> Option<(HeaderName, HeaderValue)> {
        let (name, value) = match self {
            Self::Openai => (AUTHORIZATION, format!("Bearer {}", key.expose_secret())),
            Self::Anthropic => (HeaderName::from_static("x-api-key"), key.expose_secret().to_owned()),
        };
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }

    pub(super) fn request_body(
        self,
        provider: &Provider,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> serde_json::Result<String> {
        match self {
            Self::Openai => openai::request_body(provider, model, request),
            Self::Anthropic => anthropic::request_body(model, request),
        }
    }

    /// Applies one event of the stream.
    pub(super) fn apply_event(
        self,
        event: &ModelStreamEvent,
        partial: &mut PartialAnswer,
        sink: &mut dyn ModelSink,
    ) -> Result<StreamStatus, ResponseError> {
        match self {
            Self::Openai => openai::apply_event(event, partial, sink),
            Self::Anthropic => anthropic::apply_event(event, partial, sink),
        }
    }

    /// Applies the whole response of a server that was asked to stream and did not.
    pub(super) fn apply_whole_response(
        self,
        body: &[u8],
        partial: &mut PartialAnswer,
        sink: &mut dyn ModelSink,
    ) -> Result<(), ResponseError> {
        match self {
            Self::Openai => openai::apply_whole_response(body, partial, sink),
            Self::Anthropic => anthropic::apply_whole_response(body, partial, sink),
        }
    }
}
