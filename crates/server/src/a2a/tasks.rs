//! Tasks, as a client sees them: the runs of an agent, and what their events mean for it.

use std::collections::BTreeMap;

use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::receipt::summary_line::receipt_line;
use quell_protocol::{AgentId, EventKind, Receipt, RunEvent, RunId, SessionKey, Verdict};
use serde_json::{Value, json};

use super::messages::{ALLOWING_TEXTS, DENYING_TEXTS};
use crate::http::ApiCall;
use crate::mcp_server::verdict_text;

/// The artifact with the answer of the agent.
const ANSWER_ARTIFACT: &str = "answer";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum A2aTaskState {
    Submitted,
    Working,
    InputRequired,
    Completed,
    Failed,
    Canceled,
}

impl A2aTaskState {
    /// A stop shows at once, because its verdict stands; another end shows with the receipt.
    pub(super) fn of(run: &RunView, approval: Option<&ApprovalRow>) -> Self {
        match &run.verdict {
            Some(verdict @ Verdict::Aborted { .. }) => Self::of_verdict(verdict),
            Some(verdict) if run.receipt.is_some() => Self::of_verdict(verdict),
            Some(Verdict::Completed | Verdict::Failed { .. }) => Self::Working,
            None if approval.is_some() => Self::InputRequired,
            None if run.state == "queued" => Self::Submitted,
            None => Self::Working,
        }
    }

    fn of_verdict(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Completed => Self::Completed,
            Verdict::Failed { .. } => Self::Failed,
            Verdict::Aborted { .. } => Self::Canceled,
        }
    }

    pub(super) fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled => true,
            Self::Submitted | Self::Working | Self::InputRequired => false,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "TASK_STATE_SUBMITTED",
            Self::Working => "TASK_STATE_WORKING",
            Self::InputRequired => "TASK_STATE_INPUT_REQUIRED",
            Self::Completed => "TASK_STATE_COMPLETED",
            Self::Failed => "TASK_STATE_FAILED",
            Self::Canceled => "TASK_STATE_CANCELED",
        }
    }
}

/// What of a task is told besides its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskParts {
    pub(super) history: bool,
    pub(super) artifacts: bool,
    pub(super) receipt: bool,
}

impl TaskParts {
    pub(super) const ALL: Self = Self { history: true, artifacts: true, receipt: true };

    /// With as many messages as the client wants: the one that began the task, or none.
    pub(super) fn with_history(self, length: Option<u32>) -> Self {
        Self { history: length != Some(0), ..self }
    }
}

/// The calls that wait for a person and that the caller may see: the first one of each task and its sub-agents.
pub(super) fn pending_approvals(call: &ApiCall) -> BTreeMap<RunId, ApprovalRow> {
    let mut by_task = BTreeMap::new();
    for approval in call.engine().visible_approvals(&call.caller) {
        let live_run = call.engine().live_run(&approval.run_id);
        let tree = live_run.map_or_else(|| vec![approval.run_id.clone()], |live_run| live_run.lineage());
        for run in tree {
            by_task.entry(run).or_insert_with(|| approval.clone());
        }
    }
    by_task
}

/// The calls of the task and of its sub-agents that wait for a person and that the caller may see, oldest first.
pub(super) fn waiting_approvals(call: &ApiCall, run: &RunId) -> Vec<ApprovalRow> {
    call.engine().visible_approvals_of_tree(&call.caller, run)
}

/// The first one of [`waiting_approvals`].
pub(super) fn pending_approval(call: &ApiCall, run: &RunId) -> Option<ApprovalRow> {
    waiting_approvals(call, run).into_iter().next()
}

pub(super) fn describe_task(run: &RunView, approval: Option<&ApprovalRow>, parts: TaskParts) -> Value {
    let mut task = json!({
        "id": run.run_id,
        "contextId": run.session_key,
        "status": status(run, approval),
        "metadata": {"agent": run.agent},
    });
    if let Some(receipt) = run.receipt.as_ref().filter(|_| parts.receipt) {
        task["metadata"]["receipt"] = json!(receipt);
    }
    if parts.artifacts {
        let output = run.output.iter().filter(|output| !output.is_empty());
        task["artifacts"] = output.map(|output| answer_artifact(output)).collect();
    }
    if parts.history {
        task["history"] = json!([task_message(run, "user", "ROLE_USER", &json!([{"text": run.text}]))]);
    }
    task
}

fn status(run: &RunView, approval: Option<&ApprovalRow>) -> Value {
    let state = A2aTaskState::of(run, approval);
    let times = [&run.ended_at, &run.started_at];
    let at = times.into_iter().flatten().next().unwrap_or(&run.accepted_at);
    match (&run.verdict, approval) {
        (Some(verdict), _) if state.is_terminal() => end_status(run, at, verdict, run.receipt.as_ref()),
        (None, Some(approval)) => AskedCall::of_row(run, approval).status(run, &approval.requested_at),
        (None | Some(_), _) => json!({"state": state.as_str(), "timestamp": at}),
    }
}

/// A run or an event of it: what messages of a task name.
pub(super) trait TaskPlace {
    fn run(&self) -> &RunId;
    fn context(&self) -> &SessionKey;
}

impl TaskPlace for RunView {
    fn run(&self) -> &RunId {
        &self.run_id
    }

    fn context(&self) -> &SessionKey {
        &self.session_key
    }
}

impl TaskPlace for RunEvent {
    fn run(&self) -> &RunId {
        &self.run_id
    }

    fn context(&self) -> &SessionKey {
        &self.session_key
    }
}

