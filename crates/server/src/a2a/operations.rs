//! The operations of A2A, the same for both bindings: their names, and what each answers.

use axum::http::Method;
use percent_encoding::percent_decode_str;
use quell_protocol::api::{RunView, StopRunRequest};
use quell_protocol::{AgentId, ErrorCode, Verdict};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::cards::agent_not_found;
use super::errors::{A2aError, A2aErrorKind};
use super::task_stream::{TaskStream, TaskUpdates};
use super::tasks::{A2aTaskState, TaskParts, describe_task, pending_approval, waiting_approvals};
use super::{A2aAnswer, A2aBinding, push_configs, sending, task_list};
use crate::client_run::stream_permit;
use crate::http::{
    ApiCall, RunEventReader, StopWaitMode, parse_run_id, problem_response, stop_one_run, stop_run_of_agent,
};
use crate::mcp_server::verdict_text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum A2aOperation {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    CreatePushConfig,
    GetPushConfig,
    ListPushConfigs,
    DeletePushConfig,
    ExtendedCard,
}

impl A2aOperation {
    pub(super) fn of_method(method: &str) -> Result<Self, A2aError> {
        Ok(match method {
            "SendMessage" => Self::SendMessage,
            "SendStreamingMessage" => Self::SendStreamingMessage,
            "GetTask" => Self::GetTask,
            "ListTasks" => Self::ListTasks,
            "CancelTask" => Self::CancelTask,
            "SubscribeToTask" => Self::SubscribeToTask,
            "CreateTaskPushNotificationConfig" => Self::CreatePushConfig,
            "GetTaskPushNotificationConfig" => Self::GetPushConfig,
            "ListTaskPushNotificationConfigs" => Self::ListPushConfigs,
            "DeleteTaskPushNotificationConfig" => Self::DeletePushConfig,
            "GetExtendedAgentCard" => Self::ExtendedCard,
            other => {
                let text = format!("there is no method {other:?} in A2A 1.0");
                return Err(A2aError::new(A2aErrorKind::MethodNotFound, text));
            }
        })
    }

    /// The operation of an encoded path below the agent, and the parameters that the path names.
    pub(super) fn of_path(method: &Method, path: &str) -> Option<(Self, Map<String, Value>)> {
        let parts: Vec<&str> = path.split('/').collect();
        let named = |name: &str, text: &str| {
            let text = percent_decode_str(text).decode_utf8().ok()?;
            Some((name.to_owned(), json!(text)))
        };
        let with_id = |operation: Self, id: &str| Some((operation, Map::from_iter([named("id", id)?])));
        let with_config = |operation: Self, task: &str, id: &str| {
            Some((operation, Map::from_iter([named("taskId", task)?, named("id", id)?])))
        };
        let with_task = |operation: Self, task: &str| Some((operation, Map::from_iter([named("taskId", task)?])));
        match (method.as_str(), parts.as_slice()) {
            ("POST", ["message:send"]) => Some((Self::SendMessage, Map::new())),
            ("POST", ["message:stream"]) => Some((Self::SendStreamingMessage, Map::new())),
            ("GET", ["tasks"]) => Some((Self::ListTasks, Map::new())),
            ("GET", ["extendedAgentCard"]) => Some((Self::ExtendedCard, Map::new())),
            ("POST", ["tasks", task, "pushNotificationConfigs"]) => with_task(Self::CreatePushConfig, task),
            ("GET", ["tasks", task, "pushNotificationConfigs"]) => with_task(Self::ListPushConfigs, task),
            ("GET", ["tasks", task, "pushNotificationConfigs", id]) => with_config(Self::GetPushConfig, task, id),
            ("DELETE", ["tasks", task, "pushNotificationConfigs", id]) => with_config(Self::DeletePushConfig, task, id),
            (method, ["tasks", id]) => match (method, id.rsplit_once(':')) {
                ("POST", Some((id, "cancel"))) => with_id(Self::CancelTask, id),
                // The tables of the specification say POST, its protocol file GET.
                ("POST" | "GET", Some((id, "subscribe"))) => with_id(Self::SubscribeToTask, id),
                ("GET", _) => with_id(Self::GetTask, id),
                (_, _) => None,
            },
            (_, _) => None,
        }
    }
}

