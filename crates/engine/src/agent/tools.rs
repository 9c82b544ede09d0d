//! The tools of a run: the table of all tools, and the one place where a call is dispatched.
//!
//! A name of a call leads to a tool of an MCP server, a built-in tool, or a tool of the engine. All of them implement
//! [`Tool`]; `docs/add-a-tool.md` shows how to add one.

mod delegation;
mod mcp;
mod recall;
mod remember;
mod schedules;
mod send_message;
mod spawn_agent;

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use quell_kernel::ToolSpec;
use quell_kernel::call_batch::CallConcurrency;
use quell_kernel::escalation::EscalationRight;
use quell_kernel::permissions::contains_tool;
use quell_kernel::turn::{CallResult, ToolCall};
use quell_mcp::server_of_tool;
use quell_process::OutputSink;
use quell_protocol::{CallEnd, CallId, ResourceKind, ToolOutputStream};
use quell_scope::Cancelled;
use quell_tools::background::RunIdentity;
use quell_tools::{
    AgentFacts, BUILT_IN_TOOLS, Tool, ToolArguments, ToolContext, ToolDefinition, ToolFuture, ToolOutput, call_tool,
    parse_arguments,
};
use serde_json::Value;

use super::escalation::PlannedCall;
use super::{Agent, AgentLoop, AgentSnapshot};
use crate::live_run::RunWriter;
pub use delegation::{SubRunRequest, SubRunSession, sub_run_report};
use recall::RecallArgs;
use remember::RememberArgs;
use schedules::{CronAddArgs, CronListArgs, CronRemoveArgs};
use send_message::AgentMessageArgs;
use spawn_agent::SpawnAgentArgs;

/// The tool name for sending the files that an answer in a chat names. It is not a real tool: the model writes file
/// markers.
pub const SEND_FILE: &str = "send_file";

/// The tool that makes schedules.
pub const CRON_ADD: &str = CronAddArgs::NAME;

/// A tool that needs the run that calls it. Its definition is known without a run.
struct EngineTool {
    definition: ToolDefinition<'static>,
    bind: BindTool,
}

type BindTool = for<'r> fn(&'r AgentLoop<'r>) -> Box<dyn Tool + 'r>;

impl EngineTool {
    const fn new<T: RunTool>() -> Self {
        Self { definition: ToolDefinition::of::<T>(), bind: bind_tool::<T> }
    }
}

fn bind_tool<'r, T: RunTool>(run: &'r AgentLoop<'r>) -> Box<dyn Tool + 'r> {
    Box::new(ToolOfRun::<T> { run, arguments: PhantomData })
}

/// The arguments of a tool that needs the run that calls it.
trait RunTool: ToolArguments {
    /// Calls the tool, as [`Tool::call`] does.
    fn call(self, run: &AgentLoop<'_>) -> impl Future<Output = Result<ToolOutput, Cancelled>> + Send;
}

/// A [`RunTool`] of one run as a [`Tool`].
struct ToolOfRun<'r, T> {
    run: &'r AgentLoop<'r>,
    arguments: PhantomData<fn() -> T>,
}

impl<T: RunTool> Tool for ToolOfRun<'_, T> {
    fn definition(&self) -> ToolDefinition<'_> {
        ToolDefinition::of::<T>()
    }

    fn call<'c>(&'c self, arguments: &'c Value, _: &'c mut ToolContext<'_>) -> ToolFuture<'c> {
        Box::pin(async move {
            match parse_arguments::<T>(arguments) {
                // waits: raced in the tool, with the scope of the run.
                Ok(tool) => tool.call(self.run).await,
                Err(problem) => Ok(ToolOutput::error(problem)),
            }
        })
    }
}

static ENGINE_TOOLS: [EngineTool; 7] = [
    EngineTool::new::<SpawnAgentArgs>(),
    EngineTool::new::<AgentMessageArgs>(),
    EngineTool::new::<RememberArgs>(),
    EngineTool::new::<RecallArgs>(),
    EngineTool::new::<CronAddArgs>(),
    EngineTool::new::<CronListArgs>(),
    EngineTool::new::<CronRemoveArgs>(),
];

/// The definitions of all tools, without those of MCP servers.
fn own_definitions() -> impl Iterator<Item = ToolDefinition<'static>> {
    let built_in = BUILT_IN_TOOLS.iter().map(|tool| tool.definition());
    built_in.chain(ENGINE_TOOLS.iter().map(|tool| tool.definition))
}

/// The names that a tool list may have, without those of MCP servers.
fn own_names() -> impl Iterator<Item = &'static str> {
    own_definitions().map(|tool| tool.name).chain([SEND_FILE])
}

