//! Calls of `run_agent` as tasks: the task is the run, and its id is the id of the run.
//!
//! Two generations of the protocol differ. With a session (2025-11-25) the client asks for a task, and `tasks/result`
//! waits for its result. Without (the extension `io.modelcontextprotocol/tasks`) every client that declares the
//! extension gets a task, `tasks/get` has the result, and `tasks/update` answers an approval. A verdict never changes,
//! so neither does the end of a task.

use quell_protocol::api::{RunView, StopRunRequest};
use quell_protocol::approval::{ApprovalRow, Decision};
use quell_protocol::{ErrorCode, RunId, Surface, Verdict};
use quell_store::RunListFilter;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::McpAnswer;
use super::methods::{McpRequest, unknown_method};
use super::run_result::{run_result, verdict_text};
use super::session_table::CallPurpose;
use super::tools::follow;
use super::versions::ProtocolEra;
use crate::http::{ApiCall, ProblemResponse, StopWaitMode, parse_run_id, stop_one_run};
use crate::json_rpc::{INVALID_PARAMS, JsonRpcFailure};

/// How often a client should ask for the state of a task, in milliseconds.
const POLL_INTERVAL_MS: u64 = 500;
const PAGE_SIZE: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum McpTaskStatus {
    Working,
    Completed,
    Failed,
    Cancelled,
}

