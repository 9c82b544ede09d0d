//! One run's view of the MCP servers that its agent may use: offer their tools and call them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use quell_process::{CommandNetwork, OutputSink, SandboxSpec};
use quell_protocol::{AgentId, Principal, ResourceKind, RunId, SessionKey, ToolOutputStream};
use quell_scope::{Cancelled, Point, Scope};
use serde_json::Value;
use tokio::sync::mpsc;

use super::call::{CallUpdate, LeasedConnection, McpCall, wait_until_ready};
use super::questions::{PendingQuestion, QuestionAsker};
use super::result::{self, ToolAnswer};
use super::server::{McpServer, OfferedTool};
use super::server_use;
use super::tool_names::server_of_tool;
use super::{ServerPool, SessionEndpoint};
use quell_kernel::ToolSpec;

/// Updates of a call that are queued for its run; more progress is dropped.
const MAX_QUEUED_UPDATES: usize = 64;

/// How long a step waits for a changed list of tools; then the older list is offered.
const MAX_LIST_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct McpClientOptions {
    pub run: RunId,
    pub session: SessionKey,
    /// Who the run works for, and its agent.
    pub principal: Principal,
    pub agent: AgentId,
    /// The directory that the session's own servers are told to work in.
    pub workdir: PathBuf,
    /// The sandbox of the agent's commands, which a server has, too, unless its configuration says otherwise.
    pub sandbox: Option<Arc<SandboxSpec>>,
    /// The way out of its network namespace, for an agent with a list of servers.
    pub network: Option<Arc<dyn CommandNetwork>>,
    /// The servers that the agent may use; all of them when absent.
    pub allowed_servers: Option<Vec<String>>,
    /// The session's own endpoint, which it may use as well.
    pub endpoint: Option<SessionEndpoint>,
    /// The agent's tool list: `*`, or names.
    pub allowed_tools: Vec<String>,
}

#[derive(Debug)]
pub struct McpClient {
    pub(super) pool: Arc<ServerPool>,
    pub(super) options: McpClientOptions,
    pub(super) servers: Vec<Arc<McpServer>>,
    /// Servers whose start failed during this run. The run does not wait for them again at its next step.
    failed_servers: Mutex<BTreeSet<String>>,
    /// The numbers of the instances that the ledger of the run holds.
    held_instances: Mutex<BTreeSet<u64>>,
}

/// A tool of a server, under the name that models use. Whether the server has it is known when it is called.
#[derive(Debug)]
pub struct ServerTool<'c> {
    client: &'c McpClient,
    server: &'c Arc<McpServer>,
    name: &'c str,
}

/// The environment of one call.
pub struct McpCallContext<'a> {
    pub scope: &'a Scope,
    /// The maximum size of the result text, in bytes.
    pub output_limit: usize,
    /// Receives the server's progress reports.
    pub sink: &'a mut dyn OutputSink,
    /// Asks the user what the server wants to know.
    pub asker: &'a dyn QuestionAsker,
}

impl McpClient {
    pub(super) fn new(pool: Arc<ServerPool>, options: McpClientOptions) -> Self {
        let all = options.allowed_tools.iter().any(|name| name == "*");
        let is_named = |server: &str| options.allowed_tools.iter().any(|tool| server_of_tool(tool) == Some(server));
        let is_allowed =
            |server: &str| options.allowed_servers.as_ref().is_none_or(|names| names.iter().any(|name| name == server));
        let endpoint = options.endpoint.as_ref().map(|SessionEndpoint(server)| server);
        // A session's own endpoint takes precedence over a configured server of the same name.
        let is_hidden = |name: &str| endpoint.is_some_and(|own| own.name == name);
        let servers =
            pool.servers.iter().filter(|(name, _)| is_allowed(name) && !is_hidden(name) && (all || is_named(name)));
        let own = endpoint.filter(|own| all || is_named(&own.name));
        let servers = servers.map(|(_, server)| server).chain(own).map(Arc::clone).collect();
        Self { pool, options, servers, failed_servers: Mutex::default(), held_instances: Mutex::default() }
    }

    /// The tools that may be offered now. Servers whose tools are unknown are started first, all at once. One that
    /// cannot be started offers none, and this run does not wait for it again. A list that a server announced as changed
    /// is waited for.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: a server for which nobody waits any more is ended, and the scope's ledger holds it until then.
    pub async fn offered_tools(&self, scope: &Scope) -> Result<Vec<ToolSpec>, Cancelled> {
        let unknown: Vec<_> = self.servers.iter().filter(|server| self.needs_start(server)).collect();
        if !unknown.is_empty() {
            let connecting = unknown.iter().map(|server| self.connect(server, scope));
            let connected = scope.race(Point::McpStart, join_all(connecting)).await?;
            let failed = unknown.iter().zip(connected).filter(|(_, arrival)| arrival.is_err());
            self.lock_failed_servers().extend(failed.map(|(server, _)| server.name.clone()));
        }
        let changing = self.servers.iter().filter_map(|server| self.pool.ready_connection(server, &self.options));
        // waits: raced in the next line.
        let listing = changing.map(|connection| async move { connection.wait_listed(MAX_LIST_WAIT).await });
        scope.race(Point::McpTools, join_all(listing)).await?;
        let tools = self.servers.iter().filter_map(|server| self.pool.offered_tools(server, &self.options));
        let mut specs = Vec::new();
        for tools in tools {
            specs.extend(
                tools.iter().filter(|tool| self.is_allowed_tool(&tool.spec.name)).map(|tool| tool.spec.clone()),
            );
        }
        Ok(specs)
    }

