//! Supervise one server instance: start it, watch it, refresh its tools, shut it down. One task per instance.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, OptionFuture, Shared};
use quell_scope::{PointProbe, Release, Scope};
use tokio::time::{Instant, sleep_until, timeout};

use super::ServerPool;
use super::connect::{self, InstanceBackend, RunningMcpClient};
use super::connect_problem::{ConnectProblem, ENDED_BEFORE_READY};
use super::instance::{InstanceEnd, InstanceShutdown, InstanceState, McpConnection, ServerInstance};
use super::message_monitor::MessageMonitor;
use super::server::{OfferedTool, OfferedTools};

/// How long a server may take to end by itself once its input is closed.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// How long a server that disconnected may take to end; its end tells the reason.
const EXIT_WAIT: Duration = Duration::from_millis(100);

/// The maximum number of characters of a list of names in the log.
const MAX_LOGGED_NAMES: usize = 300;

/// Why the watching of a ready instance ended.
enum InstanceEndReason {
    /// Nobody needs the server any more.
    Unused,
    /// The end was requested, with this cause.
    Requested(Arc<str>),
    /// The process or the connection ended by itself.
    Gone,
}

/// Runs one instance from its start to its end.
///
/// # Cancel safety
/// Not to be dropped: it ends the instance in order. The scope of the pool spawns it.
pub(super) async fn supervise(pool: Arc<ServerPool>, instance: Arc<ServerInstance>) {
    let scope = Scope::new(pool.clock, PointProbe::default());
    let end = run_instance(&pool, &instance, &scope).await;
    let end = InstanceEnd { at: Some(pool.clock.now()), ..end };
    // Everything that the scope held is released already; this only closes it.
    // waits: not at all in practice: when `run_instance` returns, everything is over.
    let _released = scope.close().await;
    let session = instance.owner.session.as_ref().map(ToString::to_string);
    tracing::info!(server = %instance.server.name, session, how = end.how.as_str(), why = end.cause, "MCP server closed");
    let leftovers = end.leftovers.clone();
    instance.set_state(InstanceState::Ended(Arc::new(end)));
    pool.remove_ended(&instance, &leftovers);
}

async fn run_instance(pool: &Arc<ServerPool>, instance: &Arc<ServerInstance>, scope: &Scope) -> InstanceEnd {
    let server = &instance.server;
    if !instance.is_start_wanted() {
        return end_unneeded_start(InstanceEnd { how: Release::Cancelled, ..InstanceEnd::default() });
    }
    let (mut backend, target) = match connect::open_backend(pool, instance, scope) {
        Ok(opened) => opened,
        Err(problem) => return end_failed_start(instance, problem.into(), InstanceEnd::default()),
    };
    let monitor = Arc::new(MessageMonitor::new(Arc::clone(&pool.late_calls)));
    let started = Instant::now();
    // waits: in the task of the server, until its start is unwanted; runs race their waiting for it.
    let initialized = tokio::select! {
        biased;
        () = instance.wait_start_unwanted() => Err(None),
        () = wait_process_gone(&mut backend) => Err(Some(ENDED_BEFORE_READY.to_owned().into())),
        initialized = timeout(server.start_timeout, connect::initialize_and_list_tools(instance, target, &monitor, &pool.refresher)) => match initialized {
            Ok(initialized) => initialized.map_err(Some),
            Err(_) => Err(Some(format!("it was not ready within {} s", server.start_timeout.as_secs()).into())),
        },
    };
    let (client, tools) = match initialized {
        Ok(initialized) => initialized,
        Err(problem) => {
            let grace = if problem.is_some() { EXIT_WAIT } else { Duration::ZERO };
            let end = end_backend(instance, backend, grace).await;
            return match problem {
                Some(problem) => end_failed_start(instance, problem, end),
                None => match instance.shutdown_level() {
                    InstanceShutdown::EndNow(cause) => end_failed_start(instance, cause.to_string().into(), end),
                    InstanceShutdown::KeepRunning | InstanceShutdown::Drain | InstanceShutdown::Kill => {
                        end_unneeded_start(end)
                    }
                },
            };
        }
    };
    let tools = server.to_offered_tools(tools);
    server.record_started(&tools);
    let took_ms = started.elapsed().as_millis();
    let session = instance.owner.session.as_ref().map(ToString::to_string);
    tracing::info!(server = %server.name, session, run = %instance.owner.run, took_ms, tools = tools.len(), "MCP server started");
    let open_connection = Arc::new(McpConnection::new(client.peer().clone(), monitor, tools));
    instance.set_state(InstanceState::Ready(Arc::clone(&open_connection)));
    let client_task = McpClientTask::spawned(client);
    let reason = watch_ready_instance(pool, instance, &open_connection, &client_task, &mut backend).await;
    let end = shut_down(instance, reason, client_task, backend).await;
    open_connection.monitor.report_server_ended(end.how, &end.leftovers);
    end
}

