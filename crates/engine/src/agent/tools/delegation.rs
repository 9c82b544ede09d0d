//! Delegation of work to other agents by the tools `spawn_agent` and `send_message`: sub-runs.

use quell_kernel::permissions::RunPermissions;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::{AgentId, StopReason, Verdict};
use quell_scope::{Cancelled, Point};
use quell_tools::{AgentFacts, Delegate, ToolArguments, ToolOutput, tool_spec};
use serde_json::Value;

use crate::agent::{Agent, AgentLoop, AgentSnapshot, build_agent_tree};
use crate::live_run::{LiveRun, RunProgress};
use quell_kernel::ToolSpec;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubRunRequest {
    pub agent: AgentId,
    pub text: String,
    pub session: SubRunSession,
    /// Whether the parent waits for its end; otherwise it runs in the background of the session.
    pub waits_for_end: bool,
    pub max_permissions: RunPermissions,
}

/// A call's request, before it is checked.
pub(super) struct DelegatedTask<'a> {
    pub(super) agent: &'a str,
    pub(super) text: String,
    pub(super) session: SubRunSession,
    pub(super) waits_for_end: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubRunSession {
    /// A new session for this sub-run only.
    New,
    /// The session in which the caller's session talks to that agent; its history stays.
    Conversation,
}

/// The existing agents to which an agent may delegate work.
fn allowed_delegates<'r>(snapshot: &'r AgentSnapshot, agent: &Agent) -> Vec<&'r AgentId> {
    build_agent_tree(snapshot).delegates(&agent.id, agent.config.delegates.as_deref())
}

/// The existing agents to which an agent may delegate work, with their roles.
pub(super) fn delegates<'r>(snapshot: &'r AgentSnapshot, agent: &Agent) -> Vec<Delegate<'r>> {
    let role_of = |id| snapshot.get(id).and_then(|delegate| delegate.config.role.as_deref());
    allowed_delegates(snapshot, agent).into_iter().map(|id| Delegate { id, role: role_of(id) }).collect()
}

/// The description of a delegation tool with the agents to which an agent may delegate, which are the values of
/// `argument`. None if there are no such agents.
pub(super) fn spec_with_delegates<T: ToolArguments>(argument: &str, agent: &AgentFacts<'_>) -> Option<ToolSpec> {
    if agent.delegates.is_empty() {
        return None;
    }
    let describe_delegate = |delegate: &Delegate<'_>| match delegate.role {
        Some(role) => format!("{} ({role})", delegate.id),
        None => delegate.id.to_string(),
    };
    let agent_list = agent.delegates.iter().map(describe_delegate).collect::<Vec<String>>().join(", ");
    let spec = tool_spec::<T>();
    let description = format!("{} The agents that you may give work to are: {agent_list}.", spec.description);
    let mut parameters = Value::clone(&spec.parameters);
    if let Some(property) = parameters.pointer_mut(&format!("/properties/{argument}")).and_then(Value::as_object_mut) {
        let ids = agent.delegates.iter().map(|delegate| Value::from(delegate.id.as_str()));
        property.insert("enum".to_owned(), ids.collect());
    }
    Some(ToolSpec { description, parameters: parameters.into(), ..spec })
}

impl AgentLoop<'_> {
    /// Starts a sub-run of the named agent for a call, and waits for its end if the call asks for that.
    pub(super) async fn delegate(&self, task: DelegatedTask<'_>) -> Result<ToolOutput, Cancelled> {
        let DelegatedTask { agent, text, session, waits_for_end } = task;
        let agent = match self.check_delegation(agent, &text) {
            Ok(agent) => agent,
            Err(problem) => return Ok(ToolOutput::error(problem)),
        };
        let max_permissions = self.agent.permissions();
        self.run_delegated_task(SubRunRequest { agent, text, session, waits_for_end, max_permissions }).await
    }

    fn check_delegation(&self, agent: &str, text: &str) -> Result<AgentId, String> {
        let snapshot = self.services.agents.snapshot();
        let delegates = allowed_delegates(&snapshot, self.agent);
        let Some(agent) = delegates.iter().find(|id| id.as_str() == agent).map(|id| (*id).clone()) else {
            return Err(not_a_delegate_message(agent, &delegates));
        };
        if text.trim().is_empty() {
            return Err("The text is empty. Say what the agent is to do.".to_owned());
        }
        Ok(agent)
    }

    async fn run_delegated_task(&self, request: SubRunRequest) -> Result<ToolOutput, Cancelled> {
        let (agent, waits_for_end) = (request.agent.clone(), request.waits_for_end);
        let child = match self.scope.race(Point::StartSubRun, self.control.start_sub_run(request)).await? {
            Ok(child) => child,
            Err(refusal) => return Ok(ToolOutput::error(format!("The agent {agent} was not started: {refusal}."))),
        };
        if !waits_for_end {
            let run = child.id();
            return Ok(ToolOutput::ok(format!(
                "The agent {agent} works in the background as run {run}. You will be told of its answer."
            )));
        }
        self.scope.race(Point::SubRun, child.wait_for_progress(RunProgress::Ended)).await?;
        let text = describe_sub_run_outcome(&child, " Do not start it again in this turn.");
        Ok(match child.verdict() {
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

/// The outcome of a sub-run as text for a model.
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