/// The last status of a task. Its message says how the run ended, and has the line of the receipt.
fn end_status(place: &impl TaskPlace, at: &str, verdict: &Verdict, receipt: Option<&Receipt>) -> Value {
    let end = (*verdict != Verdict::Completed).then(|| verdict_text(verdict));
    let lines: Vec<String> = end.into_iter().chain(receipt.map(receipt_line)).collect();
    let message = task_message(place, "end", "ROLE_AGENT", &json!([{"text": lines.join("\n")}]));
    json!({"state": A2aTaskState::of_verdict(verdict).as_str(), "timestamp": at, "message": message})
}

/// A call that a task needs input for.
struct AskedCall<'a> {
    approval: &'a str,
    tool: &'a str,
    arguments: &'a Value,
    sub_agent: Option<&'a AgentId>,
}

impl<'a> AskedCall<'a> {
    fn of_row(place: &impl TaskPlace, row: &'a ApprovalRow) -> Self {
        let ApprovalRow { id, tool, arguments, agent, run_id, .. } = row;
        Self { approval: id, tool, arguments, sub_agent: (run_id != place.run()).then_some(agent) }
    }

    fn status(&self, place: &impl TaskPlace, at: &str) -> Value {
        let Self { approval, tool, arguments, sub_agent } = self;
        let agent = sub_agent.map_or_else(|| "The agent".to_owned(), |agent| format!("The sub-agent {agent}"));
        let question = format!(
            "{agent} wants to call {tool}. Answer {} to allow the call, or {} to deny it.",
            ALLOWING_TEXTS.join(", "),
            DENYING_TEXTS.join(", ")
        );
        let parts = json!([
            {"text": question},
            {"data": {"approval": approval, "tool": tool, "arguments": arguments}},
        ]);
        let message = task_message(place, approval, "ROLE_AGENT", &parts);
        json!({"state": A2aTaskState::InputRequired.as_str(), "timestamp": at, "message": message})
    }
}

pub(super) fn answer_artifact(text: &str) -> Value {
    json!({"artifactId": ANSWER_ARTIFACT, "name": ANSWER_ARTIFACT, "parts": [{"text": text}]})
}

/// A message of a task. It has the same id whenever it is sent.
fn task_message(place: &impl TaskPlace, part: &str, role: &str, parts: &Value) -> Value {
    let id = format!("{}-{part}", place.run());
    json!({"messageId": id, "contextId": place.context(), "taskId": place.run(), "role": role, "parts": parts})
}

/// The state that an event brings a task into, with the update that tells it; `None` for events that change no state.
pub(super) fn status_update(event: &RunEvent) -> Option<(A2aTaskState, Value)> {
    let (state, status, receipt) = match &event.kind {
        EventKind::Started { .. } => working_status(event),
        EventKind::ApprovalResolved { decision, .. } if decision != "cancelled" => working_status(event),
        // Whatever ended it: a task goes on when its sub-agent is stopped.
        EventKind::SubRunApprovalResolved { .. } => working_status(event),
        EventKind::ApprovalRequested { id, tool, arguments, .. } => {
            let asked = AskedCall { approval: id, tool, arguments, sub_agent: None };
            (A2aTaskState::InputRequired, asked.status(event, &event.at), None)
        }
        EventKind::SubRunApprovalRequested { approval } => {
            (A2aTaskState::InputRequired, AskedCall::of_row(event, approval).status(event, &event.at), None)
        }
        EventKind::Snapshot { approvals, .. } => match approvals.first() {
            Some(approval) => {
                let asked = AskedCall::of_row(event, approval);
                (A2aTaskState::InputRequired, asked.status(event, &approval.requested_at), None)
            }
            None => working_status(event),
        },
        EventKind::Ended { verdict, receipt, .. } => {
            let status = end_status(event, &event.at, verdict, Some(receipt));
            (A2aTaskState::of_verdict(verdict), status, Some(receipt.as_ref()))
        }
        // The end of the run follows a cancelled approval at once.
        EventKind::ApprovalResolved { .. }
        | EventKind::Queued { .. }
        | EventKind::StepStarted { .. }
        | EventKind::TextDelta { .. }
        | EventKind::ThinkingDelta { .. }
        | EventKind::ToolWaiting { .. }
        | EventKind::ToolStarted { .. }
        | EventKind::ToolOutput { .. }
        | EventKind::ToolEnded { .. }
        | EventKind::ApprovalUpdated { .. }
        | EventKind::Ending { .. }
        | EventKind::ModelRetry { .. }
        | EventKind::ModelSearch { .. }
        | EventKind::ModelFallback { .. }
        | EventKind::Compacted { .. }
        | EventKind::Usage { .. } => return None,
    };
    let mut update = wrap_status(event, &status);
    if let Some(receipt) = receipt {
        update["statusUpdate"]["metadata"] = json!({"receipt": receipt});
    }
    Some((state, update))
}

/// The update that tells that a call of a task, or of a sub-agent, waits for a person.
pub(super) fn input_required_update(place: &impl TaskPlace, approval: &ApprovalRow) -> Value {
    wrap_status(place, &AskedCall::of_row(place, approval).status(place, &approval.requested_at))
}

fn wrap_status(place: &impl TaskPlace, status: &Value) -> Value {
    json!({"statusUpdate": {"taskId": place.run(), "contextId": place.context(), "status": status}})
}

fn working_status(event: &RunEvent) -> (A2aTaskState, Value, Option<&Receipt>) {
    let state = A2aTaskState::Working;
    (state, json!({"state": state.as_str(), "timestamp": event.at}), None)
}
