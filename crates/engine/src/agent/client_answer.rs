//! What an agent does differently for a client of a model API: the client's instructions, limits and tools.

use std::borrow::Cow;

use quell_kernel::client_request::AnswerEnd;
use quell_kernel::turn::ToolCall;
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

    /// The limit of an answer: the smaller one of the agent's and the client's.
    pub(super) fn max_tokens(&self) -> Option<u32> {
        let of_client = self.client.and_then(|client| client.answer.max_tokens);
        [self.agent.config.max_tokens, of_client].into_iter().flatten().min()
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
