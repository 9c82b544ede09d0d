//! The tools `spawn_agent` and `send_message`, which start sub-runs of other agents.

use std::sync::Arc;

use quell_kernel::permissions::RunPermissions;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::{AgentId, StopReason, Verdict};
use quell_scope::{Cancelled, Point};
use quell_tools::ToolOutput;
use quell_tools::arguments::{self, ToolArguments};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Agent, AgentLoop, AgentSnapshot, build_agent_tree};
use crate::live_run::{LiveRun, RunProgress};
use quell_kernel::ToolSpec;

/// A sub-run as its parent requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubRunRequest {
    pub agent: AgentId,
    pub text: String,
    pub session: SubRunSession,
    /// Whether the parent waits for its end; otherwise it runs in the background of the session.
    pub waits_for_end: bool,
    /// Upper bound of its permissions.
    pub max_permissions: RunPermissions,
}

/// The session of a sub-run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubRunSession {
    /// A new session for this sub-run only.
    New,
    /// The session in which the caller's session talks to that agent; its history stays.
    Conversation,
}

#[derive(Debug)]
pub struct StartedSubRun {
    pub live_run: Arc<LiveRun>,
}

/// Arguments of `spawn_agent`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SpawnAgentToolArgs {
    /// The agent's name.
    agent: String,
    /// What it is to do. It knows nothing of this conversation, so say everything that it needs.
    prompt: String,
    /// Whether to wait for its answer; true if absent. Otherwise it works in the background, and you get its answer in
    /// one of your next steps or messages.
    #[serde(default)]
    wait: Option<bool>,
}

impl ToolArguments for SpawnAgentToolArgs {
    const NAME: &'static str = "spawn_agent";
    const ABOUT: &'static str = "Gives a task to an agent in a conversation of its own and returns its answer.";
    const EXAMPLE: &'static str = r#"{"agent": "main", "prompt": "Count the lines of all files in ./src."}"#;
}

/// Arguments of `send_message`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendMessageToolArgs {
    /// The agent's name.
    to: String,
    /// The message.
    text: String,
}

impl ToolArguments for SendMessageToolArgs {
    const NAME: &'static str = "send_message";
    const ABOUT: &'static str = "Sends a message to another agent and returns its answer. The agent remembers what this conversation told it before.";
    const EXAMPLE: &'static str = r#"{"to": "main", "text": "Which of the two did you choose?"}"#;
}

/// Names of the tools of this file.
pub(super) const DELEGATION_TOOL_NAMES: [&str; 2] = [SpawnAgentToolArgs::NAME, SendMessageToolArgs::NAME];

/// The existing agents to which an agent may delegate work.
fn allowed_delegates<'r>(snapshot: &'r AgentSnapshot, agent: &Agent) -> Vec<&'r AgentId> {
    build_agent_tree(snapshot).delegates(&agent.id, agent.config.delegates.as_deref())
}

/// The tools of this file for the model of an agent, with the agents to which it may delegate; empty if there are none.
pub(super) fn delegation_tool_specs(snapshot: &AgentSnapshot, agent: &Agent) -> Arc<[ToolSpec]> {
    let delegates = allowed_delegates(snapshot, agent);
    if delegates.is_empty() {
        return Arc::default();
    }
    let describe_agent = |id: &&AgentId| match snapshot.get(*id).and_then(|agent| agent.config.role.as_ref()) {
        Some(role) => format!("{id} ({role})"),
        None => id.to_string(),
    };
    let agent_list = delegates.iter().map(describe_agent).collect::<Vec<String>>().join(", ");
    let with_agents = |(spec, argument): (ToolSpec, &str)| {
        let description = format!("{} The agents that you may give work to are: {agent_list}.", spec.description);
        let mut parameters = Value::clone(&spec.parameters);
        if let Some(property) =
            parameters.pointer_mut(&format!("/properties/{argument}")).and_then(Value::as_object_mut)
        {
            property.insert("enum".to_owned(), delegates.iter().map(|id| Value::from(id.as_str())).collect());
        }
        ToolSpec { name: spec.name, description, parameters: parameters.into() }
    };
    let tools = [
        (arguments::tool_spec::<SpawnAgentToolArgs>(), "agent"),
        (arguments::tool_spec::<SendMessageToolArgs>(), "to"),
    ];
    tools.into_iter().map(with_agents).collect()
}

