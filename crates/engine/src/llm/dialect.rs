//! The wire dialects: the one place where a provider's kind decides how a conversation is spelled, sent and read.

use std::slice;

use quell_kernel::view::{self, Prompt, Shown};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::answer::{Bad, Partial, Taken};
use super::config::ProviderKind;
use super::provider::Provider;
use super::sse::Event;
use super::{ModelRequest, ModelSink, anthropic, openai};

/// How a provider wants to be spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI chat completions.
    Openai,
    /// Anthropic messages.
    Anthropic,
}

/// A conversation as one dialect spells it. It goes to a model of that dialect only: see
/// [`Model::conversation`](super::Model::conversation).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The prompt, where the dialect keeps it apart from the messages; else empty.
    pub(super) system: String,
    pub(super) messages: Vec<Value>,
    /// What of it is pictures.
    pub(super) pictures: Shown,
}

impl Dialect {
    pub(super) fn of(kind: ProviderKind) -> Self {
        match kind {
            ProviderKind::Openai | ProviderKind::Demo => Self::Openai,
            ProviderKind::Anthropic => Self::Anthropic,
        }
    }

    pub(super) fn conversation(self, prompt: &Prompt<'_>) -> Conversation {
        let pictures = view::shown(prompt.turns, prompt.draft, prompt.sight);
        match self {
            Self::Openai => Conversation { system: String::new(), messages: view::openai::messages(prompt), pictures },
            Self::Anthropic => {
                let view::anthropic::Request { system, messages } = view::anthropic::request(prompt);
                Conversation { system, messages, pictures }
            }
        }
    }

    /// True when thinking can be asked for.
    pub(super) fn has_thinking(self) -> bool {
        match self {
            Self::Openai => false,
            Self::Anthropic => true,
        }
    }

    /// Where requests go, below the base.
    pub(super) fn path(self) -> &'static [&'static str] {
        match self {
            Self::Openai => &["chat", "completions"],
            Self::Anthropic => &["messages"],
        }
    }

    /// The list of models that lies beside `endpoint`.
    pub(super) fn models(self, endpoint: &Url) -> Url {
        let mut url = endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            for _ in self.path() {
                path.pop();
            }
            path.push("models");
        }
        if self == Self::Anthropic {
            // It lists 20 at a time unless it is asked for its most.
            url.query_pairs_mut().append_pair("limit", "1000");
        }
        url
    }

    /// Headers that the dialect asks for, whoever serves it.
    pub(super) fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Openai => &[],
            Self::Anthropic => slice::from_ref(&anthropic::VERSION),
        }
    }

    /// The header that carries the key; none when no header can.
    pub(super) fn key(self, key: &SecretString) -> Option<(HeaderName, HeaderValue)> {
        let (name, value) = match self {
            Self::Openai => (AUTHORIZATION, format!("Bearer {}", key.expose_secret())),
            Self::Anthropic => (HeaderName::from_static("x-api-key"), key.expose_secret().to_owned()),
        };
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }

    /// The body of a request for `model`.
    pub(super) fn body(
        self,
        provider: &Provider,
        model: &str,
        request: &ModelRequest<'_>,
    ) -> serde_json::Result<String> {
        match self {
            Self::Openai => openai::body(provider, model, request),
            Self::Anthropic => anthropic::body(model, request),
        }
    }

    /// Takes one event of the stream.
    pub(super) fn take(self, event: &Event, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<Taken, Bad> {
        match self {
            Self::Openai => openai::take(event, partial, sink),
            Self::Anthropic => anthropic::take(event, partial, sink),
        }
    }

    /// Takes a whole answer, of a server that was asked to stream and did not.
    pub(super) fn take_whole(self, body: &[u8], partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Bad> {
        match self {
            Self::Openai => openai::take_whole(body, partial, sink),
            Self::Anthropic => anthropic::take_whole(body, partial, sink),
        }
    }
}
