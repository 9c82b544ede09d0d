//! What a model's answer means for its run: calls to carry out, the end, or a failure. An answer that was cut or refused is
//! none: its text stays what it is, cut text, and none of its calls enters the draft.

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

/// The key under which arguments that are no JSON object stand in a call, so that the history stays valid.
const INVALID: &str = "invalid_json";

fn tool_call(raw: RawCall) -> ToolCall {
    let text = if raw.arguments.trim().is_empty() { "{}" } else { raw.arguments.as_str() };
    let arguments = match serde_json::from_str(text) {
        Ok(value @ serde_json::Value::Object(_)) => value,
        Ok(_) | Err(_) => serde_json::json!({ INVALID: raw.arguments }),
    };
    ToolCall::from_wire(raw.id.as_deref().unwrap_or_default(), raw.name, arguments)
}

pub(super) fn invalid_arguments(call: &ToolCall) -> Option<CallResult> {
    let raw = call.arguments.get(INVALID)?;
    let output = format!("the arguments are not a JSON object: {raw}; call {} again with valid JSON", call.tool);
    Some(CallResult::new(CallEnd::Error, output))
}