/// An operation with its caller and its agent.
pub(super) struct A2aRequest {
    pub(super) call: ApiCall,
    pub(super) agent: AgentId,
    pub(super) operation: A2aOperation,
    pub(super) params: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskIdParams {
    id: String,
    history_length: Option<u32>,
}

pub(super) async fn carry_out(request: A2aRequest, binding: &A2aBinding) -> Result<A2aAnswer, A2aError> {
    let operation = request.operation;
    if operation == A2aOperation::CancelTask {
        // No limiter comes before a stop, and it does not need the agent any more.
        return cancel(&request).await.map(A2aAnswer::Result);
    }
    request.check_agent()?;
    request.call.count_request()?;
    match operation {
        A2aOperation::SendMessage => sending::send(&request).await.map(A2aAnswer::Result),
        A2aOperation::SendStreamingMessage => sending::stream(&request, binding).await,
        A2aOperation::GetTask => get(&request).await.map(A2aAnswer::Result),
        A2aOperation::ListTasks => task_list::list(&request).await.map(A2aAnswer::Result),
        A2aOperation::CancelTask => unreachable!("carried out above"),
        A2aOperation::SubscribeToTask => subscribe(request, binding).await,
        A2aOperation::CreatePushConfig => push_configs::create(&request).await.map(A2aAnswer::Result),
        A2aOperation::GetPushConfig => push_configs::get(&request).await.map(A2aAnswer::Result),
        A2aOperation::ListPushConfigs => push_configs::list(&request).await.map(A2aAnswer::Result),
        A2aOperation::DeletePushConfig => push_configs::delete(&request).await.map(A2aAnswer::Result),
        A2aOperation::ExtendedCard => {
            let text = "there is no extended agent card; the card of the agent says all";
            Err(A2aError::new(A2aErrorKind::UnsupportedOperation, text))
        }
    }
}

impl A2aRequest {
    pub(super) fn parse_params<T: DeserializeOwned>(&self) -> Result<T, A2aError> {
        serde_json::from_value(Value::Object(self.params.clone()))
            .map_err(|error| A2aError::new(A2aErrorKind::InvalidParams, error.to_string()))
    }

    fn check_agent(&self) -> Result<(), A2aError> {
        if self.call.engine().find_agent(&self.agent).is_none() {
            return Err(agent_not_found(self.agent.as_str()).into());
        }
        let allowed = self.call.caller.key.check_agent(&self.agent);
        allowed.map_err(|refusal| problem_response(ErrorCode::Forbidden, refusal.to_string()).into())
    }