impl McpTaskStatus {
    /// A stop shows at once, because its verdict stands; another end shows with the receipt.
    fn of(run: &RunView, era: ProtocolEra) -> Self {
        match &run.verdict {
            Some(Verdict::Aborted { .. }) => Self::Cancelled,
            Some(_) if run.receipt.is_none() => Self::Working,
            None => Self::Working,
            Some(Verdict::Completed) => Self::Completed,
            // Without a session a failed run is the result of a call that was carried out.
            Some(Verdict::Failed { .. }) if era == ProtocolEra::Stateless => Self::Completed,
            Some(Verdict::Failed { .. }) => Self::Failed,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskParams {
    task_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskUpdateParams {
    task_id: String,
    input_responses: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
struct TaskListParams {
    cursor: Option<String>,
}

pub(super) async fn answer(request: McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let method = request.request.method.clone();
    match (request.era, method.as_str()) {
        (ProtocolEra::Session, "tasks/list") => list(&request).await,
        (ProtocolEra::Session, "tasks/result") => result(request).await,
        (ProtocolEra::Stateless, "tasks/update") => update(&request).await,
        (_, "tasks/get") => get(&request).await,
        (_, "tasks/cancel") => cancel(&request).await,
        (_, method) => Err(unknown_method(method)),
    }
}

/// The answer to a call that has become a task.
pub(super) async fn created(request: &McpRequest, run: &RunId) -> Result<McpAnswer, JsonRpcFailure> {
    let view = find_task(&request.call, run.as_str()).await?;
    let mut task = describe(&view, request.era, None);
    Ok(McpAnswer::Result(match request.era {
        ProtocolEra::Session => json!({"task": task}),
        ProtocolEra::Stateless => {
            task["resultType"] = json!("task");
            task
        }
    }))
}

/// Names the task to which a result belongs.
pub(super) fn related_task(mut result: Value, run: &RunId) -> Value {
    result["_meta"] = json!({"io.modelcontextprotocol/related-task": {"taskId": run}});
    result
}

async fn get(request: &McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let run = checked_task(request).await?;
    let call = &request.call;
    let approvals = call.engine().visible_approvals_of_tree(&call.caller, &run.run_id);
    let mut task = describe(&run, request.era, approvals.first());
    if request.era == ProtocolEra::Stateless {
        match McpTaskStatus::of(&run, request.era) {
            McpTaskStatus::Completed => task["result"] = run_result(&run),
            McpTaskStatus::Working if request.capabilities.elicitation && !approvals.is_empty() => {
                let questions = approvals.iter().map(|approval| (approval.id.clone(), approval_question(approval)));
                task["status"] = json!("input_required");
                task["inputRequests"] = Value::Object(questions.collect());
            }
            McpTaskStatus::Working | McpTaskStatus::Failed | McpTaskStatus::Cancelled => {}
        }
    }
    Ok(McpAnswer::Result(task))
}

async fn result(request: McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let run = checked_task(&request).await?;
    follow(request, run.run_id, None, CallPurpose::TaskResult).await
}

/// The runs that this token has started here.
async fn list(request: &McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let params: TaskListParams = request.request.parse_params()?;
    let call = &request.call;
    let filter = RunListFilter {
        session: None,
        principal: Some(call.caller.principal.clone()),
        visible_to: call.visible_to(),
        limit: PAGE_SIZE,
        cursor: params.cursor,
    };
    let page = call.engine().list_runs(filter).await.map_err(ProblemResponse::from)?;
    let own = page.items.iter().filter(|run| run.surface == Surface::Mcp && run.parent.is_none());
    let tasks: Vec<Value> = own.map(|run| describe(run, request.era, None)).collect();
    Ok(McpAnswer::Result(match page.next_cursor {
        Some(cursor) => json!({"tasks": tasks, "nextCursor": cursor}),
        None => json!({"tasks": tasks}),
    }))
}

/// Stops the run of a task. A session gets the task, which is cancelled by then.
async fn cancel(request: &McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    if request.era == ProtocolEra::Stateless {
        request.capabilities.require_tasks()?;
    }
    let TaskParams { task_id } = request.request.parse_params()?;
    let run = parse_run_id(&task_id).map_err(|problem| task_failure(problem, &task_id))?;
    let stop = StopRunRequest::default();
    let stopped = stop_one_run(&request.call, &run, &stop, StopWaitMode::CarriedOut).await;
    let view = stopped.map_err(|problem| task_failure(problem, &task_id))?;
    Ok(McpAnswer::Result(match request.era {
        ProtocolEra::Session if !view.stop.aborted => {
            let text = format!("the task {run} is over: {}", verdict_text(&view.verdict));
            return Err(JsonRpcFailure::new(INVALID_PARAMS, text));
        }
        ProtocolEra::Session => describe(&find_task(&request.call, &task_id).await?, request.era, None),
        ProtocolEra::Stateless => json!({}),
    }))
}

/// Answers the approvals that the task waits for. Answers to anything else are ignored, as the protocol wants it.
async fn update(request: &McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    request.capabilities.require_tasks()?;
    let params: TaskUpdateParams = request.request.parse_params()?;
    let run = find_task(&request.call, &params.task_id).await?;
    let call = &request.call;
    for approval in call.engine().visible_approvals_of_tree(&call.caller, &run.run_id) {
        let Some(response) = params.input_responses.get(&approval.id) else { continue };
        let decision = match response["action"].as_str() {
            Some("accept") if response["content"]["decision"] == "allow" => Decision::Allow,
            Some("accept" | "decline") => Decision::Deny,
            _ => continue,
        };
        let caller = call.require_approver()?;
        call.engine().answer_approval(caller, &approval.id, decision.into()).map_err(ProblemResponse::from)?;
    }
    Ok(McpAnswer::Result(json!({})))
}

/// The task that the params name. Without a session the client has to declare the extension.
async fn checked_task(request: &McpRequest) -> Result<RunView, JsonRpcFailure> {
    if request.era == ProtocolEra::Stateless {
        request.capabilities.require_tasks()?;
    }
    let params: TaskParams = request.request.parse_params()?;
    find_task(&request.call, &params.task_id).await
}

async fn find_task(call: &ApiCall, id: &str) -> Result<RunView, JsonRpcFailure> {
    let found = match parse_run_id(id) {
        Ok(run) => call.find_readable_run(&run).await,
        Err(problem) => Err(problem),
    };
    found.map_err(|problem| task_failure(problem, id))
}

fn task_failure(problem: ProblemResponse, id: &str) -> JsonRpcFailure {
    match problem.problem().code.as_str() {
        code if code == ErrorCode::RunNotFound.as_str() => {
            JsonRpcFailure::new(INVALID_PARAMS, format!("there is no task {id:?}"))
        }
        _ => problem.into(),
    }
}

fn approval_question(approval: &ApprovalRow) -> Value {
    let message = format!("The agent wants to call {} with {}. Allow it?", approval.tool, approval.arguments);
    let decision = json!({"type": "string", "enum": ["allow", "deny"], "description": "Allow or deny the call."});
    let schema = json!({"type": "object", "properties": {"decision": decision}, "required": ["decision"]});
    json!({
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    })
}

fn describe(run: &RunView, era: ProtocolEra, approval: Option<&ApprovalRow>) -> Value {
    let message = match (&run.verdict, approval) {
        (Some(verdict), _) => verdict_text(verdict),
        (None, Some(approval)) => format!("{} waits for the approval {}", approval.tool, approval.id),
        (None, None) => format!("the run is {}", run.state),
    };
    let updated = [&run.ended_at, &run.started_at].into_iter().flatten().next().unwrap_or(&run.accepted_at);
    let mut task = json!({
        "taskId": run.run_id,
        "status": McpTaskStatus::of(run, era).as_str(),
        "statusMessage": message,
        "createdAt": run.accepted_at,
        "lastUpdatedAt": updated,
    });
    let (ttl, interval) = match era {
        ProtocolEra::Session => ("ttl", "pollInterval"),
        ProtocolEra::Stateless => ("ttlMs", "pollIntervalMs"),
    };
    task[ttl] = Value::Null;
    task[interval] = json!(POLL_INTERVAL_MS);
    task
}
