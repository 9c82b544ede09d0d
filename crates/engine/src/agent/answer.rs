//! What a model's answer means for its run: calls to carry out, the end, or a failure. An answer that was cut or refused is
//! none: its text stays what it is, cut text, and none of its calls enters the draft.

use quell_kernel::json::holds_more_values;
use quell_kernel::run::Outcome;
use quell_kernel::turn::{CallResult, Message, REFUSED, ToolCall};
use quell_protocol::CallEnd;

use super::Job;
use crate::llm::{Finish, ModelAnswer, ModelError, RawCall};
use crate::scope::Cancelled;

/// What came of a step's model call.
pub(super) enum Answered {
    Calls(Vec<ToolCall>),
    Done,
    Failed { code: String, message: String },
}

impl Job<'_> {
    pub(super) fn take_answer(&self, answer: ModelAnswer) -> Result<Answered, Cancelled> {
        if let Some(unusable) = unusable(&answer) {
            let message = format!("the model {} {}", self.agent.model.name(), unusable.problem);
            return Ok(Answered::Failed { code: unusable.code.to_owned(), message });
        }
        let paused = answer.finish == Finish::Paused;
        let model = Some(self.agent.model.name().to_owned());
        let calls = self.pen.finish_message(Message { model, ..answer.message.map_calls(tool_call) })?;
        // A model that paused is asked to go on, with no call in between.
        Ok(if calls.is_empty() && !paused { Answered::Done } else { Answered::Calls(calls) })
    }
}

/// Why an answer does not count.
pub(super) struct Unusable {
    code: &'static str,
    /// What the model did, and what a person can do about it.
    pub(super) problem: &'static str,
}

/// What is wrong with an answer; none for one that counts.
#[must_use]
pub fn unusable_because(answer: &ModelAnswer) -> Option<&'static str> {
    unusable(answer).map(|unusable| unusable.problem)
}

/// None for an answer that counts.
pub(super) fn unusable(answer: &ModelAnswer) -> Option<Unusable> {
    let (code, problem) = match answer.finish {
        Finish::Length => (
            "truncated",
            "did not finish its answer, because it ran into its bound of length; raise max_tokens of the agent, or ask for less",
        ),
        Finish::ContentFilter => (REFUSED, "refused to answer; say it in another way, or try another model"),
        Finish::Stop | Finish::ToolCalls | Finish::Paused | Finish::Other(_) if !answer.message.says_something() => (
            "empty_answer",
            "ended its answer without text and without tool calls; send the message again, or try another model",
        ),
        Finish::Stop | Finish::ToolCalls | Finish::Paused | Finish::Other(_) => return None,
    };
    Some(Unusable { code, problem })
}

pub(super) fn failed(error: &ModelError) -> Answered {
    Answered::Failed { code: error.code().to_owned(), message: error.to_string() }
}

/// The most that one run may collect. It is held in memory, sent to the model with each step, and stored.
pub(super) const MAX_TURN_BYTES: usize = 16 * 1024 * 1024;

/// The run has collected more than it may.
pub(super) fn too_large() -> Outcome {
    let message = format!(
        "this run has collected more than {MAX_TURN_BYTES} bytes of messages, calls and results; what it did is kept: send \
         another message to go on"
    );
    Outcome::Failed { code: "turn_too_large".to_owned(), message }
}

/// Values that the arguments of one call may hold.
const MAX_VALUES: usize = 20_000;
/// Bytes of arguments that cannot be used which the model is shown again.
const SHOWN: usize = 2 * 1024;

/// The key under which arguments that are no JSON object stand in a call, so that the history stays valid.
const INVALID: &str = "invalid_json";

fn tool_call(raw: RawCall) -> ToolCall {
    let text = if raw.arguments.trim().is_empty() { "{}" } else { raw.arguments.as_str() };
    let parsed = (!holds_more_values(text.as_bytes(), MAX_VALUES)).then(|| serde_json::from_str(text));
    let arguments = match parsed {
        Some(Ok(value @ serde_json::Value::Object(_))) => value,
        Some(Ok(_) | Err(_)) | None => serde_json::json!({ INVALID: raw.arguments }),
    };
    ToolCall::from_wire(raw.id.as_deref().unwrap_or_default(), raw.name, arguments)
}

pub(super) fn invalid_arguments(call: &ToolCall) -> Option<CallResult> {
    let raw = call.arguments.get(INVALID)?;
    let mut raw = raw.to_string();
    raw.truncate(raw.floor_char_boundary(SHOWN));
    let tool = &call.tool;
    let output = format!(
        "the arguments are not a JSON object, or hold more than {MAX_VALUES} values: {raw}; call {tool} again with valid JSON"
    );
    Some(CallResult::new(CallEnd::Error, output))
}
