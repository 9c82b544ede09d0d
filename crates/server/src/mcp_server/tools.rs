//! The tools that the MCP server offers.
//!
//! What the engine refuses is a result with `isError`, which a model can read. A missing right is an error of JSON-RPC.

mod definitions;

use std::time::Duration;

use quell_protocol::api::{OnBusy, SendRequest, StopAllRequest, StopRunRequest, StopSessionRequest};
use quell_protocol::{AgentId, ErrorCode, RunId, SessionKey};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::McpAnswer;
use super::call_stream::CallStream;
use super::methods::McpRequest;
use super::run_result::data_result;
use super::session_table::{CallPurpose, FollowedCall};
use super::tasks;
use super::versions::ProtocolEra;
use crate::disconnect_stop::DisconnectStop;
use crate::http::{
    ApiCall, ProblemResponse, RunListQuery, StopWaitMode, change_hold, list_runs, stop_all, stop_one_run,
    stop_one_session,
};
use crate::json_rpc::{INVALID_PARAMS, JsonRpcFailure, METHOD_NOT_FOUND};
use crate::sent_message::{SentMessage, new_run_id, send_message};

pub(super) use definitions::list;

/// How long `watch_run` waits, unless the client says so.
const DEFAULT_WATCH: Duration = Duration::from_secs(60);
const MAX_WATCH: Duration = Duration::from_secs(3600);

/// True for the tools that only stop something or concern the hold.
pub(super) fn is_stop_tool(name: &str) -> bool {
    matches!(name, "stop_run" | "stop_session" | "stop_all" | "hold" | "lift_hold")
}