    /// A run of this agent that the caller may read. A message that another run took in has no task of its own.
    pub(super) async fn find_task(&self, id: &str) -> Result<RunView, A2aError> {
        let run = parse_run_id(id).map_err(|_| A2aError::task_not_found(id))?;
        match self.call.find_readable_run(&run).await.map_err(A2aError::from) {
            Ok(view) if view.agent == self.agent && view.state != "steered" => Ok(view),
            Ok(_) => Err(A2aError::task_not_found(id)),
            Err(error) if error.is_problem(ErrorCode::RunNotFound) => Err(A2aError::task_not_found(id)),
            Err(error) => Err(error),
        }
    }
}

async fn get(request: &A2aRequest) -> Result<Value, A2aError> {
    let params: TaskIdParams = request.parse_params()?;
    let view = request.find_task(&params.id).await?;
    let approval = pending_approval(&request.call, &view.run_id);
    Ok(describe_task(&view, approval.as_ref(), TaskParts::ALL.with_history(params.history_length)))
}

async fn subscribe(request: A2aRequest, binding: &A2aBinding) -> Result<A2aAnswer, A2aError> {
    let params: TaskIdParams = request.parse_params()?;
    let view = request.find_task(&params.id).await?;
    let permit = stream_permit(&request.call)?;
    let waiting = waiting_approvals(&request.call, &view.run_id);
    if A2aTaskState::of(&view, waiting.first()).is_terminal() {
        let text = format!("the task {} is over; read it by GetTask", view.run_id);
        return Err(A2aError::new(A2aErrorKind::UnsupportedOperation, text));
    }
    // The text so far comes from the events.
    let task = describe_task(&view, waiting.first(), TaskParts { artifacts: false, ..TaskParts::ALL });
    let reader = RunEventReader::open_with(request.call, &view.run_id, 0, permit).await?;
    let updates = TaskUpdates::after(&view, &waiting);
    Ok(A2aAnswer::Stream(Box::new(TaskStream::begin(task, reader, updates, binding.clone()))))
}

/// Stops the run of a task, and answers when everything that it held has ended.
async fn cancel(request: &A2aRequest) -> Result<Value, A2aError> {
    let TaskIdParams { id, .. } = request.parse_params()?;
    let run = parse_run_id(&id).map_err(|_| A2aError::task_not_found(&id))?;
    let engine = request.call.engine();
    let stop = StopRunRequest::default();
    // What was said to the task is a part of it for its client, and must not begin to run afterwards.
    if engine.live_run(&run).is_some_and(|live_run| live_run.view().agent == request.agent) {
        for message in engine.waiting_steering_messages(&run) {
            // Taken by the task meanwhile, it ends with the task; a message of somebody else stays.
            let _ = stop_one_run(&request.call, &message, &stop, StopWaitMode::CarriedOut).await;
        }
    }
    let stopped = stop_run_of_agent(&request.call, &run, &request.agent, &stop, StopWaitMode::Settled).await;
    let view = match stopped.map_err(A2aError::from) {
        Ok(view) => view,
        Err(error) if error.is_problem(ErrorCode::RunNotFound) => return Err(A2aError::task_not_found(&id)),
        Err(error) if error.is_problem(ErrorCode::Forbidden) => {
            // Only readers learn that there is such a task.
            request.find_task(&id).await?;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    let task = request.find_task(&id).await?;
    let is_stop = matches!(view.verdict, Verdict::Aborted { .. });
    // A repeated cancel while the task ends has the same effect as the first one.
    if !is_stop || !(view.stop.aborted || view.stop.ending.contains(&run)) {
        let text = format!("the task {run} is over: {}", verdict_text(&view.verdict));
        return Err(A2aError::new(A2aErrorKind::TaskNotCancelable, text));
    }
    Ok(describe_task(&task, None, TaskParts::ALL))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Method::POST, "message:send", A2aOperation::SendMessage, None)]
    #[case(Method::GET, "tasks", A2aOperation::ListTasks, None)]
    #[case(Method::GET, "tasks/a:b", A2aOperation::GetTask, Some("a:b"))]
    #[case(Method::GET, "tasks/a%3Ab", A2aOperation::GetTask, Some("a:b"))]
    #[case(Method::POST, "tasks/a:b:cancel", A2aOperation::CancelTask, Some("a:b"))]
    #[case(Method::POST, "tasks/a:cancel:cancel", A2aOperation::CancelTask, Some("a:cancel"))]
    #[case(Method::GET, "tasks/x:subscribe", A2aOperation::SubscribeToTask, Some("x"))]
    #[case(Method::POST, "tasks/x:subscribe", A2aOperation::SubscribeToTask, Some("x"))]
    #[case(Method::POST, "tasks/x/pushNotificationConfigs", A2aOperation::CreatePushConfig, None)]
    #[case(Method::GET, "tasks/x/pushNotificationConfigs", A2aOperation::ListPushConfigs, None)]
    #[case(Method::GET, "tasks/x/pushNotificationConfigs/a%2Fb", A2aOperation::GetPushConfig, Some("a/b"))]
    #[case(Method::DELETE, "tasks/x/pushNotificationConfigs/a", A2aOperation::DeletePushConfig, Some("a"))]
    fn a_path_names_an_operation(
        #[case] method: Method,
        #[case] path: &str,
        #[case] operation: A2aOperation,
        #[case] id: Option<&str>,
    ) {
        let (found, params) = A2aOperation::of_path(&method, path).unwrap();
        assert_eq!((found, params.get("id").and_then(Value::as_str)), (operation, id));
    }

    #[rstest]
    #[case(Method::DELETE, "tasks/x")]
    #[case(Method::POST, "tasks")]
    #[case(Method::POST, "tasks/x")]
    #[case(Method::GET, "tasks/x/y")]
    #[case(Method::GET, "tasks/x:cancel/")]
    #[case(Method::GET, "message:send")]
    fn other_paths_name_nothing(#[case] method: Method, #[case] path: &str) {
        assert!(A2aOperation::of_path(&method, path).is_none());
    }
}