/// The tools that agents may have, without those of MCP servers, in lower case.
pub fn own_tool_names() -> BTreeSet<String> {
    own_names().map(str::to_lowercase).collect()
}

/// A configured tool list names a tool that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool {name:?}; there are: {}", known.join(", "))]
pub struct UnknownTool {
    pub name: String,
    pub known: Vec<&'static str>,
}

/// Checks a configured tool list: `*`, or names. The tools of an MCP server in `servers` are known only once it runs.
///
/// # Errors
/// [`UnknownTool`] for the first name that is no tool.
pub fn check_tool_names<'s>(allowed: &[String], servers: impl Iterator<Item = &'s String>) -> Result<(), UnknownTool> {
    let servers: BTreeSet<&str> = servers.map(String::as_str).collect();
    let is_known = |name: &str| name == "*" || own_names().any(|known| known == name);
    let is_of_server = |name: &str| server_of_tool(name).is_some_and(|server| servers.contains(server));
    match allowed.iter().find(|name| !is_known(name) && !is_of_server(name)) {
        Some(name) => Err(UnknownTool { name: name.clone(), known: own_names().collect() }),
        None => Ok(()),
    }
}

/// The descriptions of the allowed tools for the model of an agent, without those of MCP servers.
pub(super) fn tool_specs(allowed: &[String], agent: &AgentFacts<'_>) -> Vec<ToolSpec> {
    let allowed = own_definitions().filter(|tool| contains_tool(allowed, tool.name));
    allowed.filter_map(|tool| tool.offered_spec(agent)).collect()
}

/// Whether the sandbox of the agent holds the calls of this tool back, so that one may ask to run outside.
pub(super) fn is_sandboxed_tool(name: &str) -> bool {
    BUILT_IN_TOOLS.iter().map(|tool| tool.definition()).any(|tool| tool.name == name && tool.is_sandboxed)
}

/// The descriptions of the delegation tools for the model of an agent; empty if it can delegate to no agent.
pub(super) fn delegation_tool_specs(snapshot: &AgentSnapshot, agent: &Agent) -> Arc<[ToolSpec]> {
    let delegates = delegation::delegates(snapshot, agent);
    let facts = AgentFacts { delegates: &delegates, ..AgentFacts::default() };
    [SpawnAgentArgs::spec_for(&facts), AgentMessageArgs::spec_for(&facts)].into_iter().flatten().collect()
}

/// The kind of resource that a call of this tool holds.
pub fn resource_kind_of_tool(name: &str) -> ResourceKind {
    match own_definitions().find(|tool| tool.name == name) {
        Some(tool) => tool.resource_kind,
        None if server_of_tool(name).is_some() => ResourceKind::McpCall,
        None => ResourceKind::Task,
    }
}

