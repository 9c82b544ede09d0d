//! Wait for a server's start and run one tool call, each as a task of the run's scope.
//!
//! As tasks they finish the wait or the cancel even when the caller is gone.

mod cancellation;

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::turn::CallResult;
use quell_protocol::{ResourceKind, RunId};
use quell_scope::{Held, Release, Scope};
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, RequestId};
use rmcp::service::{PeerRequestOptions, RequestHandle};
use rmcp::{RoleClient, ServiceError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use self::cancellation::CancelReason;
use super::connect_problem::ConnectProblem;
use super::instance::{InstanceEnd, InstanceLease, InstanceShutdown, InstanceState, McpConnection, ServerInstance};
use super::late_calls::UnconfirmedCall;
use super::message_monitor::CallMonitor;
use super::questions::{OpenQuestions, PendingQuestion};
use super::result::{self, ToolAnswer};

/// How long a process whose connection broke may take to end by itself; its end tells the reason.
const EXIT_WAIT: Duration = Duration::from_millis(500);

/// A lease on an instance, with its connection.
pub(super) type LeasedConnection = (InstanceLease, Arc<McpConnection>);

/// An update for the caller of a tool.
pub(super) enum CallUpdate {
    /// A progress report of the server.
    Progress(String),
    /// The server asks the user.
    Question(PendingQuestion),
    Done(ToolAnswer),
}

/// Waits until a server is ready. The scope's ledger holds the start. If the last waiter leaves before that, the server
/// is ended.
pub(super) async fn wait_until_ready(lease: InstanceLease, scope: &Scope) -> Result<LeasedConnection, String> {
    match lease.instance().state() {
        InstanceState::Ready(connection) => return Ok((lease, connection)),
        InstanceState::Starting | InstanceState::Ended(_) => {}
    }
    let held = scope.hold(ResourceKind::McpCall, format!("{}: start", lease.instance().server.name));
    let (ready_sender, ready_receiver) = oneshot::channel();
    scope.spawn(run_start_wait(lease, scope.clone(), held, ready_sender));
    // waits: raced by the caller; the task answers or drops its sender at the cancel.
    ready_receiver.await.unwrap_or_else(|_| Err("the wait for it was cancelled".to_owned()))
}

async fn run_start_wait(
    lease: InstanceLease,
    scope: Scope,
    held: Held,
    mut ready_sender: oneshot::Sender<Result<LeasedConnection, String>>,
) {
    let instance = Arc::clone(lease.instance());
    // All arms wait for conditions.
    let started = tokio::select! {
        biased;
        () = scope.cancelled() => None,
        () = ready_sender.closed() => None,
        settled = instance.wait_started() => Some(settled),
    };
    match started {
        Some(Ok(connection)) => match ready_sender.send(Ok((lease, connection))) {
            Ok(()) => held.release(Release::Finished),
            Err(unread) => {
                drop(unread);
                end_unwanted_start(&instance, &scope, held).await;
            }
        },
        Some(Err(end)) => {
            release_with_leftovers(held, &end, Release::Failed);
            let _ = ready_sender.send(Err(end.cause.clone()));
        }
        None => {
            drop(lease);
            end_unwanted_start(&instance, &scope, held).await;
        }
    }
}

/// Ends a server for whose start nobody waits any more: no ledger holds it.
async fn end_unwanted_start(instance: &ServerInstance, scope: &Scope, held: Held) {
    if instance.leases() > 0 {
        return held.release(Release::Cancelled);
    }
    if matches!(instance.state(), InstanceState::Ready(_)) {
        instance.request_shutdown(InstanceShutdown::EndNow("nobody waits for its start any more".into()));
    }
    let end = wait_ended_or_kill(instance, scope).await;
    release_with_leftovers(held, &end, end.how);
}

/// Waits for the end of a server that has been told to end; a forced stop of the scope kills it.
pub(super) async fn wait_ended_or_kill(instance: &ServerInstance, scope: &Scope) -> Arc<InstanceEnd> {
    tokio::select! {
        biased;
        over = instance.wait_ended() => over,
        () = scope.forced() => {
            instance.request_shutdown(InstanceShutdown::Kill);
            // waits: for the end of the killed process, for which the ledger of the stopped run waits, too.
            instance.wait_ended().await
        }
    }
}

/// Releases a ledger entry that ended with its server, with the leftovers by name.
pub(super) fn release_with_leftovers(held: Held, end: &InstanceEnd, how: Release) {
    for leftover in &end.leftovers {
        held.note_leftover(leftover.clone());
    }
    held.release(how);
}

/// One call, from its request to its answer or to the end of its cancel.
pub(super) struct McpCall {
    pub(super) scope: Scope,
    pub(super) lease: InstanceLease,
    pub(super) connection: Arc<McpConnection>,
    pub(super) held: Held,
    pub(super) run: RunId,
    pub(super) updates: mpsc::Sender<CallUpdate>,
    pub(super) output_limit: usize,
}

type McpRequestHandle = RequestHandle<RoleClient>;
type ServerAnswer = Result<rmcp::model::ServerResult, ServiceError>;

/// Why the wait for an answer ended.
enum CallWait {
    /// The call is to be cancelled.
    Cancelled(CancelReason),
    Answered(Box<ServerAnswer>),
    /// The server is being ended, for this cause.
    ServerEnding(String),
}

impl McpCall {
    /// Runs the call to its end.
    pub(super) async fn run(self, tool: String, arguments: Option<JsonObject>) {
        let mut params = CallToolRequestParams::new(tool);
        params.arguments = arguments;
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options();
        let connection = Arc::clone(&self.connection);
        let askable = connection.monitor.askable_calls.register(self.run.clone(), self.updates.clone());
        // A request that waits for room is not sent yet; dropping it has no effect.
        // waits: until the run is stopped or the caller is gone, in `stopped_or_abandoned`.
        let sent = tokio::select! {
            biased;
            () = self.stopped_or_abandoned() => return self.held.release(Release::Cancelled),
            sent = self.connection.peer.send_request_with_option(request, options) => sent,
        };
        let mut handle = match sent {
            Ok(handle) => handle,
            Err(error) => return self.finish(CallWait::Answered(Box::new(Err(error))), None).await,
        };
        let id = handle.id.clone();
        let monitor = self.connection.monitor.call_monitor(&id);
        let answered = self.await_answer(&mut handle, &monitor, askable.watch_questions()).await;
        let wait = match answered {
            CallWait::Cancelled(reason) => match handle.rx.try_recv() {
                // The answer was there when the wait ended, so there is nothing to cancel.
                Ok(answer) => CallWait::Answered(Box::new(answer)),
                // The call stays registered meanwhile, so that its late question cannot reach the user of another run.
                // waits: no longer than the server's grace and the stop ladder of its process.
                Err(_none) => return cancellation::cancel_call(self, handle, monitor, reason).await,
            },
            wait => wait,
        };
        // From now on the server can ask nobody.
        drop(askable);
        self.finish(wait, Some(id)).await;
    }

    /// The data of this call for the time after its run has ended.
    pub(super) fn to_unconfirmed_call(&self, late_from: Instant) -> UnconfirmedCall {
        let server = &self.lease.instance().server;
        let (name, is_url) = (server.name.clone(), server.http_client.is_some());
        UnconfirmedCall { run: self.run.clone(), resource: self.held.id(), server: name, is_url, late_from }
    }

    async fn await_answer(
        &self,
        request: &mut McpRequestHandle,
        monitor: &CallMonitor,
        mut questions: watch::Receiver<OpenQuestions>,
    ) -> CallWait {
        let instance = self.lease.instance();
        let (mut changes, started) = (monitor.watch_changes(), Instant::now());
        loop {
            changes.borrow_and_update();
            self.send_progress(monitor);
            // A person may take longer to answer than a server.
            let asked = *questions.borrow_and_update();
            let last_sign = monitor.last_progress().max(asked.last_closed_at()).unwrap_or(started);
            let timeout_at = last_sign + instance.server.call_timeout;
            // All arms wait for conditions, and an answer stays in the handle until it is received.
            // waits: until the run is stopped or the caller is gone, in `stopped_or_abandoned`.
            tokio::select! {
                biased;
                () = self.stopped_or_abandoned() => return CallWait::Cancelled(CancelReason::Stop),
                answer = &mut request.rx => match answer {
                    Ok(answer) => {
                        self.send_progress(monitor);
                        return CallWait::Answered(Box::new(answer));
                    }
                    Err(_closed) => return CallWait::ServerEnding(self.connection_lost_cause("its connection ended".to_owned()).await),
                },
                cause = instance.wait_immediate_end() => return CallWait::ServerEnding(format!("it was restarted because {cause}")),
                _ = changes.changed() => {}
                Ok(()) = questions.changed() => {}
                () = sleep_until(timeout_at), if !asked.is_any_open() => return CallWait::Cancelled(CancelReason::TimedOut),
            }
        }
    }

    fn send_progress(&self, monitor: &CallMonitor) {
        for text in monitor.take_progress() {
            // A caller that is too slow misses progress.
            let _ = self.updates.try_send(CallUpdate::Progress(text));
        }
    }

    /// Why the connection failed during a call; `problem` is what is known so far. The server is not used again: the
    /// next call connects anew.
    async fn connection_lost_cause(&self, problem: String) -> String {
        let instance = self.lease.instance();
        if let InstanceShutdown::EndNow(cause) = instance.shutdown_level() {
            return format!("it was restarted because {cause}");
        }
        if instance.server.http_client.is_some() {
            // There is no process whose end could tell more, and other calls may still be answered.
            instance.request_shutdown(InstanceShutdown::Drain);
            return problem;
        }
        // waits: until the run is stopped or the caller is gone, and at most `EXIT_WAIT`.
        tokio::select! {
            biased;
            over = instance.wait_ended() => return over.cause.clone(),
            () = self.stopped_or_abandoned() => {}
            () = sleep(EXIT_WAIT) => {}
        }
        instance.request_shutdown(InstanceShutdown::EndNow(problem.into()));
        wait_ended_or_kill(instance, &self.scope).await.cause.clone()
    }

    async fn finish(self, wait: CallWait, id: Option<RequestId>) {
        let server = &self.lease.instance().server.name;
        let (result, how) = match wait {
            CallWait::Answered(answer) => match *answer {
                Err(ServiceError::TransportClosed) => (
                    self.connection_lost_result(
                        &self.connection_lost_cause("it ended its answer too early".to_owned()).await,
                    )
                    .into(),
                    Release::Failed,
                ),
                Err(ServiceError::TransportSend(error)) => {
                    let trouble =
                        ConnectProblem::from_transport_error(&*error.error, &self.lease.instance().server.config);
                    let problem =
                        trouble.map_or("it does not read its input".to_owned(), |trouble| trouble.description);
                    (self.connection_lost_result(&self.connection_lost_cause(problem).await).into(), Release::Failed)
                }
                answer => (result::convert_answer(answer, server, self.output_limit), Release::Finished),
            },
            CallWait::ServerEnding(cause) => (self.connection_lost_result(&cause).into(), Release::Failed),
            CallWait::Cancelled(_) => return,
        };
        if let Some(id) = id {
            self.connection.monitor.forget_call(&id);
        }
        let Self { held, updates, lease, .. } = self;
        // Release the lease first: the idle time of the server starts now.
        drop(lease);
        held.release(how);
        // There is no receiver if the run was stopped meanwhile.
        // waits: for a caller that only receives updates; if it is gone, this fails at once.
        let _ = updates.send(CallUpdate::Done(result)).await;
    }

    fn connection_lost_result(&self, cause: &str) -> CallResult {
        let server = &self.lease.instance().server.name;
        let text = format!("the call was lost with the MCP server {server}: {cause}; it may have had effects already");
        result::error_result(text, self.output_limit)
    }

    /// Waits until the run is stopped or the caller is gone.
    async fn stopped_or_abandoned(&self) {
        // Both arms wait for conditions.
        tokio::select! {
            () = self.scope.cancelled() => {}
            () = self.updates.closed() => {}
        }
    }
}
