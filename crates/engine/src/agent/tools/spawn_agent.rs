//! The `spawn_agent` tool: give a task to an agent in a new session.

use quell_kernel::ToolSpec;
use quell_kernel::call_batch::CallConcurrency;
use quell_protocol::ResourceKind;
use quell_scope::Cancelled;
use quell_tools::{AgentFacts, ToolArguments, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

use super::delegation::{DelegatedTask, SubRunSession, spec_with_delegates};
use super::{AgentLoop, RunTool};

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SpawnAgentArgs {
    /// The agent's name.
    agent: String,
    /// What it is to do. It knows nothing of this conversation, so say everything that it needs.
    prompt: String,
    /// Whether to wait for its answer; true if absent. Otherwise it works in the background, and you get its answer in
    /// one of your next steps or messages.
    #[serde(default)]
    wait: Option<bool>,
}

impl ToolArguments for SpawnAgentArgs {
    const NAME: &'static str = "spawn_agent";
    const ABOUT: &'static str = "Gives a task to an agent in a conversation of its own and returns its answer.";
    const EXAMPLE: &'static str = r#"{"agent": "main", "prompt": "Count the lines of all files in ./src."}"#;
    const RESOURCE_KIND: ResourceKind = ResourceKind::Run;
    const CONCURRENCY: CallConcurrency = CallConcurrency::Concurrent;

    fn spec_for(agent: &AgentFacts<'_>) -> Option<ToolSpec> {
        spec_with_delegates::<Self>("agent", agent)
    }
}

impl RunTool for SpawnAgentArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        let (session, waits_for_end) = (SubRunSession::New, self.wait.unwrap_or(true));
        // waits: for the sub-run, raced in `delegate`.
        run.delegate(DelegatedTask { agent: &self.agent, text: self.prompt, session, waits_for_end }).await
    }
}
