//! Histories for testing whatever makes or checks one: broken ones, each with the report it stems from and exactly the rules
//! it breaks, and valid ones.

use serde::Deserialize;
use serde_json::{Value, json};

/// The wire dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI chat completions.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
}

/// One history.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// The report or observation it stems from.
    pub from: String,
    /// The words of exactly the rules it breaks, each once; empty for a valid one.
    #[serde(default)]
    pub breaks: Vec<String>,
    /// Its messages.
    #[serde(default)]
    messages: Option<Value>,
    /// Fields of the body beside or instead of the usual ones; `null` removes one.
    #[serde(default)]
    body: serde_json::Map<String, Value>,
}

impl Case {
    /// The whole request.
    #[must_use]
    pub fn request(&self, dialect: Dialect) -> Value {
        let mut body = match dialect {
            Dialect::OpenAi => json!({"model": "scripted", "stream": true}),
            Dialect::Anthropic => json!({"model": "scripted", "stream": true, "max_tokens": 1000}),
        };
        if let Some(messages) = &self.messages {
            body["messages"] = messages.clone();
        }
        if let Some(object) = body.as_object_mut() {
            object.extend(self.body.clone());
            object.retain(|_, value| !value.is_null());
        }
        body
    }
}

/// Histories that a provider refuses.
#[must_use]
pub fn broken(dialect: Dialect) -> Vec<Case> {
    match dialect {
        Dialect::OpenAi => read(include_str!("../../corpus/openai_broken.json")),
        Dialect::Anthropic => read(include_str!("../../corpus/anthropic_broken.json")),
    }
}

/// Histories that a provider accepts.
#[must_use]
pub fn valid(dialect: Dialect) -> Vec<Case> {
    match dialect {
        Dialect::OpenAi => read(include_str!("../../corpus/openai_valid.json")),
        Dialect::Anthropic => read(include_str!("../../corpus/anthropic_valid.json")),
    }
}

fn read(text: &str) -> Vec<Case> {
    match serde_json::from_str(text) {
        Ok(cases) => cases,
        Err(error) => panic!("the corpus is not readable: {error}"),
    }
}
