//! The `send_message` tool: talk to an agent in a session that goes on.

use quell_kernel::ToolSpec;
use quell_protocol::ResourceKind;
use quell_scope::Cancelled;
use quell_tools::{AgentFacts, ToolArguments, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

use super::delegation::{DelegatedTask, SubRunSession, spec_with_delegates};
use super::{AgentLoop, RunTool};

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

impl RunTool for AgentMessageArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        let session = SubRunSession::Conversation;
        // waits: for the sub-run, raced in `delegate`.
        run.delegate(DelegatedTask { agent: &self.to, text: self.text, session, waits_for_end: true }).await
    }
}
