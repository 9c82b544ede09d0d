//! Interpret a model's answer: tool calls, the end of the run, or a failure; validate call arguments. An answer that
//! was truncated or refused does not count: its text stays in the draft as partial text, and its calls are dropped.

use quell_kernel::json_size::exceeds_value_count;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{CODE_REFUSED, CallResult, ModelMessage, ToolCall};
use quell_llm::{FinishReason, ModelAnswer, ModelError, RawCall};
use quell_protocol::CallEnd;
use quell_scope::Cancelled;

use super::AgentLoop;

/// Outcome of the model call of a step.
pub(super) enum ModelStepOutcome {
    Calls(Vec<ToolCall>),
    Finished,
    Failed { code: String, message: String },
}

impl AgentLoop<'_> {
    pub(super) fn process_answer(&self, answer: ModelAnswer) -> Result<ModelStepOutcome, Cancelled> {
        if let Some(unusable) = find_unusable_answer(&answer) {
            let message = format!("the model {} {}", self.model().name(), unusable.problem);
            return Ok(ModelStepOutcome::Failed { code: unusable.code.to_owned(), message });
        }
        let paused = answer.finish_reason == FinishReason::Paused;
        let model = Some(self.model().name().to_owned());
        let calls = self.writer.finish_message(ModelMessage { model, ..answer.message.map_calls(parse_raw_call) })?;
        // A model that paused is called again, without a tool call in between.
        Ok(if calls.is_empty() && !paused { ModelStepOutcome::Finished } else { ModelStepOutcome::Calls(calls) })
    }
}

pub(super) struct UnusableAnswer {
    code: &'static str,
    /// What the model did, and what a person can do about it.
    pub(super) problem: &'static str,
}

/// Why an answer is unusable; `None` if it is usable.
#[must_use]
pub fn unusable_answer_reason(answer: &ModelAnswer) -> Option<&'static str> {
    find_unusable_answer(answer).map(|unusable| unusable.problem)
}

/// `None` if the answer is usable.
pub(super) fn find_unusable_answer(answer: &ModelAnswer) -> Option<UnusableAnswer> {
    let (code, problem) = match answer.finish_reason {
        FinishReason::Length => (
            "truncated",
            "did not finish its answer, because it reached its length limit; raise max_tokens of the agent, or ask for less",
        ),
        FinishReason::ContentFilter => (CODE_REFUSED, "refused to answer; say it in another way, or try another model"),
        FinishReason::Stop
        | FinishReason::StopSequence(_)
        | FinishReason::ToolCalls
        | FinishReason::Paused
        | FinishReason::Other(_)
            if !answer.message.has_content() =>
        {
            (
                "empty_answer",
                "ended its answer without text and without tool calls; send the message again, or try another model",
            )
        }
        FinishReason::Stop
        | FinishReason::StopSequence(_)
        | FinishReason::ToolCalls
        | FinishReason::Paused
        | FinishReason::Other(_) => return None,
    };
    Some(UnusableAnswer { code, problem })
}

pub(super) fn model_failure(error: &ModelError) -> ModelStepOutcome {
    ModelStepOutcome::Failed { code: error.code().to_owned(), message: error.to_string() }
}

/// The most bytes that the turn of one run may have. It is held in memory, sent to the model with each step, and
/// stored.
pub(super) const MAX_TURN_BYTES: usize = 16 * 1024 * 1024;

pub(super) fn turn_too_large() -> WorkOutcome {
    let message = format!(
        "this run has collected more than {MAX_TURN_BYTES} bytes of messages, calls and results; what it did is kept: send \
         another message to go on"
    );
    WorkOutcome::Failed { code: "turn_too_large".to_owned(), message }
}

/// The most JSON values in the arguments of one call.
const MAX_ARGUMENT_VALUES: usize = 20_000;
/// Bytes of invalid arguments that are shown to the model.
const MAX_SHOWN_ARGUMENT_BYTES: usize = 2 * 1024;

/// Invalid arguments are stored under this key, so that the history stays valid.
const INVALID_ARGUMENTS_KEY: &str = "invalid_json";

pub(super) fn parse_raw_call(raw: RawCall) -> ToolCall {
    let text = if raw.arguments.trim().is_empty() { "{}" } else { raw.arguments.as_str() };
    let parsed = (!exceeds_value_count(text.as_bytes(), MAX_ARGUMENT_VALUES)).then(|| serde_json::from_str(text));
    let arguments = match parsed {
        Some(Ok(value @ serde_json::Value::Object(_))) => value,
        Some(Ok(_) | Err(_)) | None => serde_json::json!({ INVALID_ARGUMENTS_KEY: raw.arguments }),
    };
    ToolCall::from_wire(raw.id.as_deref().unwrap_or_default(), raw.name, arguments)
}

pub(super) fn invalid_arguments_result(call: &ToolCall) -> Option<CallResult> {
    let raw = call.arguments.get(INVALID_ARGUMENTS_KEY)?;
    let mut raw = raw.to_string();
    raw.truncate(raw.floor_char_boundary(MAX_SHOWN_ARGUMENT_BYTES));
    let tool = &call.tool;
    let output = format!(
        "the arguments are not a JSON object, or hold more than {MAX_ARGUMENT_VALUES} values: {raw}; call {tool} again with valid JSON"
    );
    Some(CallResult::new(CallEnd::Error, output))
}
