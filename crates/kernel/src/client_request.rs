//! A request that a client made in the wire format of a model provider, in neutral form.
//!
//! The conversation comes with the request instead of from a session. What the neutral form cannot express is a
//! [`ClientRequestProblem`] that names it; nothing is left out silently.

use std::sync::Arc;

use serde_json::Value;

use crate::ToolSpec;
use crate::turn::{AnsweredCall, ModelMessage, Turn};

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRequest {
    /// `agent/ID` or `PROVIDER/MODEL`, unchecked.
    pub model: String,
    pub conversation: ClientConversation,
    pub answer: AnswerOptions,
    /// Whether the client wants the answer as a stream of events.
    pub stream: bool,
}

/// A conversation that a client brings along.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClientConversation {
    /// The texts of the system and the developer, in paragraphs; may be empty.
    pub instructions: String,
    /// What was said before the last message of the user, oldest first.
    pub turns: Vec<Arc<Turn>>,
    /// The last message of the user, with markers for its pictures.
    pub text: String,
    /// What models have answered to that message so far: calls of the client's tools, with their results.
    pub continuation: Vec<ModelMessage<AnsweredCall>>,
}

/// How a client wants its answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerOptions {
    /// The tools that the client itself carries out.
    pub tools: Vec<ToolSpec>,
    pub tool_choice: ToolChoice,
    /// `Some(false)` if the model may make at most one call in a message.
    pub parallel_tool_calls: Option<bool>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// The maximum number of tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Texts at which the answer ends.
    pub stop_sequences: Vec<String>,
    pub format: AnswerFormat,
    /// How hard the model is asked to think: the word of the client, such as `low`.
    pub reasoning_effort: Option<String>,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    None,
    /// Any tool, but at least one.
    Required,
    /// The tool of this name.
    Named(String),
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum AnswerFormat {
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    JsonSchema {
        name: String,
        description: Option<String>,
        schema: Arc<Value>,
        strict: Option<bool>,
    },
}

/// How the answer to a client ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The model was done.
    Done,
    /// One of the client's stop sequences came; which one, if the provider says so.
    StopSequence(Option<String>),
    /// A length limit was reached.
    Length,
    /// The client is to carry out calls of its tools.
    Calls,
    /// A content filter cut the answer.
    Filtered,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ClientRequestProblem {
    /// The field, as `messages[2].content[0].type`.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
}
