//! Cancel a call: send the cancel and a ping, wait within the grace period, restart the server if it does not respond.
//!
//! A call is cancelled for a stop or because it takes too long. Servers need not answer a cancelled call, and most do
//! not. So the wait ends at the answer of the call or of the ping, whichever comes first. The ping only shows that the
//! server has read the cancel: the call is then `unconfirmed`, and the scope of the server watches for a later answer
//! ([`crate::late_calls`]). A server that answers neither within its grace is ended.

use std::sync::Arc;
use std::time::Duration;

use quell_scope::Release;
use rmcp::model::{ClientRequest, PingRequest, RequestId};
use rmcp::service::RequestHandle;
use rmcp::{RoleClient, ServiceError};
use tokio::time::{Instant, sleep_until};

use super::{CallUpdate, McpCall, release_with_leftovers, wait_ended_or_kill};
use crate::instance::{InstanceEnd, InstanceShutdown};
use crate::message_monitor::{CallMonitor, CancelledCallAnswer};
use crate::result;

/// The remaining grace after a forced stop, unless the server is shared.
const FORCED_GRACE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy)]
pub(super) enum CancelReason {
    /// The run was stopped, or the caller is gone.
    Stop,
    /// There was no answer and no progress for too long.
    TimedOut,
}

enum CancelOutcome {
    /// The server answered the call after all.
    Answered(CancelledCallAnswer),
    ServerEnded(Arc<InstanceEnd>),
    /// The server reads its input; it is not known what it does with the call.
    Unconfirmed,
    /// The server may still be working on the call, for this reason.
    StillWorking(&'static str),
}

impl CancelReason {
    /// The reason for servers, and for callers whose calls are lost when a server is restarted.
    fn description(self) -> &'static str {
        match self {
            Self::Stop => "the run was stopped",
            Self::TimedOut => "it took too long",
        }
    }
}

/// Cancels a call, waits for the outcome, and tells the caller.
pub(super) async fn cancel_call(
    call: McpCall,
    handle: RequestHandle<RoleClient>,
    monitor: Arc<CallMonitor>,
    reason: CancelReason,
) {
    let (id, updates) = (handle.id.clone(), call.updates.clone());
    let late_from = Instant::now() + call.lease.instance().server.cancel_grace / 2;
    monitor.mark_cancelled();
    let mut outcome = send_cancel_and_wait(&call, handle, &monitor, reason).await;
    let messages = Arc::clone(&call.connection.monitor);
    if matches!(outcome, CancelOutcome::Unconfirmed) {
        // The answer may have come after that of the ping.
        if let Err(answer) = messages.watch_for_late_answer(&id, call.to_unconfirmed_call(late_from)) {
            outcome = CancelOutcome::Answered(answer);
        }
    } else {
        messages.forget_call(&id)
    }
    let (server, limit) = (Arc::clone(&call.lease.instance().server), call.output_limit);
    let final_result = |what: &str| {
        let what = format!("the MCP server {} {what}", server.name);
        match reason {
            CancelReason::Stop => result::stopped_result(&what, limit),
            CancelReason::TimedOut => {
                let limit_s = server.call_timeout.as_secs();
                let text = format!("no answer and no progress for {limit_s} s: {what}; the call may have had effects");
                result::error_result(text, limit)
            }
        }
    };
    let result = match outcome {
        CancelOutcome::Answered(CancelledCallAnswer::Result(answer)) => {
            call.held.release(Release::Finished);
            result::convert_answer(Ok(*answer), &server.name, limit)
        }
        CancelOutcome::Answered(CancelledCallAnswer::Error) => {
            call.held.release(Release::Cancelled);
            final_result("has cancelled it").into()
        }
        CancelOutcome::Unconfirmed => {
            call.held.release(Release::Unconfirmed);
            final_result("was told to cancel it").into()
        }
        CancelOutcome::ServerEnded(end) => {
            release_with_leftovers(call.held, &end, end.how);
            final_result("ended with it").into()
        }
        CancelOutcome::StillWorking(why) => {
            restart_server(call, &id, why, reason).await;
            final_result("went on with it and was ended").into()
        }
    };
    // There is no receiver after a forced stop.
    // waits: for a caller that only receives updates; if it is gone, this fails at once.
    let _ = updates.send(CallUpdate::Done(result)).await;
}

async fn send_cancel_and_wait(
    call: &McpCall,
    handle: RequestHandle<RoleClient>,
    monitor: &CallMonitor,
    reason: CancelReason,
) -> CancelOutcome {
    let instance = call.lease.instance();
    let started = Instant::now();
    let (is_url, is_shared) = (instance.server.http_client.is_some(), instance.server.config.shared);
    let peer = call.connection.peer.clone();
    // Send the cancel first, then the ping that shows whether it was read.
    let mut cancel_and_ping = std::pin::pin!(async {
        // waits: in `cancel_and_ping`, one arm below, beside the deadline.
        handle.cancel(Some(reason.description().to_owned())).await?;
        if is_url {
            return Ok(());
        }
        // waits: in the same future.
        peer.send_request(ClientRequest::PingRequest(PingRequest::default())).await.map(drop)
    });
    let (mut changes, mut ping_answer, mut forced) = (monitor.watch_changes(), None::<Result<(), ServiceError>>, false);
    let mut deadline = started + instance.server.cancel_grace;
    loop {
        changes.borrow_and_update();
        if let Some(answer) = monitor.take_answer() {
            return CancelOutcome::Answered(answer);
        }
        // A refused ping was read, too. A server by URL has no process that could go on, and its stream is closed with
        // the cancel.
        if let Some(Ok(()) | Err(ServiceError::McpError(_))) = ping_answer {
            // After a forced stop, only an answer to the call itself counts.
            return if forced && !is_url {
                CancelOutcome::StillWorking("did not say that it stopped")
            } else {
                CancelOutcome::Unconfirmed
            };
        }
        // Each arm waits for a condition or is kept for the next round.
        tokio::select! {
            biased;
            end = instance.wait_ended() => return CancelOutcome::ServerEnded(end),
            _ = changes.changed() => {}
            // A short silence is no reason to end a shared server: that would cost the calls of others.
            () = call.scope.forced(), if !forced && !is_shared => {
                forced = true;
                deadline = deadline.min(Instant::now() + FORCED_GRACE);
            }
            answer = &mut cancel_and_ping, if ping_answer.is_none() => ping_answer = Some(answer),
            () = sleep_until(deadline) => return CancelOutcome::StillWorking("does not read its input"),
        }
    }
}

/// Ends a server that goes on with a cancelled call. It starts again at its next use; calls of other runs end with an
/// error that says why.
async fn restart_server(call: McpCall, id: &RequestId, why: &str, reason: CancelReason) {
    let McpCall { lease, held, scope, .. } = call;
    let instance = Arc::clone(lease.instance());
    let others = instance.leases().saturating_sub(1);
    let server = &instance.server.name;
    let cost = match others {
        0 => String::new(),
        1 => ", which cost 1 call of another run".to_owned(),
        count => format!(", which cost {count} calls of other runs"),
    };
    tracing::warn!(server, request = %id, why, others, "MCP server goes on with a cancelled call; it is restarted");
    held.add_to_label(&format!(" (the server {why} after the cancel and was restarted{cost})"));
    instance.request_shutdown(InstanceShutdown::EndNow(
        format!("it {why} after the cancel of a call: {}", reason.description()).into(),
    ));
    drop(lease);
    let end = wait_ended_or_kill(&instance, &scope).await;
    release_with_leftovers(held, &end, end.how);
}
