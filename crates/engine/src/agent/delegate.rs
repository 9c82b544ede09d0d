//! Handing work to other agents: the tools `spawn_agent` and `send_message`. Each makes a run whose parent is the caller's.

use std::sync::Arc;

use quell_kernel::rights::Rights;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::{AgentId, StopReason, Verdict};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Agent, Job, Roll, tree_of};
use crate::cell::{Cell, Progress};
use crate::llm::ToolSpec;
use crate::scope::{Cancelled, Point};
use crate::tools::ToolOutput;
use crate::tools::arguments::{self, Arguments};

/// A sub-run as its parent asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildOrder {
    /// The agent that is to run.
    pub agent: AgentId,
    /// Its message.
    pub text: String,
    /// Where it runs.
    pub place: ChildPlace,
    /// Whether the parent waits for its end; else it goes on by itself, as the session's.
    pub waits: bool,
    /// What it may do at the most.
    pub ceiling: Rights,
}

/// The session of a sub-run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildPlace {
    /// One of its own that nobody else uses.
    Fresh,
    /// The one in which the caller's session talks to that agent; it remembers.
    Conversation,
}

/// A sub-run that was let in.
#[derive(Debug)]
pub struct Child {
    /// Its cell.
    pub cell: Arc<Cell>,
}

/// Arguments of `spawn_agent`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SpawnArgs {
    /// The agent's name.
    agent: String,
    /// What it is to do. It knows nothing of this conversation, so say everything that it needs.
    prompt: String,
    /// Whether to wait for its answer; true when absent. Without waiting it works in the background, and you are told of
    /// its answer in one of your next steps or messages.
    #[serde(default)]
    wait: Option<bool>,
}

impl Arguments for SpawnArgs {
    const NAME: &'static str = "spawn_agent";
    const ABOUT: &'static str = "Gives a task to an agent in a conversation of its own and returns its answer.";
    const EXAMPLE: &'static str = r#"{"agent": "main", "prompt": "Count the lines of all files in ./src."}"#;
}

/// Arguments of `send_message`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendArgs {
    /// The agent's name.
    to: String,
    /// The message.
    text: String,
}

impl Arguments for SendArgs {
    const NAME: &'static str = "send_message";
    const ABOUT: &'static str = "Sends a message to another agent and returns its answer. The agent remembers what this conversation told it before.";
    const EXAMPLE: &'static str = r#"{"to": "main", "text": "Which of the two did you choose?"}"#;
}

/// Names of the tools of this file.
pub(super) const NAMES: [&str; 2] = [SpawnArgs::NAME, SendArgs::NAME];

/// The agents that exist and that one may give work to.
fn delegates_of<'r>(roll: &'r Roll, agent: &Agent) -> Vec<&'r AgentId> {
    tree_of(roll).delegates(&agent.id, agent.config.delegates.as_deref())
}

/// This file's tools as the model of an agent sees them, with the agents that it may give work to; none when there are none.
pub(super) fn delegation_specs(roll: &Roll, agent: &Agent) -> Arc<[ToolSpec]> {
    let delegates = delegates_of(roll, agent);
    if delegates.is_empty() {
        return Arc::default();
    }
    let named = |id: &&AgentId| match roll.get(*id).and_then(|agent| agent.config.role.as_ref()) {
        Some(role) => format!("{id} ({role})"),
        None => id.to_string(),
    };
    let told = delegates.iter().map(named).collect::<Vec<String>>().join(", ");
    let with_agents = |(spec, argument): (ToolSpec, &str)| {
        let description = format!("{} The agents that you may give work to are: {told}.", spec.description);
        let mut parameters = Value::clone(&spec.parameters);
        if let Some(property) =
            parameters.pointer_mut(&format!("/properties/{argument}")).and_then(Value::as_object_mut)
        {
            property.insert("enum".to_owned(), delegates.iter().map(|id| Value::from(id.as_str())).collect());
        }
        ToolSpec { name: spec.name, description, parameters: parameters.into() }
    };
    let tools = [(arguments::spec::<SpawnArgs>(), "agent"), (arguments::spec::<SendArgs>(), "to")];
    tools.into_iter().map(with_agents).collect()
}