impl AgentLoop<'_> {
    /// Calls the tool that a call names. Every call of a run comes through here.
    pub(super) async fn call_tool(&self, planned: &PlannedCall) -> Result<CallResult, Cancelled> {
        let call = &planned.call;
        let Some(tool) = self.find_tool(call) else {
            let names: Vec<&str> = self.own_tools().map(|tool| tool.name.as_str()).collect();
            let output = format!("there is no tool named {:?}; the tools are: {}", call.tool, names.join(", "));
            return Ok(CallResult::new(CallEnd::Error, output));
        };
        let run = self.writer.run();
        let owner = RunIdentity { session: run.session.clone(), run: run.id.clone(), principal: run.principal.clone() };
        let sandbox = self.sandbox_of(planned);
        let session_network = self.services.sandbox_site.session_network(self.agent, &run.session, &sandbox);
        let mut context = ToolContext {
            scope: self.scope,
            owner: &owner,
            toolbox: &self.services.toolbox,
            background: &self.services.background,
            workdir: &self.agent.workdir,
            wardens: &self.services.wardens,
            environment: &self.services.environment,
            output_limit: self.services.limits.tool_output_bytes,
            shell_timeout_s: self.agent.config.shell_timeout_s,
            isolate: self.agent.config.isolate,
            network: self.network_of(planned),
            sandbox: Some(sandbox),
            session_network,
            may_escalate: planned.escalation.is_none()
                && self.agent.escalation_right(&self.services.limits) == EscalationRight::MayAsk,
            is_let_out: planned.escalation.is_some(),
            file_backup: self.control,
            sink: &mut ToolCallSink { writer: &self.writer, call: &call.id },
        };
        // waits: raced in the tool, with the scope in `context`.
        let output = call_tool(&*tool, &call.arguments, &mut context).await?;
        // waits: on a thread of the scope, which is told of a stop.
        Ok(self.save_result_images(output).await)
    }

    /// Whether a call may run beside others. A call of an unknown tool does nothing, so it may.
    pub(super) fn call_concurrency(&self, call: &ToolCall) -> CallConcurrency {
        self.find_tool(call).map_or(CallConcurrency::Concurrent, |tool| tool.definition().concurrency)
    }

    /// The tool that a call names, if the agent may use it.
    pub(super) fn find_tool<'r>(&'r self, call: &'r ToolCall) -> Option<Box<dyn Tool + 'r>> {
        let name = call.tool.as_str();
        if let Some(tool) = self.mcp_client.find_tool(name) {
            return Some(Box::new(mcp::McpTool { tool, run: self, call }));
        }
        if !self.own_tools().any(|tool| tool.name == name) {
            return None;
        }
        if let Some(tool) = BUILT_IN_TOOLS.iter().find(|tool| tool.definition().name == name) {
            return Some(Box::new(*tool));
        }
        ENGINE_TOOLS.iter().find(|tool| tool.definition.name == name).map(|tool| (tool.bind)(self))
    }

    /// The tools that the agent may call, without those of MCP servers.
    fn own_tools(&self) -> impl Iterator<Item = &ToolSpec> {
        let allowed = &self.agent.config.tools;
        let is_allowed = move |spec: &&ToolSpec| contains_tool(allowed, &spec.name);
        self.agent.tool_specs.iter().chain(self.delegation_tools.iter().filter(is_allowed))
    }

    /// All tools that the model may call, with those of MCP servers.
    pub(super) async fn available_tools(&self) -> Result<Vec<ToolSpec>, Cancelled> {
        let mut tools: Vec<ToolSpec> = self.own_tools().cloned().collect();
        // waits: for servers that start, raced in `offered_tools`.
        tools.extend(self.mcp_client.offered_tools(self.scope).await?);
        if let Some(client) = self.client {
            let is_new = |tool: &&ToolSpec| !tools.iter().any(|own| own.name == tool.name);
            let of_client: Vec<ToolSpec> = client.answer.tools.iter().filter(is_new).cloned().collect();
            tools.extend(of_client);
        }
        Ok(tools)
    }
}

/// Adds the output of a running call to the run.
struct ToolCallSink<'a> {
    writer: &'a RunWriter,
    call: &'a CallId,
}

impl OutputSink for ToolCallSink<'_> {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        self.writer.append_output(self.call, stream, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn offered(allowed: &[&str]) -> Vec<String> {
        let specs = tool_specs(&list(allowed), &AgentFacts::default());
        specs.into_iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn tool_lists_are_checked() {
        let servers = list(&["files"]);
        let check = |names: &[&str]| check_tool_names(&list(names), servers.iter());
        assert_eq!(check(&["*"]), Ok(()));
        assert_eq!(check(&["read_file", "fetch_url", "recall", SEND_FILE, "files__read"]), Ok(()));
        assert!(check(&["other__read"]).is_err());
        let error = check(&["read_file", "raed_file"]).unwrap_err();
        assert!(error.to_string().starts_with(r#"there is no tool "raed_file"; there are: read_file, "#), "{error}");
        assert!(
            error
                .to_string()
                .ends_with("spawn_agent, send_message, remember, recall, cron_add, cron_list, cron_remove, send_file"),
            "{error}"
        );
    }

    #[test]
    fn an_agent_is_offered_its_tools_in_the_order_of_the_table() {
        assert_eq!(offered(&["list_files", "read_file"]), ["read_file", "list_files"]);
        assert_eq!(offered(&[]), [""; 0]);
        let own: Vec<&str> = own_definitions().map(|tool| tool.name).collect();
        let with_delegates = ["spawn_agent", "send_message"];
        let expected: Vec<&str> = own.into_iter().filter(|name| !with_delegates.contains(name)).collect();
        assert_eq!(offered(&["*"]), expected, "work can be given to no agent");
    }

    #[test]
    fn every_tool_says_what_its_call_holds() {
        use ResourceKind::{HttpRequest, McpCall, Process, Run, Task};
        let wanted = [
            ("shell", Process),
            ("process", Process),
            ("fetch_url", HttpRequest),
            ("spawn_agent", Run),
            ("send_message", Run),
            ("files__read", McpCall),
            ("read_file", Task),
            ("gone", Task),
        ];
        assert_eq!(wanted.map(|(tool, _)| (tool, resource_kind_of_tool(tool))), wanted);
    }
}
