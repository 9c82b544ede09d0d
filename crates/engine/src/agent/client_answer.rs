//! What an agent does differently for a client of a model API: the client's instructions, limits and tools.

use std::borrow::Cow;

use quell_kernel::client_request::{AnswerEnd, AnswerOptions, ThinkingChoice, ThinkingMode, ToolChoice};
use quell_kernel::turn::{ToolCall, TurnDraft};
use quell_scope::Cancelled;

use super::AgentLoop;
use crate::live_run::ClientAnswer;

impl AgentLoop<'_> {
    /// The prompt of the agent, and what the client's system says.
    pub(super) fn system_prompt(&self) -> Cow<'_, str> {
        let own = self.agent.system_prompt.as_str();
        match self.client.map(|client| client.instructions.as_str()).filter(|text| !text.trim().is_empty()) {
            None => own.into(),
            Some(instructions) if own.trim().is_empty() => instructions.into(),
            Some(instructions) => format!("{own}\n\n{instructions}").into(),
        }
    }

    /// How the agent and the client want the answer. The smaller limit counts.
    pub(super) fn answer_options(&self, draft: &TurnDraft) -> AnswerOptions {
        let own = self.agent.config.answer_options();
        let Some(client) = self.client else { return own };
        AnswerOptions {
            temperature: client.answer.temperature.or(own.temperature),
            max_tokens: [own.max_tokens, client.answer.max_tokens].into_iter().flatten().min(),
            tool_choice: match &client.answer.tool_choice {
                // Demanded of every message, a call would never let the agent answer.
                ToolChoice::Required | ToolChoice::Named(_) if draft.message_count() > client.continuation.len() => {
                    ToolChoice::Auto
                }
                choice => choice.clone(),
            },
            ..client.answer.clone()
        }
    }

    /// How the model is asked to think: as the client says, or as the agent does.
    pub(super) fn thinking_mode(&self) -> Option<ThinkingMode> {
        let of_client = self.client.map_or(ThinkingChoice::Unspecified, |client| client.answer.thinking);
        of_client.mode_or(self.agent.config.thinking_mode().filter(|_| self.model().supports_thinking()))
    }

    /// True for a call of a tool that the client carries out itself. The agent's own tools come first.
    pub(super) fn is_call_for_client(&self, call: &ToolCall) -> bool {
        self.client.is_some_and(|client| client.has_tool(&call.tool)) && self.find_tool(call).is_none()
    }

    /// Ends the answer to the client, with the calls that it carries out. Does nothing in other runs.
    pub(super) fn end_client_answer(&self, calls: Vec<ToolCall>) -> Result<(), Cancelled> {
        if self.client.is_none() {
            return Ok(());
        }
        let end = if calls.is_empty() { AnswerEnd::Done } else { AnswerEnd::Calls };
        Ok(self.writer.record_client_answer(ClientAnswer { end, calls, model: self.model().name().to_owned() })?)
    }
}
