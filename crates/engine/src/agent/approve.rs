//! Before a call starts: whether it may, must not, or waits for a person.

use std::time::Duration;

use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::turn::{CallResult, ToolCall};
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::{CallEnd, ResourceKind};

use super::{Agent, Job, Workshop};
use crate::approvals::Approvals;
use crate::cell::Pen;
use crate::scope::{Cancelled, Point, Scope};

const BY_PERSON: &str = "[Denied by a person. The call did not run and did nothing. Do not try it again or in another way unless the user asks.]";
const BY_SILENCE: &str = "[Nobody allowed the call in time, which counts as a denial. It did not run and did nothing.]";
const BY_POLICY: &str = "[The configuration denies this tool. The call did not run and did nothing.]";

impl Job<'_> {
    /// None when the call may start; else the result that it has instead of running.
    pub(super) async fn denial(&self, call: &ToolCall) -> Result<Option<CallResult>, Cancelled> {
        let why = match self.agent.config.approval(&call.tool) {
            ApprovalPolicy::Auto => return Ok(None),
            ApprovalPolicy::Deny => BY_POLICY,
            // waits: raced there.
            ApprovalPolicy::Ask => match ask_person((self.workshop, self.agent), self.scope, &self.pen, call).await? {
                ApprovalState::Allowed { .. } => return Ok(None),
                ApprovalState::Denied { .. } => BY_PERSON,
                ApprovalState::TimedOut => BY_SILENCE,
                // Only a stop cancels.
                ApprovalState::Cancelled | ApprovalState::Pending => return Err(Cancelled),
            },
        };
        Ok(Some(CallResult::new(CallEnd::Denied, why)))
    }
}

/// Waits until a person answers for a call of a run, silence counts as an answer, or the run is stopped.
///
/// # Errors
/// [`Cancelled`] when the scope was cancelled first.
///
/// # Cancel safety
/// Safe: an approval that nobody waits for any more is settled as cancelled.
pub async fn ask_person(
    (workshop, agent): (&Workshop, &Agent),
    scope: &Scope,
    pen: &Pen,
    call: &ToolCall,
) -> Result<ApprovalState, Cancelled> {
    let patience = Duration::from_secs(workshop.limits.approval_timeout_s);
    let row = ApprovalRow { own_model: agent.own_model, ..row(pen, call, patience) };
    let (id, approvals) = (row.id.clone(), workshop.approvals.clone());
    let (teller, told) = (pen.clone(), id.clone());
    let asked = |row: &ApprovalRow| pen.approval_requested(row);
    let mut waiting = approvals.open(row, asked, move |state| teller.approval_resolved(&told, state))?;
    let held = scope.hold(ResourceKind::Approval, format!("{} {id}", call.tool));
    let held = held.on_stop(move |_| approvals.cancel(&id));
    let state = scope.race(Point::Approval, waiting.settled(patience)).await?;
    held.release("finished");
    Ok(state)
}

fn row(pen: &Pen, call: &ToolCall, patience: Duration) -> ApprovalRow {
    let (clock, run) = (pen.clock(), pen.run());
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
        expires_at: clock.rfc3339(now.plus(patience)),
        own_model: false,
        state: ApprovalState::Pending,
    }
}
