//! Histories for tests of code that builds or checks one: broken ones, each with the report that it comes from and
//! exactly the rules that it breaks, and valid ones.

use crate::or_fail::OrFail as _;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelDialect {
    OpenAi,
    OpenAiResponses,
    Anthropic,
    Gemini,
}

impl ModelDialect {
    pub const ALL: [Self; 4] = [Self::OpenAi, Self::OpenAiResponses, Self::Anthropic, Self::Gemini];

    /// The value of `kind` in the configuration of a provider.
    pub fn kind(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiResponses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// The field of a body with the conversation.
    pub fn messages_field(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Anthropic => "messages",
            Self::OpenAiResponses => "input",
            Self::Gemini => "contents",
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryCase {
    pub name: String,
    /// The report or observation that it comes from.
    pub from: String,
    /// Names of exactly the rules that it breaks, each once; empty for a valid one.
    #[serde(default)]
    pub breaks: Vec<String>,
    #[serde(default)]
    messages: Option<Value>,
    /// Fields of the body besides or instead of the usual ones; `null` removes one.
    #[serde(default)]
    body: serde_json::Map<String, Value>,
}

impl HistoryCase {
    pub fn request_body(&self, dialect: ModelDialect) -> Value {
        let mut body = match dialect {
            ModelDialect::OpenAi => json!({"model": "scripted", "stream": true}),
            ModelDialect::OpenAiResponses => json!({"model": "scripted", "stream": true, "store": false}),
            ModelDialect::Gemini => json!({}),
            ModelDialect::Anthropic => json!({"model": "scripted", "stream": true, "max_tokens": 1000}),
        };
        if let Some(messages) = &self.messages {
            body[dialect.messages_field()] = messages.clone();
        }
        if let Some(object) = body.as_object_mut() {
            object.extend(self.body.clone());
            object.retain(|_, value| !value.is_null());
        }
        body
    }
}

pub fn broken_histories(dialect: ModelDialect) -> Vec<HistoryCase> {
    match dialect {
        ModelDialect::OpenAi => parse_cases(include_str!("../../corpus/openai_broken.json")),
        ModelDialect::OpenAiResponses => parse_cases(include_str!("../../corpus/responses_broken.json")),
        ModelDialect::Gemini => parse_cases(include_str!("../../corpus/gemini_broken.json")),
        ModelDialect::Anthropic => parse_cases(include_str!("../../corpus/anthropic_broken.json")),
    }
}

pub fn valid_histories(dialect: ModelDialect) -> Vec<HistoryCase> {
    match dialect {
        ModelDialect::OpenAi => parse_cases(include_str!("../../corpus/openai_valid.json")),
        ModelDialect::OpenAiResponses => parse_cases(include_str!("../../corpus/responses_valid.json")),
        ModelDialect::Gemini => parse_cases(include_str!("../../corpus/gemini_valid.json")),
        ModelDialect::Anthropic => parse_cases(include_str!("../../corpus/anthropic_valid.json")),
    }
}

fn parse_cases(text: &str) -> Vec<HistoryCase> {
    serde_json::from_str(text).or_fail("the corpus is not readable")
}