impl Job<'_> {
    /// Calls a tool of this file; none when `tool` is not one.
    pub(super) async fn delegate(&self, tool: &str, given: &Value) -> Option<Result<ToolOutput, Cancelled>> {
        let order = match tool {
            SpawnArgs::NAME => arguments::parse::<SpawnArgs>(given).map(|args| Order {
                agent: args.agent,
                text: args.prompt,
                place: ChildPlace::Fresh,
                waits: args.wait.unwrap_or(true),
            }),
            SendArgs::NAME => arguments::parse::<SendArgs>(given).map(|args| Order {
                agent: args.to,
                text: args.text,
                place: ChildPlace::Conversation,
                waits: true,
            }),
            _ => return None,
        };
        Some(match order.and_then(|order| self.checked(order)) {
            Ok(order) => self.hand_out(order).await,
            Err(problem) => Ok(ToolOutput::error(problem)),
        })
    }

    fn checked(&self, order: Order) -> Result<ChildOrder, String> {
        let roll = self.workshop.society.roll();
        let delegates = delegates_of(&roll, self.agent);
        let Some(agent) = delegates.iter().find(|id| id.as_str() == order.agent).map(|id| (*id).clone()) else {
            return Err(not_a_delegate(&order.agent, &delegates));
        };
        if order.text.trim().is_empty() {
            return Err("The text is empty. Say what the agent is to do.".to_owned());
        }
        let ceiling = self.agent.rights();
        Ok(ChildOrder { agent, text: order.text, place: order.place, waits: order.waits, ceiling })
    }

    async fn hand_out(&self, order: ChildOrder) -> Result<ToolOutput, Cancelled> {
        let (agent, waits) = (order.agent.clone(), order.waits);
        let child = match self.scope.race(Point::StartSubRun, self.reins.start_child(order)).await? {
            Ok(child) => child,
            Err(refusal) => return Ok(ToolOutput::error(format!("The agent {agent} was not started: {refusal}."))),
        };
        if !waits {
            let run = child.cell.id();
            return Ok(ToolOutput::ok(format!(
                "The agent {agent} works in the background as run {run}. You will be told of its answer."
            )));
        }
        self.scope.race(Point::SubRun, child.cell.reached(Progress::Ended)).await?;
        let text = told_of(&child.cell, " Do not start it again in this turn.");
        Ok(match child.cell.verdict() {
            Some(Verdict::Completed) => ToolOutput::ok(text),
            Some(Verdict::Failed { .. } | Verdict::Aborted { .. }) | None => ToolOutput::error(text),
        })
    }
}

fn not_a_delegate(asked: &str, delegates: &[&AgentId]) -> String {
    if delegates.is_empty() {
        return "You may give work to no agent. Do the work yourself, or say that you cannot.".to_owned();
    }
    let names: Vec<&str> = delegates.iter().map(|id| id.as_str()).collect();
    format!(
        "{asked:?} is no agent that you may give work to. You may give work to: {}. Do the work yourself, or say that you cannot.",
        names.join(", ")
    )
}

struct Order {
    agent: String,
    text: String,
    place: ChildPlace,
    waits: bool,
}

/// What came of a sub-run, for a model that reads it later.
#[must_use]
pub fn report_of(child: &Cell) -> String {
    told_of(child, "")
}

/// What came of a sub-run; `advice` follows the news that a person stopped it.
fn told_of(child: &Cell, advice: &str) -> String {
    let (agent, output) = (&child.run.agent, child.view().output);
    match child.verdict() {
        Some(Verdict::Completed) => output.unwrap_or_default(),
        Some(Verdict::Failed { message, .. }) => format!("The agent {agent} failed: {message}."),
        Some(Verdict::Aborted { reason, by }) => {
            let by = by.map_or_else(|| format!("{}.", because(&reason)), |_| format!("by a person.{advice}"));
            // Where its own model would not see it, no other one does.
            let said = output.filter(|_| child.policy == PartialPolicy::Keep);
            let said = said.map(|said| format!(" What it had said until then is no answer:\n{said}"));
            format!("The agent {agent} was stopped {by} Side effects are possible.{}", said.unwrap_or_default())
        }
        None => format!("The agent {agent} did not start."),
    }
}

fn because(reason: &StopReason) -> &'static str {
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