    /// The tool of this name, if it begins with the name of a server that the agent may use.
    #[must_use]
    pub fn find_tool<'c>(&'c self, name: &'c str) -> Option<ServerTool<'c>> {
        let server = self.servers.iter().find(|server| server_of_tool(name) == Some(&server.name))?;
        Some(ServerTool { client: self, server, name })
    }

    /// Nothing happens before the first poll, which comes after the check of the scope that races it.
    async fn connect(&self, server: &Arc<McpServer>, scope: &Scope) -> Result<LeasedConnection, String> {
        let leased = wait_until_ready(self.pool.acquire(server, &self.options)?, scope).await?;
        let instance = leased.0.instance();
        // Under the lock, so that no parallel call is sent before the processes of the program are known.
        let mut held = self.held_instances.lock().unwrap_or_else(PoisonError::into_inner);
        if held.insert(instance.number) && instance.program.get().is_some() {
            server_use::hold_for_run(instance, scope, &self.options);
            self.pool.publish_program_change(&self.options.session);
        }
        drop(held);
        Ok(leased)
    }

    /// True when the tools of the server are unknown and a start may succeed.
    fn needs_start(&self, server: &McpServer) -> bool {
        let is_unknown = self.pool.offered_tools(server, &self.options).is_none();
        is_unknown && server.recent_start_failure().is_none() && !self.lock_failed_servers().contains(&server.name)
    }

    fn lock_failed_servers(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.failed_servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_allowed_tool(&self, tool: &str) -> bool {
        self.options.allowed_tools.iter().any(|name| name == "*" || name == tool)
    }
}

impl<'c> ServerTool<'c> {
    #[must_use]
    pub fn name(&self) -> &'c str {
        self.name
    }

    /// Whether the server says that calls of the tool change nothing. False as long as its tools are unknown.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let offered = self.client.pool.offered_tools(self.server, &self.client.options);
        let tool = offered.as_ref().and_then(|tools| tools.iter().find(|offered| offered.spec.name == self.name));
        tool.is_some_and(|offered| offered.is_read_only)
    }

    /// Calls the tool.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled before the call was sent, or was forced. After any other stop the
    /// call is cancelled first, and the result tells the outcome.
    ///
    /// # Cancel safety
    /// Safe: a task of the scope runs the call. If its caller is gone, the task cancels the call, and the ledger holds
    /// it until the server is done with it.
    pub async fn call(&self, arguments: &Value, context: &mut McpCallContext<'_>) -> Result<ToolAnswer, Cancelled> {
        let Self { client, server, name: tool } = *self;
        let (scope, limit) = (context.scope, context.output_limit);
        let refusal = |text: String| Ok(result::error_result(text, limit).into());
        let connected = scope.race(Point::McpStart, client.connect(server, scope)).await?;
        let (lease, connection) = match connected {
            Ok(leased) => leased,
            Err(why) => return refusal(format!("the MCP server {} is not available: {why}", server.name)),
        };
        let tools = connection.tools();
        let found = tools.iter().find(|offered| offered.spec.name == tool && client.is_allowed_tool(tool));
        let Some(OfferedTool { own_name, .. }) = found else {
            let names: Vec<&str> = tools.iter().map(|offered| offered.spec.name.as_str()).collect();
            return refusal(format!(
                "the MCP server {} has no tool {tool:?}; it has: {}",
                server.name,
                names.join(", ")
            ));
        };
        let (updates, mut update_receiver) = mpsc::channel(MAX_QUEUED_UPDATES);
        let held = scope.hold(ResourceKind::McpCall, format!("{}: {own_name}", server.name));
        let run = client.options.run.clone();
        let call = McpCall { scope: scope.clone(), lease, connection, held, run, updates, output_limit: limit };
        scope.spawn(call.run(own_name.clone(), arguments.as_object().cloned()));
        scope.check(Point::McpCall)?;
        let mut questions = FuturesUnordered::new();
        loop {
            // A stop does not end this wait: the task of the call handles the stop within its time limits and sends the
            // outcome.
            let update = tokio::select! {
                biased;
                () = scope.forced() => return Err(Cancelled),
                Some(()) = questions.next() => continue,
                news = update_receiver.recv() => news,
            };
            match update {
                Some(CallUpdate::Progress(text)) => context.sink.output(ToolOutputStream::Stdout, &text),
                Some(CallUpdate::Question(question)) => questions.push(answer_question(context.asker, question)),
                Some(CallUpdate::Done(result)) => return Ok(result),
                // The request was never sent, because the scope was cancelled first.
                None => return Err(Cancelled),
            }
        }
    }
}