/// The task of a connection, and the token that ends it.
struct McpClientTask {
    close_token: Option<rmcp::service::RunningServiceCancellationToken>,
    finished: Shared<BoxFuture<'static, ()>>,
}

impl McpClientTask {
    fn spawned(client: RunningMcpClient) -> Self {
        let close_token = Some(client.cancellation_token());
        // Whatever the result of the task, the connection is closed.
        Self { close_token, finished: client.waiting().map(drop).boxed().shared() }
    }

    /// Closes the connection from this side: a process sees the end of its input.
    fn close(&mut self) {
        if let Some(token) = self.close_token.take() {
            token.cancel();
        }
    }
}

/// Watches a ready instance until there is a reason to end it.
async fn watch_ready_instance(
    pool: &ServerPool,
    instance: &Arc<ServerInstance>,
    open_connection: &Arc<McpConnection>,
    client_task: &McpClientTask,
    backend: &mut InstanceBackend,
) -> InstanceEndReason {
    let (mut users, mut shutdown_changes) = (instance.watch_leases(), instance.watch_shutdown());
    let mut ignored_cancel = open_connection.monitor.ignored_cancel.subscribe();
    let mut tool_list_changes = open_connection.monitor.tool_list_changes.subscribe();
    let mut refresh: Option<BoxFuture<'static, ()>> = None;
    let mut last_used = Instant::now();
    if *tool_list_changes.borrow() > 0 {
        // A change may have come behind the first list.
        tool_list_changes.mark_changed();
    }
    loop {
        let unused = users.borrow_and_update().is_empty();
        let level = shutdown_changes.borrow_and_update().clone();
        // After an ignored cancel, the calls of others go on, but new users get another instance.
        let is_free = *ignored_cancel.borrow_and_update() && !pool.stop_accepting(instance);
        match level {
            InstanceShutdown::EndNow(cause) => return InstanceEndReason::Requested(cause),
            InstanceShutdown::Kill => return InstanceEndReason::Requested("it was ended by force".into()),
            InstanceShutdown::Drain | InstanceShutdown::KeepRunning if is_free => {
                return InstanceEndReason::Requested("it went on with a call after its cancel".into());
            }
            InstanceShutdown::Drain if unused => return InstanceEndReason::Unused,
            InstanceShutdown::Drain | InstanceShutdown::KeepRunning => {}
        }
        if !unused {
            last_used = Instant::now();
        }
        // Each arm waits for a condition; the refresh is kept while another arm is taken.
        // waits: in the task of the server, until it is told to end; no run waits here.
        tokio::select! {
            biased;
            _ = shutdown_changes.changed() => {}
            () = client_task.finished.clone() => return InstanceEndReason::Gone,
            () = wait_process_gone(backend) => return InstanceEndReason::Gone,
            _ = users.changed() => last_used = Instant::now(),
            _ = ignored_cancel.changed() => {}
            Some(()) = OptionFuture::from(refresh.as_mut()) => refresh = None,
            _ = tool_list_changes.changed(), if refresh.is_none() => {
                let changes = *tool_list_changes.borrow_and_update();
                let refreshing = refresh_tools(Arc::clone(instance), Arc::clone(open_connection), changes);
                refresh = Some(refreshing.boxed());
            }
            () = sleep_until(last_used + instance.server.idle_timeout), if unused => {
                if pool.close_if_unused(instance) {
                    return InstanceEndReason::Unused;
                }
            }
        }
    }
}

