//! The end of a run as the result of a tool, and the steps of a run as texts of progress.

use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{EventKind, Verdict};
use serde_json::{Value, json};

/// The result of a tool that answers with data: as structured content, and as text for clients that know only that.
pub(super) fn data_result(data: &Value) -> Value {
    json!({"content": [{"type": "text", "text": data.to_string()}], "structuredContent": data, "isError": false})
}

/// The result of a run that has ended: its answer or what ended it, and the receipt.
pub(super) fn run_result(run: &RunView) -> Value {
    json!({
        "content": [{"type": "text", "text": end_text(run)}],
        "structuredContent": run_data(run),
        "isError": !matches!(run.verdict, Some(Verdict::Completed)),
    })
}

/// The state of a run for a client that looks on.
pub(super) fn state_result(run: &RunView) -> Value {
    let text = match &run.verdict {
        Some(_) => end_text(run),
        None => format!("the run {} is {}; call watch_run again to wait on", run.run_id, run.state),
    };
    json!({
        "content": [{"type": "text", "text": text}],
        "structuredContent": run_data(run),
        "isError": false,
    })
}

fn run_data(run: &RunView) -> Value {
    let mut data = json!({
        "runId": run.run_id,
        "sessionKey": run.session_key,
        "agent": run.agent,
        "state": run.state,
        "steps": run.steps,
        "usage": run.usage,
        "seq": run.seq,
    });
    let more = [
        ("text", run.output.as_ref().map(|text| json!(text))),
        ("verdict", run.verdict.as_ref().map(|verdict| json!(verdict))),
        ("receipt", run.receipt.as_ref().map(|receipt| json!(receipt))),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            data[name] = value;
        }
    }
    data
}

fn end_text(run: &RunView) -> String {
    let end = match &run.verdict {
        Some(Verdict::Completed) => return run.output.clone().unwrap_or_default(),
        Some(verdict) => verdict_text(verdict),
        None => return format!("the run {} is {}", run.run_id, run.state),
    };
    match run.output.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => format!("{end}. Until then it had written:\n\n{text}"),
        None => end,
    }
}

/// Why a run ended, for people.
pub(crate) fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Completed => "the run completed".to_owned(),
        Verdict::Failed { code, message } => format!("the run failed ({code}): {message}"),
        Verdict::Aborted { reason, by: Some(by) } => {
            format!("the run was stopped by {} ({}): {reason}", by.principal, by.surface.as_str())
        }
        Verdict::Aborted { reason, by: None } => format!("the run was stopped: {reason}"),
    }
}

/// The text of a step, for people; `None` for events that are no step.
pub(crate) fn progress_text(event: &EventKind) -> Option<String> {
    match event {
        EventKind::Queued { agent } => Some(format!("queued for the agent {agent}")),
        EventKind::Started { agent } => Some(format!("the agent {agent} has started")),
        EventKind::StepStarted { step } => Some(format!("step {step}")),
        EventKind::ToolStarted { tool, .. } => Some(format!("{tool} has started")),
        EventKind::ToolEnded { ms, .. } => Some(format!("the call has ended after {ms:.0} ms")),
        EventKind::ApprovalRequested { id, tool, .. } => Some(format!("{tool} waits for the approval {id}")),
        EventKind::ApprovalResolved { id, decision, .. } => Some(format!("the approval {id}: {decision}")),
        EventKind::SubRunApprovalRequested { approval } => {
            let ApprovalRow { id, tool, agent, .. } = &**approval;
            Some(format!("{tool} of the sub-agent {agent} waits for the approval {id}"))
        }
        EventKind::SubRunApprovalResolved { approval } => {
            Some(format!("the approval {}: {}", approval.id, approval.state.decision_str()))
        }
        EventKind::ModelRetry { attempt, attempts, reason, .. } => {
            Some(format!("the model request {attempt} of {attempts} failed: {reason}"))
        }
        EventKind::ModelSearch { query } => Some(format!("the model has searched the web for {query}")),
        EventKind::ModelFallback { from, to, .. } => Some(format!("the model {to} takes over from {from}")),
        EventKind::Compacted { turns, .. } => Some(format!("{turns} turns were summarised")),
        EventKind::Ending { verdict } => Some(format!("{}; what it holds is being released", verdict_text(verdict))),
        EventKind::TextDelta { .. }
        | EventKind::ThinkingDelta { .. }
        | EventKind::ToolWaiting { .. }
        | EventKind::ToolOutput { .. }
        | EventKind::ApprovalUpdated { .. }
        | EventKind::Snapshot { .. }
        | EventKind::Ended { .. }
        | EventKind::Usage { .. } => None,
    }
}