/// Asks the user and sends the answer. A stop, or a server that withdraws its question, ends it without one.
async fn answer_question(asker: &dyn QuestionAsker, pending: PendingQuestion) {
    let PendingQuestion { question, mut reply } = pending;
    // Dropping the question withdraws it.
    // waits: until the run is stopped, which `ask` races, or the server has gone on.
    let answer = tokio::select! {
        biased;
        () = reply.closed() => return,
        answer = asker.ask(question) => answer,
    };
    if let Ok(answer) = answer {
        // This fails if the server has withdrawn the question meanwhile.
        let _ = reply.send(answer);
    }
}

impl std::fmt::Debug for McpCallContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("McpCallContext")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use std::sync::Barrier;
    use std::thread;

    use quell_kernel::{Moment, StopTimeouts};
    use quell_process::{WardenExe, Wardens};
    use quell_protocol::mcp::McpListKind;
    use quell_scope::PointProbe;
    use quell_scope::clock::Clock;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::instance::{InstanceLease, InstanceOwner, InstanceShutdown, InstanceState, ServerInstance};
    use crate::{Mcp, McpBrowseError, McpBrowseRequest, McpConfig, McpSettings};

    const START: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_secs(10);

    fn servers_with(listener: &TcpListener) -> Mcp {
        let url = Some(format!("http://{}/mcp", listener.local_addr().unwrap()));
        Mcp::new(McpSettings {
            servers: BTreeMap::from([("far".to_owned(), McpConfig { url, ..McpConfig::default() })]),
            wardens: Wardens::new(WardenExe::ThisProcess, StopTimeouts::default()).unwrap(),
            environment: Vec::new(),
            data_dir: PathBuf::from("/"),
            directories: PathBuf::from("/"),
            times: StopTimeouts::default(),
            clock: Clock::start(),
        })
        .unwrap()
    }

    fn client_of_run(mcp: &Mcp) -> McpClient {
        mcp.client_for_run(McpClientOptions {
            run: RunId::parse("run").unwrap(),
            session: SessionKey::parse("session").unwrap(),
            principal: Principal::parse("alice").unwrap(),
            agent: AgentId::parse("main").unwrap(),
            workdir: PathBuf::from("/"),
            sandbox: None,
            network: None,
            allowed_servers: None,
            endpoint: None,
            allowed_tools: vec!["*".to_owned()],
        })
    }

    /// How long a step waits for servers that have no tools.
    async fn time_to_offer(client: &McpClient) -> Duration {
        let (scope, begun) = (Scope::new(Clock::start(), PointProbe::default()), Instant::now());
        assert!(client.offered_tools(&scope).await.unwrap().is_empty());
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_at_its_start_costs_a_run_one_wait_and_runs_ever_fewer() {
        // The listener accepts connections and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mcp = servers_with(&listener);
        let first = client_of_run(&mcp);
        assert!(time_to_offer(&first).await >= START);
        advance(PAUSE).await;
        assert_eq!(time_to_offer(&first).await, Duration::ZERO, "one run has waited twice");
        assert!(time_to_offer(&client_of_run(&mcp)).await >= START);
        advance(PAUSE).await;
        let third = client_of_run(&mcp);
        assert_eq!(time_to_offer(&third).await, Duration::ZERO, "the second pause was no longer than the first");
        advance(PAUSE).await;
        assert!(time_to_offer(&third).await >= START, "a step during the pause is no wait");
    }

    #[tokio::test]
    async fn a_stop_since_the_check_for_a_hold_starts_no_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mcp = servers_with(&listener);
        let stops = mcp.watch_browse_stops();
        mcp.stop_browsing();
        let request = McpBrowseRequest::List(McpListKind::Prompts);
        assert_eq!(client_of_run(&mcp).browse("far", request, stops).await, Err(McpBrowseError::Stopped));
        assert_eq!(mcp.count_live(), 0);
    }

    #[tokio::test]
    async fn the_last_of_two_who_leave_a_server_at_once_ends_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = client_of_run(&servers_with(&listener));
        for _ in 0..200 {
            let owner = InstanceOwner {
                session: None,
                run: client.options.run.clone(),
                principal: client.options.principal.clone(),
                agent: client.options.agent.clone(),
                workdir: PathBuf::from("/"),
                sandbox: None,
                network: None,
            };
            let instance = Arc::new(ServerInstance::new(Arc::clone(&client.servers[0]), owner, 1, Moment::default()));
            let leases = [(); 2].map(|()| InstanceLease::acquire(&instance, &client.options.run));
            // Any state but the first one does: only a start ends by itself.
            instance.set_state(InstanceState::Ended(Arc::default()));
            let both = Barrier::new(leases.len());
            thread::scope(|threads| {
                for lease in leases {
                    threads.spawn(|| {
                        both.wait();
                        client.pool.release_and_end_unused(lease, "nobody waits");
                    });
                }
            });
            assert_eq!(instance.shutdown_level(), InstanceShutdown::EndNow("nobody waits".into()));
        }
    }
}