/// Lists the tools again, because the server announced its change number `changes`.
async fn refresh_tools(instance: Arc<ServerInstance>, connection: Arc<McpConnection>, changes: u64) {
    let server = &instance.server;
    // waits: in the task of the server, beside its shutdown requests; no run waits here.
    match timeout(server.start_timeout, connect::list_tools(&connection.peer)).await {
        Ok(Ok(tools)) => {
            let tools = server.to_offered_tools(tools);
            server.record_started(&tools);
            let before = connection.set_tools(Arc::clone(&tools), changes);
            let (added, removed) = (names_missing_in(&tools, &before), names_missing_in(&before, &tools));
            tracing::info!(server = %server.name, tools = tools.len(), added, removed, "MCP server changed its tools");
            return;
        }
        Ok(Err(error)) => {
            let why = ConnectProblem::from_list_error(&error, &server.config).description;
            tracing::warn!(server = %server.name, why, "MCP server did not list its changed tools");
        }
        Err(_) => tracing::warn!(server = %server.name, "MCP server did not list its changed tools in time"),
    }
    connection.keep_tools(changes);
}

/// The names of the tools in `tools` that are not in `others`, for people.
fn names_missing_in(tools: &OfferedTools, others: &OfferedTools) -> String {
    let is_missing = |tool: &&OfferedTool| others.iter().all(|other| other.own_name != tool.own_name);
    let names: Vec<&str> = tools.iter().filter(is_missing).map(|tool| tool.own_name.as_str()).collect();
    quell_protocol::display_text::one_line(&names.join(", "), MAX_LOGGED_NAMES)
}

async fn shut_down(
    instance: &ServerInstance,
    reason: InstanceEndReason,
    mut client_task: McpClientTask,
    backend: InstanceBackend,
) -> InstanceEnd {
    // From now on, new users get another instance.
    instance.request_shutdown(InstanceShutdown::Drain);
    client_task.close();
    let grace = match reason {
        InstanceEndReason::Unused => CLOSE_GRACE,
        InstanceEndReason::Gone => EXIT_WAIT,
        InstanceEndReason::Requested(_) => Duration::ZERO,
    };
    let mut end = end_backend(instance, backend, grace).await;
    // The connection usually ends with its pipes or requests.
    // waits: at most `CLOSE_GRACE`, in the task of the server.
    let _ = timeout(CLOSE_GRACE, client_task.finished.clone()).await;
    match reason {
        InstanceEndReason::Unused => end.cause = "nobody used it any more".to_owned(),
        InstanceEndReason::Requested(cause) => end.cause = cause.to_string(),
        InstanceEndReason::Gone => {
            end.cause = format!("it went away: {}", end.cause);
            tracing::warn!(server = %instance.server.name, why = end.cause, "MCP server ended by itself");
        }
    }
    end
}

/// Ends the process, or the requests and the session.
async fn end_backend(instance: &ServerInstance, backend: InstanceBackend, grace: Duration) -> InstanceEnd {
    match backend {
        // waits: for the stop ladder of its warden, which every shutdown request speeds up.
        InstanceBackend::Process(process) => process.end_process(instance, grace).await,
        // waits: for cancelled requests, and at most `SESSION_CLOSE_TIMEOUT` for the end of the session.
        InstanceBackend::Http(client) => client.cancel_and_close(instance).await,
    }
}

/// A start that was no longer needed before it was complete.
fn end_unneeded_start(end: InstanceEnd) -> InstanceEnd {
    InstanceEnd { cause: "it was no longer needed before it had started".to_owned(), ..end }
}

/// A failed start: the tools of the server are not available.
fn end_failed_start(
    instance: &ServerInstance,
    ConnectProblem { description: why, remedy }: ConnectProblem,
    end: InstanceEnd,
) -> InstanceEnd {
    // If the server ended by itself, its end is the reason.
    let by_itself = why == ENDED_BEFORE_READY && matches!(end.how, Release::Exited | Release::Failed);
    let cause = if by_itself { format!("{why} ({})", end.cause) } else { why };
    tracing::warn!(server = %instance.server.name, why = cause, remedy, "MCP server could not be started; its tools are unavailable");
    instance.server.record_start_failure(&cause);
    InstanceEnd { cause, remedy, ..end }
}

/// Waits until the process is gone; forever if there is none.
async fn wait_process_gone(backend: &mut InstanceBackend) {
    match backend {
        // waits: as one arm of several, the first of which is the request to end.
        InstanceBackend::Process(process) => drop(process.wait_gone().await),
        // waits: forever, as one arm of several.
        InstanceBackend::Http(_) => std::future::pending().await,
    }
}
