//! Check the approval policy of a tool call and wait for a person's decision.

use std::time::Duration;

use quell_kernel::escalation::{CallGate, CallPlace, gate_call};
use quell_kernel::turn::{CallResult, ToolCall};
use quell_mcp::QuestionAnswer;
use quell_protocol::approval::{ApprovalRow, ApprovalState, Escalation, default_quorum};
use quell_protocol::question::ServerQuestion;
use quell_protocol::{CallEnd, ResourceKind};
use quell_scope::{Cancelled, Point, Release, Scope};
use serde_json::{Map, Value};

use super::escalation::PlannedCall;
use super::{Agent, AgentLoop, Services};
use crate::approvals::{ApprovalAnnouncer, Approvals};
use crate::live_run::{RunWriter, TurnSealed};

const DENIED_BY_TIMEOUT: &str =
    "[Nobody allowed the call in time, which counts as a denial. It did not run and did nothing.]";
const ESCALATION_FORBIDDEN: &str = "[Calls of this run may not ask to run outside of the sandbox: the configuration of this agent, or of an agent above \
     it, says `escalate = false`. The call did not run and did nothing. Do without, or tell the user what is needed.]";
const NOBODY_ANSWERS: &str = "[Nobody can allow this call to run outside of the sandbox: the time limit of approvals is 0 here. The call did not \
     run and did nothing. Do without, or tell the user what is needed.]";
const DENIED_BY_POLICY: &str = "[The configuration denies this tool. The call did not run and did nothing.]";

impl AgentLoop<'_> {
    /// `None` if the call may start; otherwise the result that replaces its execution.
    pub(super) async fn check_approval(&self, planned: &PlannedCall) -> Result<Option<CallResult>, Cancelled> {
        let policy = self.agent.config.approval_policy(&planned.call.tool);
        let right = self.agent.escalation_right(&self.services.limits);
        let denial = match gate_call(policy, planned.place(), right) {
            CallGate::Run => return Ok(None),
            CallGate::DeniedByPolicy => DENIED_BY_POLICY.to_owned(),
            CallGate::EscalationForbidden => ESCALATION_FORBIDDEN.to_owned(),
            CallGate::NobodyAnswers => NOBODY_ANSWERS.to_owned(),
            CallGate::Ask => {
                // Nobody is asked about a call that cannot begin.
                let check = self.find_tool(&planned.call).map(|tool| tool.definition().check_arguments);
                match check.map(|check| check(&planned.call.arguments)) {
                    // The call itself says that there is no such tool.
                    None => return Ok(None),
                    Some(Err(problem)) => return Ok(Some(CallResult::new(CallEnd::Error, problem))),
                    Some(Ok(())) => {}
                }
                let request = ApprovalRequest { call: &planned.call, escalation: planned.escalation.clone() };
                // waits: raced in `request_approval`.
                match request_approval(self.services, self.agent, self.scope, &self.writer, request).await? {
                    ApprovalState::Allowed { .. } => return Ok(None),
                    ApprovalState::Denied { reason, .. } => denied_by_person(reason.as_deref(), planned.place()),
                    ApprovalState::TimedOut => DENIED_BY_TIMEOUT.to_owned(),
                    // Only a stop cancels an approval.
                    ApprovalState::Cancelled | ApprovalState::Pending => return Err(Cancelled),
                }
            }
        };
        Ok(Some(CallResult::new(CallEnd::Denied, denial)))
    }
}

fn denied_by_person(reason: Option<&str>, place: CallPlace) -> String {
    let reason = reason.map(|reason| format!(", who says: {reason}")).unwrap_or_default();
    let request = match place {
        CallPlace::Usual => "",
        CallPlace::OutsideOfSandbox => " It may not run outside of the sandbox.",
    };
    format!(
        "[Denied by a person{reason}. The call did not run and did nothing.{request} Do not try it again or in another \
         way unless the user asks.]"
    )
}

/// A call that waits for a person.
pub struct ApprovalRequest<'a> {
    pub call: &'a ToolCall,
    /// Present if it asks to run outside of the sandbox.
    pub escalation: Option<Escalation>,
}

/// The events of one approval in the stream of its run, and in those of the runs above.
#[derive(Clone)]
struct EventAnnouncer {
    writer: RunWriter,
    id: String,
}

impl EventAnnouncer {
    fn new(writer: &RunWriter, id: &str) -> Self {
        Self { writer: writer.clone(), id: id.to_owned() }
    }

    fn announce_requested(&self, row: &ApprovalRow) -> Result<(), TurnSealed> {
        self.writer.emit_approval_requested(row)?;
        self.writer.of_ancestors().for_each(|above| above.emit_sub_run_approval_requested(row));
        Ok(())
    }
}

