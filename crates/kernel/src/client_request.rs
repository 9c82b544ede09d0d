//! A request that a client made in the wire format of a model provider, in neutral form.
//!
//! The conversation comes with the request instead of from a session. What the neutral form cannot express is a
//! [`ClientRequestProblem`] that names it; nothing is left out silently.

pub mod anthropic;
mod conversation;
mod fields;
pub mod openai_chat;
pub mod openai_responses;
#[cfg(test)]
mod samples;
mod tools;

use std::sync::Arc;

use quell_protocol::CallEnd;
use serde_json::Value;

use crate::ToolSpec;
use crate::turn::{AnsweredCall, ModelMessage, Turn, TurnItem};
use conversation::without_markers;

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

impl ClientConversation {
    /// What is new to somebody who has the conversation up to the last answer: the results of the calls in it, and the
    /// text behind them.
    ///
    /// # Errors
    /// The conversation ends with an answer, so there is nothing to do.
    pub fn new_message(&self) -> Result<String, ClientRequestProblem> {
        let last_of_turns = || match self.turns.last().and_then(|turn| turn.items().last()) {
            Some(TurnItem::Assistant(message)) => Some(message),
            Some(TurnItem::User { .. }) | None => None,
        };
        let (answer, text) = match self.continuation.last() {
            Some(answer) => (Some(answer), None),
            None => (last_of_turns(), Some(self.text.as_str()).filter(|text| !text.is_empty())),
        };
        let results = answer.into_iter().flat_map(ModelMessage::calls).map(result_text);
        let paragraphs: Vec<String> = results.chain(text.map(str::to_owned)).collect();
        if paragraphs.is_empty() {
            let message = "the conversation ends with an answer; end it with a message of the user or results of calls";
            return Err(ClientRequestProblem::new(RequestProblemKind::Invalid, "messages", message));
        }
        Ok(paragraphs.join("\n\n"))
    }
}

/// The result of a call as a text of the user.
fn result_text(answered: &AnsweredCall) -> String {
    let AnsweredCall { call, result, .. } = answered;
    let word = if result.end == CallEnd::Error { "Error" } else { "Result" };
    let pictures: String = result.pictures.iter().map(|source| format!("\n[IMAGE:{source}]")).collect();
    format!("[{word} of the call {} of {}]\n{}{pictures}", call.id, call.tool, without_markers(&result.output))
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
    pub thinking: ThinkingChoice,
    /// Names of the tools whose arguments must match their schema exactly.
    pub strict_tools: Vec<String>,
}

/// Whether the model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThinkingChoice {
    /// An agent thinks as it is configured; in a plain model call, nothing is asked for.
    #[default]
    Unspecified,
    /// Nothing is asked for, whatever the agent's configuration says.
    Off,
    On(ThinkingMode),
}

impl ThinkingChoice {
    /// What the model is asked for, if `configured` is what it is asked for without a choice.
    #[must_use]
    pub fn mode_or(self, configured: Option<ThinkingMode>) -> Option<ThinkingMode> {
        match self {
            Self::Unspecified => configured,
            Self::Off => None,
            Self::On(mode) => Some(mode),
        }
    }
}

/// How a model is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingMode {
    /// The model decides how much. Newer models support only this.
    Adaptive,
    /// Up to this many tokens of the answer. Older models support only this.
    Tokens(u32),
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
#[error("`{field}`: {message}")]
pub struct ClientRequestProblem {
    pub kind: RequestProblemKind,
    /// The field, as `messages[2].content[0].type`.
    pub field: String,
    /// What is wrong, and what to do. It does not name the field.
    pub message: String,
}

/// The class of a problem, for formats that have a code for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestProblemKind {
    /// A field is missing.
    Missing,
    /// A value has the wrong type, is out of range, or does not fit to other values.
    Invalid,
    /// The format has no such field.
    UnknownField,
    /// The format has it; Quell cannot pass it to every provider.
    Unsupported,
}

impl ClientRequestProblem {
    pub(crate) fn new(kind: RequestProblemKind, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, field: field.into(), message: message.into() }
    }
}
