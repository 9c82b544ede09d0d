//! Check the approval policy of a tool call and wait for a person's decision.

use std::time::Duration;

use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::turn::{CallResult, ToolCall};
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::{CallEnd, ResourceKind};
use quell_scope::{Cancelled, Point, Release, Scope};

use super::{Agent, AgentLoop, Services};
use crate::approvals::Approvals;
use crate::live_run::RunWriter;

const DENIED_BY_PERSON: &str = "[Denied by a person. The call did not run and did nothing. Do not try it again or in another way unless the user asks.]";
const DENIED_BY_TIMEOUT: &str =
    "[Nobody allowed the call in time, which counts as a denial. It did not run and did nothing.]";
const DENIED_BY_POLICY: &str = "[The configuration denies this tool. The call did not run and did nothing.]";

impl AgentLoop<'_> {
    /// `None` if the call may start; otherwise the result that replaces its execution.
    pub(super) async fn check_approval(&self, call: &ToolCall) -> Result<Option<CallResult>, Cancelled> {
        let denial = match self.agent.config.approval_policy(&call.tool) {
            ApprovalPolicy::Auto => return Ok(None),
            ApprovalPolicy::Deny => DENIED_BY_POLICY,
            // waits: raced in `request_approval`.
            ApprovalPolicy::Ask => {
                match request_approval(self.services, self.agent, self.scope, &self.writer, call).await? {
                    ApprovalState::Allowed { .. } => return Ok(None),
                    ApprovalState::Denied { .. } => DENIED_BY_PERSON,
                    ApprovalState::TimedOut => DENIED_BY_TIMEOUT,
                    // Only a stop cancels an approval.
                    ApprovalState::Cancelled | ApprovalState::Pending => return Err(Cancelled),
                }
            }
        };
        Ok(Some(CallResult::new(CallEnd::Denied, denial)))
    }
}

/// Waits until a person answers for a call of a run, the time limit passes, or the run is stopped.
///
/// # Cancel safety
/// Safe: an approval whose waiter is dropped is settled as cancelled.
pub async fn request_approval(
    services: &Services,
    agent: &Agent,
    scope: &Scope,
    writer: &RunWriter,
    call: &ToolCall,
) -> Result<ApprovalState, Cancelled> {
    let timeout = Duration::from_secs(services.limits.approval_timeout_s);
    let row = ApprovalRow { own_model: agent.own_model, ..new_approval_row(writer, call, timeout) };
    let (id, approvals) = (row.id.clone(), services.approvals.clone());
    let (event_writer, approval_id) = (writer.clone(), id.clone());
    let announce = |row: &ApprovalRow| writer.emit_approval_requested(row);
    let mut waiter =
        approvals.open(row, announce, move |state| event_writer.emit_approval_resolved(&approval_id, state))?;
    let held = scope.hold(ResourceKind::Approval, format!("{} {id}", call.tool));
    let held = held.on_stop(move |_| approvals.cancel(&id));
    let state = scope.race(Point::Approval, waiter.wait_settled(timeout)).await?;
    held.release(Release::Finished);
    Ok(state)
}

fn new_approval_row(writer: &RunWriter, call: &ToolCall, timeout: Duration) -> ApprovalRow {
    let (clock, run) = (writer.clock(), writer.run());
    let now = clock.now();
    ApprovalRow {
        id: Approvals::new_id(),
        run_id: run.id.clone(),
        session_key: run.session.clone(),
        agent: run.agent.clone(),
        principal: run.principal.clone(),
        call_id: call.id.clone(),
        tool: call.tool.clone(),
        arguments: call.arguments.clone(),
        requested_at: clock.rfc3339(now),
        expires_at: clock.rfc3339(now.plus(timeout)),
        own_model: false,
        state: ApprovalState::Pending,
    }
}
