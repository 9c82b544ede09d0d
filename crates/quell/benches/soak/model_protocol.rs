//! Commands and answers between driver and model server, one JSON value a line.

use std::collections::HashMap;
use std::time::Duration;

use quell_testkit::ScriptedResponse;
use quell_testkit::model::{ScriptedStream, StreamStep};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One answer of the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ScriptedAnswer {
    /// Thinking, then text, complete.
    Text(String),
    /// Accepts the request and sends nothing.
    Silent,
    /// Begins an answer, then sends nothing more.
    Begin,
    /// One token each so many milliseconds, without end.
    Tokens(u64),
    /// An error status, with a Retry-After header.
    Refuse(u16, Option<String>),
    /// Thinking, then these calls: tool and arguments.
    Calls(Vec<(String, Value)>),
}

/// A command to the model server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ModelCommand {
    /// Answers to requests with this last marker, in order; after them a default text.
    Script(HashMap<String, Vec<ScriptedAnswer>>),
    /// Deletes the remaining answers for these markers.
    Forget(Vec<String>),
    /// Changes nothing; the answer is the status.
    Count,
}

/// Status of the model server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelServerStatus {
    pub(crate) requests: usize,
    /// Requests in the Anthropic dialect.
    pub(crate) anthropic: usize,
    pub(crate) connections: usize,
    /// Histories that were rejected, and other protocol errors.
    pub(crate) complaints: Vec<String>,
}

impl From<ScriptedAnswer> for ScriptedResponse {
    fn from(answer: ScriptedAnswer) -> Self {
        let thought = || ScriptedStream::new().thinking("Let me see. ");
        match answer {
            ScriptedAnswer::Text(text) => thought().text(text).into(),
            ScriptedAnswer::Silent => Self::SilentBeforeHeaders,
            ScriptedAnswer::Begin => thought().text("So far ").step(StreamStep::Silent).into(),
            ScriptedAnswer::Tokens(ms) => {
                thought().step(StreamStep::TokensForever { every: Duration::from_millis(ms) }).into()
            }
            ScriptedAnswer::Refuse(code, Some(after)) => {
                let body = serde_json::json!({"error": {"message": "scripted", "type": "scripted"}}).to_string();
                Self::Status { code, headers: vec![("retry-after".to_owned(), after)], body }
            }
            ScriptedAnswer::Refuse(code, None) => Self::status(code),
            ScriptedAnswer::Calls(calls) => {
                let add = |stream: ScriptedStream, (nth, (tool, arguments)): (usize, (String, Value))| {
                    stream.tool_call(format!("c{nth}"), tool, &arguments)
                };
                calls.into_iter().enumerate().fold(thought().text("I look."), add).into()
            }
        }
    }
}