#[derive(Debug, Deserialize)]
struct ToolCallParams {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// Present if a client with a session wants a task.
    task: Option<Value>,
    #[serde(rename = "_meta", default)]
    meta: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunAgentArguments {
    message: String,
    agent: Option<AgentId>,
    session: Option<SessionKey>,
    on_busy: Option<OnBusy>,
    timeout_s: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchRunArguments {
    run: RunId,
    timeout_s: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StopRunArguments {
    run: RunId,
    #[serde(default)]
    force: bool,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StopSessionArguments {
    session: SessionKey,
    #[serde(default)]
    force: bool,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldArguments {
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

pub(super) async fn call(request: McpRequest) -> Result<McpAnswer, JsonRpcFailure> {
    let params: ToolCallParams = request.request.parse_params()?;
    if params.task.is_some() && request.era == ProtocolEra::Session && params.name != "run_agent" {
        let text = format!("the tool {} cannot be called as a task", params.name);
        return Err(JsonRpcFailure::new(METHOD_NOT_FOUND, text));
    }
    let call = &request.call;
    let arguments = params.arguments.clone();
    let answered = match params.name.as_str() {
        "run_agent" => return run_agent(request, params).await,
        "watch_run" => return watch_run(request, params).await,
        "list_agents" => {
            parse_arguments::<NoArguments>(arguments)?;
            Ok(json!({"items": call.engine().list_agents()}))
        }
        "list_runs" => list_runs(call, parse_arguments::<RunListQuery>(arguments)?).await.map(|page| json!(page)),
        "stop_run" => stop_run(call, parse_arguments(arguments)?).await,
        "stop_session" => {
            let StopSessionArguments { session, force, reason } = parse_arguments(arguments)?;
            let stop = StopSessionRequest { force, reason, ..StopSessionRequest::default() };
            stop_one_session(call, session, &stop, StopWaitMode::Settled).await.map(|answer| json!(answer))
        }
        "stop_all" => {
            let stop: StopAllRequest = parse_arguments(arguments)?;
            stop_all(call, stop, StopWaitMode::Settled).await.map(|answer| json!(answer))
        }
        "hold" => {
            let HoldArguments { reason } = parse_arguments(arguments)?;
            change_hold(call, true, reason).await.map(|hold| json!(hold))
        }
        "lift_hold" => {
            parse_arguments::<NoArguments>(arguments)?;
            change_hold(call, false, None).await.map(|hold| json!(hold))
        }
        unknown => {
            let text = format!("there is no tool {unknown:?}; tools/list names them");
            return Err(JsonRpcFailure::new(INVALID_PARAMS, text));
        }
    };
    answered.map(|data| McpAnswer::Result(data_result(&data))).or_else(refuse)
}

fn parse_arguments<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, JsonRpcFailure> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| JsonRpcFailure::new(INVALID_PARAMS, format!("the arguments: {error}")))
}

/// The answer of a tool that was refused.
fn refuse(response: ProblemResponse) -> Result<McpAnswer, JsonRpcFailure> {
    let problem = response.problem();
    if problem.code == ErrorCode::Forbidden.as_str() {
        return Err(JsonRpcFailure::of_problem(problem));
    }
    let text = problem.detail.clone().unwrap_or_else(|| problem.title.clone());
    Ok(McpAnswer::Result(json!({
        "content": [{"type": "text", "text": format!("{}: {text}", problem.code)}],
        "structuredContent": problem,
        "isError": true,
    })))
}

async fn stop_run(call: &ApiCall, arguments: StopRunArguments) -> Result<Value, ProblemResponse> {
    let StopRunArguments { run, force, reason } = arguments;
    let stop = StopRunRequest { session_key: None, force, reason };
    stop_one_run(call, &run, &stop, StopWaitMode::Settled).await.map(|view| json!(view))
}

async fn run_agent(request: McpRequest, params: ToolCallParams) -> Result<McpAnswer, JsonRpcFailure> {
    let RunAgentArguments { message, agent, session, on_busy, timeout_s } = parse_arguments(params.arguments)?;
    if on_busy == Some(OnBusy::Steer) {
        let text = "on_busy may be queue, interrupt or reject: a message that steers another run has no run of its own";
        return Err(JsonRpcFailure::new(INVALID_PARAMS, text));
    }
    let run = new_run_id();
    let key = match session {
        Some(key) => key,
        None => SessionKey::parse(format!("mcp:{}", Uuid::now_v7().simple())).map_err(ProblemResponse::from)?,
    };
    let message = SendRequest {
        text: message,
        agent,
        idempotency_key: Some(run.clone()),
        on_busy,
        timeout_ms: timeout_s.map(|seconds| seconds.saturating_mul(1000)),
        literal: false,
        attachments: Vec::new(),
    };
    let is_task = match request.era {
        ProtocolEra::Session => params.task.is_some(),
        ProtocolEra::Stateless => request.capabilities.tasks,
    };
    if is_task {
        return match send_message(&request.call, key, message).await {
            Ok(SentMessage::Run(answer)) => tasks::created(&request, &answer.run_id).await,
            Ok(SentMessage::Stopped(answer)) => Ok(McpAnswer::Result(data_result(&json!(answer)))),
            Err(problem) => refuse(problem),
        };
    }
    let followed = FollowedCall {
        request: request.request.id.clone(),
        progress_token: progress_token(&params.meta),
        run,
        purpose: CallPurpose::RunAgent,
    };
    start_followed_run(request, followed, key, message).await
}

/// Sends the message of a call that waits for the end of the run. From before the message is sent, a cancel stops the
/// run.
async fn start_followed_run(
    request: McpRequest,
    followed: FollowedCall,
    key: SessionKey,
    message: SendRequest,
) -> Result<McpAnswer, JsonRpcFailure> {
    let McpRequest { call, session, .. } = request;
    let is_bound = session.as_ref().is_none_or(|session| session.is_bound_to_connection());
    let mut disconnect_stop =
        is_bound.then(|| DisconnectStop::arm(call.engine(), &call.caller, followed.run.clone(), None));
    let session_call = session.as_ref().map(|session| session.add_call(followed.clone()));
    let session_call = match session_call.transpose() {
        Ok(session_call) => session_call,
        Err(refused) => {
            disconnect_stop.iter_mut().for_each(DisconnectStop::disarm);
            return Err(refused);
        }
    };
    let answered = match send_message(&call, key, message).await {
        Ok(SentMessage::Run(_)) => {
            // Nobody gets the answer of a run that cannot be followed: it is stopped.
            let mut stop_on_failure = DisconnectStop::arm(call.engine(), &call.caller, followed.run.clone(), None);
            let opened = match session_call {
                Some(session_call) => CallStream::open_in_session(call, session_call, 0).await,
                None => CallStream::open_stateless(call, followed.clone(), 0).await,
            };
            match opened {
                Ok(stream) => {
                    stop_on_failure.disarm();
                    return Ok(McpAnswer::Stream(Box::new(stream.stopped_by(disconnect_stop))));
                }
                Err(failure) => Err(failure),
            }
        }
        Ok(SentMessage::Stopped(answer)) => Ok(McpAnswer::Result(data_result(&json!(answer)))),
        Err(problem) => refuse(problem),
    };
    disconnect_stop.iter_mut().for_each(DisconnectStop::disarm);
    if let Some(session) = session {
        session.remove_call(&followed.request);
    }
    answered
}

async fn watch_run(request: McpRequest, params: ToolCallParams) -> Result<McpAnswer, JsonRpcFailure> {
    let WatchRunArguments { run, timeout_s } = parse_arguments(params.arguments)?;
    let limit = timeout_s.map_or(DEFAULT_WATCH, Duration::from_secs).min(MAX_WATCH);
    let purpose = CallPurpose::Watch { until: Instant::now() + limit };
    let progress_token = progress_token(&params.meta);
    if let Err(problem) = request.call.find_readable_run(&run).await {
        return refuse(problem);
    }
    follow(request, run, progress_token, purpose).await
}

/// Answers a call by the end of a run that it does not own.
pub(super) async fn follow(
    request: McpRequest,
    run: RunId,
    progress_token: Option<Value>,
    purpose: CallPurpose,
) -> Result<McpAnswer, JsonRpcFailure> {
    let McpRequest { call, session, request, .. } = request;
    let followed = FollowedCall { request: request.id, progress_token, run, purpose };
    let stream = match session {
        Some(session) => {
            let session_call = session.add_call(followed.clone())?;
            let opened = CallStream::open_in_session(call, session_call, 0).await;
            opened.inspect_err(|_| session.remove_call(&followed.request))?
        }
        None => CallStream::open_stateless(call, followed, 0).await?,
    };
    Ok(McpAnswer::Stream(Box::new(stream)))
}

fn progress_token(meta: &Map<String, Value>) -> Option<Value> {
    meta.get("progressToken").filter(|token| token.is_string() || token.is_i64() || token.is_u64()).cloned()
}