impl ApprovalAnnouncer for EventAnnouncer {
    fn announce_counted(&self, row: &ApprovalRow) {
        self.writer.emit_approval_updated(row);
        self.writer.of_ancestors().for_each(|above| above.note_sub_run_approval_updated(row));
    }

    fn announce_settled(self: Box<Self>, state: &ApprovalState) {
        self.writer.emit_approval_resolved(&self.id, state);
        self.writer.of_ancestors().for_each(|above| above.emit_sub_run_approval_resolved(&self.id, state));
    }
}

/// Waits until a person answers for a call of a run, the time limit passes, or the run is stopped. A remembered
/// allowance answers at once.
///
/// # Cancel safety
/// Safe: an approval whose waiter is dropped is settled as cancelled.
pub async fn request_approval(
    services: &Services,
    agent: &Agent,
    scope: &Scope,
    writer: &RunWriter,
    request: ApprovalRequest<'_>,
) -> Result<ApprovalState, Cancelled> {
    let ApprovalRequest { call, escalation } = request;
    let timeout = Duration::from_secs(services.limits.approval_timeout_s);
    let (own_model, quorum) = (agent.own_model, agent.config.approval_quorum);
    let row = ApprovalRow { own_model, quorum, escalation, ..new_approval_row(writer, call, timeout) };
    if let Some(rule) = services.approvals.apply_rule(&row) {
        return Ok(ApprovalState::Allowed { by: rule.allowed_by });
    }
    Ok(wait_answered(services, scope, writer, row).await?.state)
}

/// Asks the user what an MCP server wants to know during a call. A time limit counts as a decline, and a stop cancels the
/// question.
///
/// # Cancel safety
/// As [`request_approval`].
pub(super) async fn request_question_answer(
    run: &AgentLoop<'_>,
    call: &ToolCall,
    question: ServerQuestion,
) -> Result<QuestionAnswer, Cancelled> {
    let timeout = Duration::from_secs(run.services.limits.approval_timeout_s);
    if timeout.is_zero() {
        return Ok(QuestionAnswer::Declined);
    }
    let asked = ToolCall { arguments: question.to_arguments(), ..call.clone() };
    let (own_model, question) = (run.agent.own_model, Some(Box::new(question)));
    let row = ApprovalRow { own_model, question, ..new_approval_row(&run.writer, &asked, timeout) };
    let settled = wait_answered(run.services, run.scope, &run.writer, row).await?;
    match settled.state {
        ApprovalState::Allowed { .. } => Ok(QuestionAnswer::Accepted(settled.answer_fields)),
        ApprovalState::Denied { .. } | ApprovalState::TimedOut => Ok(QuestionAnswer::Declined),
        ApprovalState::Cancelled | ApprovalState::Pending => Err(Cancelled),
    }
}

/// Opens an approval and waits until it is settled.
async fn wait_answered(
    services: &Services,
    scope: &Scope,
    writer: &RunWriter,
    row: ApprovalRow,
) -> Result<SettledApproval, Cancelled> {
    let timeout = Duration::from_secs(services.limits.approval_timeout_s);
    let (id, approvals) = (row.id.clone(), services.approvals.clone());
    let label = format!("{} {id}", row.tool);
    let announcer = EventAnnouncer::new(writer, &id);
    // A stop that comes before the approval is listed refuses it, and a later one settles it: none is left pending.
    let held = scope.hold(ResourceKind::Approval, label);
    let held = held.on_stop(move |_| approvals.cancel(&id));
    let first = announcer.clone();
    let announce = |row: &ApprovalRow| match scope.is_cancelled() {
        true => Err(TurnSealed),
        false => first.announce_requested(row),
    };
    let mut waiter = services.approvals.open(row, announce, announcer)?;
    let state = scope.race(Point::Approval, waiter.wait_settled(timeout)).await?;
    // A stop settles the approval, which may be seen here before the stop itself: the row says what ended it.
    if state == ApprovalState::Cancelled {
        return Err(Cancelled);
    }
    held.release(Release::Finished);
    Ok(SettledApproval { state, answer_fields: waiter.answer_fields() })
}

/// How an approval ended.
struct SettledApproval {
    state: ApprovalState,
    /// The fields of the accepted answer to a question.
    answer_fields: Map<String, Value>,
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
        escalation: None,
        question: None,
        answer_fields: None,
        requested_at: clock.rfc3339(now),
        expires_at: clock.rfc3339(now.plus(timeout)),
        own_model: false,
        quorum: default_quorum(),
        allowed_by: Vec::new(),
        state: ApprovalState::Pending,
    }
}