impl AgentLoop<'_> {
    /// Calls a tool of this file; `None` if `tool` is another one.
    pub(super) async fn call_delegation_tool(
        &self,
        tool: &str,
        raw_arguments: &Value,
    ) -> Option<Result<ToolOutput, Cancelled>> {
        let request = match tool {
            SpawnAgentToolArgs::NAME => {
                arguments::parse_arguments::<SpawnAgentToolArgs>(raw_arguments).map(|args| DelegationRequest {
                    agent: args.agent,
                    text: args.prompt,
                    session: SubRunSession::New,
                    waits_for_end: args.wait.unwrap_or(true),
                })
            }
            SendMessageToolArgs::NAME => {
                arguments::parse_arguments::<SendMessageToolArgs>(raw_arguments).map(|args| DelegationRequest {
                    agent: args.to,
                    text: args.text,
                    session: SubRunSession::Conversation,
                    waits_for_end: true,
                })
            }
            _ => return None,
        };
        Some(match request.and_then(|request| self.check_delegation(request)) {
            Ok(request) => self.run_delegated_task(request).await,
            Err(problem) => Ok(ToolOutput::error(problem)),
        })
    }

    fn check_delegation(&self, request: DelegationRequest) -> Result<SubRunRequest, String> {
        let snapshot = self.services.agents.snapshot();
        let delegates = allowed_delegates(&snapshot, self.agent);
        let Some(agent) = delegates.iter().find(|id| id.as_str() == request.agent).map(|id| (*id).clone()) else {
            return Err(not_a_delegate_message(&request.agent, &delegates));
        };
        if request.text.trim().is_empty() {
            return Err("The text is empty. Say what the agent is to do.".to_owned());
        }
        let max_permissions = self.agent.permissions();
        Ok(SubRunRequest {
            agent,
            text: request.text,
            session: request.session,
            waits_for_end: request.waits_for_end,
            max_permissions,
        })
    }

    async fn run_delegated_task(&self, request: SubRunRequest) -> Result<ToolOutput, Cancelled> {
        let (agent, waits_for_end) = (request.agent.clone(), request.waits_for_end);
        let child = match self.scope.race(Point::StartSubRun, self.control.start_sub_run(request)).await? {
            Ok(child) => child,
            Err(refusal) => return Ok(ToolOutput::error(format!("The agent {agent} was not started: {refusal}."))),
        };
        if !waits_for_end {
            let run = child.live_run.id();
            return Ok(ToolOutput::ok(format!(
                "The agent {agent} works in the background as run {run}. You will be told of its answer."
            )));
        }
        self.scope.race(Point::SubRun, child.live_run.wait_for_progress(RunProgress::Ended)).await?;
        let text = describe_sub_run_outcome(&child.live_run, " Do not start it again in this turn.");
        Ok(match child.live_run.verdict() {
            Some(Verdict::Completed) => ToolOutput::ok(text),
            Some(Verdict::Failed { .. } | Verdict::Aborted { .. }) | None => ToolOutput::error(text),
        })
    }
}

fn not_a_delegate_message(asked: &str, delegates: &[&AgentId]) -> String {
    if delegates.is_empty() {
        return "You may give work to no agent. Do the work yourself, or say that you cannot.".to_owned();
    }
    let names: Vec<&str> = delegates.iter().map(|id| id.as_str()).collect();
    format!(
        "{asked:?} is no agent that you may give work to. You may give work to: {}. Do the work yourself, or say that you cannot.",
        names.join(", ")
    )
}

struct DelegationRequest {
    agent: String,
    text: String,
    session: SubRunSession,
    waits_for_end: bool,
}

/// The outcome of a sub-run as text for a model.
#[must_use]
pub fn sub_run_report(child: &LiveRun) -> String {
    describe_sub_run_outcome(child, "")
}

/// The outcome of a sub-run as text; `advice` is added if a person stopped it.
fn describe_sub_run_outcome(child: &LiveRun, advice: &str) -> String {
    let (agent, output) = (&child.run.agent, child.view().output);
    match child.verdict() {
        Some(Verdict::Completed) => output.unwrap_or_default(),
        Some(Verdict::Failed { message, .. }) => format!("The agent {agent} failed: {message}."),
        Some(Verdict::Aborted { reason, by }) => {
            let stopped_by =
                by.map_or_else(|| format!("{}.", stop_reason_text(&reason)), |_| format!("by a person.{advice}"));
            // Partial output that its own model would not see is hidden from other models, too.
            let partial_output = output.filter(|_| child.partial_policy == PartialPolicy::Keep);
            let partial_note = partial_output.map(|said| format!(" What it had said until then is no answer:\n{said}"));
            format!(
                "The agent {agent} was stopped {stopped_by} Side effects are possible.{}",
                partial_note.unwrap_or_default()
            )
        }
        None => format!("The agent {agent} did not start."),
    }
}

fn stop_reason_text(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::Timeout => "because its time was used up",
        StopReason::Steps => "because its steps were used up",
        StopReason::Tokens => "because its tokens were used up",
        StopReason::DailyLimit => "because what it may spend in a day was used up",
        StopReason::Shutdown | StopReason::DaemonStopped => "because the service was shut down",
        StopReason::User
        | StopReason::Command
        | StopReason::Superseded
        | StopReason::Disconnect
        | StopReason::Other(_) => "before it was finished",
    }
}
