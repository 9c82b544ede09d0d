//! The `send_message` tool: talk to an agent in a session that goes on.

use quell_kernel::ToolSpec;
use quell_protocol::ResourceKind;
use quell_tools::{
    AgentFacts, Tool, ToolArguments, ToolContext, ToolDefinition, ToolFuture, ToolOutput, parse_arguments,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::AgentLoop;
use super::delegation::{DelegationRequest, SubRunSession, spec_with_delegates};

/// Arguments of `send_message`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentMessageArgs {
    /// The agent's name.
    to: String,
    /// The message.
    text: String,
}

impl ToolArguments for AgentMessageArgs {
    const NAME: &'static str = "send_message";
    const ABOUT: &'static str = "Sends a message to another agent and returns its answer. The agent remembers what this conversation told it before.";
    const EXAMPLE: &'static str = r#"{"to": "main", "text": "Which of the two did you choose?"}"#;
    const RESOURCE_KIND: ResourceKind = ResourceKind::Run;

    fn spec_for(agent: &AgentFacts<'_>) -> Option<ToolSpec> {
        spec_with_delegates::<Self>("to", agent)
    }
}

/// The `send_message` tool.
pub(super) struct SendMessage<'r> {
    pub(super) run: &'r AgentLoop<'r>,
}

impl Tool for SendMessage<'_> {
    fn definition(&self) -> ToolDefinition<'_> {
        ToolDefinition::of::<AgentMessageArgs>()
    }

    fn call<'c>(&'c self, arguments: &'c Value, _: &'c mut ToolContext<'_>) -> ToolFuture<'c> {
        Box::pin(async move {
            let args: AgentMessageArgs = match parse_arguments(arguments) {
                Ok(args) => args,
                Err(problem) => return Ok(ToolOutput::error(problem)),
            };
            let request = DelegationRequest {
                agent: args.to,
                text: args.text,
                session: SubRunSession::Conversation,
                waits_for_end: true,
            };
            // waits: for the sub-run, raced in `delegate`.
            self.run.delegate(request).await
        })
    }
}
