//! The tools that the MCP server offers.
//!
//! What the engine refuses is a result with `isError`, which a model can read. A missing right is an error of JSON-RPC.

mod definitions;

use std::time::Duration;

use quell_kernel::registry::StopScope;
use quell_protocol::api::{OnBusy, SendRequest, StopAllRequest, StopRunRequest, StopSessionRequest};
use quell_protocol::{AgentId, ErrorCode, RunId, SessionKey, StopReason};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::McpAnswer;
use super::call_stream::CallStream;
use super::methods::McpRequest;
use super::run_result::data_result;
use super::session_table::{AddedCall, AttachedCall, CallPurpose, FollowedCall, McpSession, is_active};
use super::tasks;
use super::versions::ProtocolEra;
use crate::disconnect_stop::{DisconnectStop, stop_for_client};
use crate::http::{
    ApiCall, ProblemResponse, RunListQuery, StopWaitMode, change_hold, list_runs, stop_all, stop_one_run,
    stop_one_session,
};
use crate::json_rpc::{INVALID_PARAMS, JsonRpcFailure, METHOD_NOT_FOUND};
use crate::sent_message::{new_run_id, send_message};

pub(super) use definitions::list;

/// How long `watch_run` waits, unless the client says so.
const DEFAULT_WATCH: Duration = Duration::from_secs(60);
const MAX_WATCH: Duration = Duration::from_secs(3600);

/// True for the tools that only stop something or keep it from beginning.
pub(super) fn is_stop_tool(name: &str) -> bool {
    matches!(name, "stop_run" | "stop_session" | "stop_all" | "hold")
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
            let mut items = call.engine().list_agents();
            items.iter_mut().for_each(|agent| call.engine().retain_visible_runs(&call.caller, &mut agent.active_runs));
            Ok(json!({"items": items}))
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
        literal: true,
        attachments: Vec::new(),
    };
    let is_task = match request.era {
        ProtocolEra::Session => params.task.is_some(),
        ProtocolEra::Stateless => request.capabilities.tasks,
    };
    let followed = FollowedCall {
        request: request.request.id.clone(),
        progress_token: progress_token(&params.meta),
        run,
        purpose: CallPurpose::RunAgent,
    };
    let Some(begun) = begin_call(&request, &followed)? else { return Ok(McpAnswer::NoAnswer) };
    if is_task {
        start_task(request, begun, key, message).await
    } else {
        start_followed_run(request, begun, key, message).await
    }
}

/// A call of `run_agent` whose message is to be sent. From before that, a cancel stops the run.
struct BegunCall {
    followed: FollowedCall,
    /// `None` without sessions.
    attached: Option<AttachedCall>,
    /// Present where the end of the connection is a cancel.
    disconnect_stop: Option<DisconnectStop>,
}

/// `None` if the call was cancelled before it has come.
fn begin_call(request: &McpRequest, followed: &FollowedCall) -> Result<Option<BegunCall>, JsonRpcFailure> {
    let McpRequest { call, session, .. } = request;
    let attached = match session.as_deref().map(|session| add_call(call, session, followed)).transpose()? {
        Some(AddedCall::CancelledBefore) => return Ok(None),
        Some(AddedCall::New(attached)) => Some(attached),
        None => None,
    };
    let is_bound = session.as_ref().is_none_or(|session| session.is_bound_to_connection());
    let disconnect_stop =
        is_bound.then(|| DisconnectStop::arm(call.engine(), &call.caller, followed.run.clone(), None));
    Ok(Some(BegunCall { followed: followed.clone(), attached, disconnect_stop }))
}

fn add_call(call: &ApiCall, session: &McpSession, followed: &FollowedCall) -> Result<AddedCall, JsonRpcFailure> {
    let engine = call.engine();
    session.add_call(followed.clone(), engine.clock().now(), &|run| is_active(engine, run))
}

/// Starts the run of a task. Its client knows the id only by the answer, so nothing goes on without that.
async fn start_task(
    request: McpRequest,
    begun: BegunCall,
    key: SessionKey,
    message: SendRequest,
) -> Result<McpAnswer, JsonRpcFailure> {
    let BegunCall { followed, attached, mut disconnect_stop } = begun;
    let answered = match send_message(&request.call, key, message).await {
        Ok(answer) => {
            let created = tasks::created(&request, &answer.run_id).await;
            created.inspect_err(|_| stop_unknown_run(&request.call, &followed.run))
        }
        Err(problem) => refuse(problem),
    };
    disconnect_stop.iter_mut().for_each(DisconnectStop::disarm);
    drop(attached);
    if let Some(session) = request.session {
        session.remove_call(&followed.request);
    }
    answered
}

/// Sends the message of a call that waits for the end of the run.
async fn start_followed_run(
    request: McpRequest,
    begun: BegunCall,
    key: SessionKey,
    message: SendRequest,
) -> Result<McpAnswer, JsonRpcFailure> {
    let McpRequest { call, session, .. } = request;
    let BegunCall { followed, attached, mut disconnect_stop } = begun;
    let answered = match send_message(&call, key, message).await {
        Ok(_) => {
            let opened = match attached {
                Some(attached) => CallStream::open_in_session(call.clone(), attached, 0).await,
                None => CallStream::open_stateless(call.clone(), followed.clone(), 0).await,
            };
            match opened {
                Ok(stream) => return Ok(McpAnswer::Stream(Box::new(stream.stopped_by(disconnect_stop)))),
                Err(failure) => {
                    stop_unknown_run(&call, &followed.run);
                    Err(failure)
                }
            }
        }
        Err(problem) => refuse(problem),
    };
    disconnect_stop.iter_mut().for_each(DisconnectStop::disarm);
    if let Some(session) = session {
        session.remove_call(&followed.request);
    }
    answered
}

/// Stops a run whose client gets an error, so that nobody knows of it.
fn stop_unknown_run(call: &ApiCall, run: &RunId) {
    let scope = StopScope::run(run.clone());
    stop_for_client(call.engine(), &call.caller, &scope, StopReason::Disconnect);
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
            let AddedCall::New(attached) = add_call(&call, &session, &followed)? else {
                return Ok(McpAnswer::NoAnswer);
            };
            let opened = CallStream::open_in_session(call, attached, 0).await;
            opened.inspect_err(|_| session.remove_call(&followed.request))?
        }
        None => CallStream::open_stateless(call, followed, 0).await?,
    };
    Ok(McpAnswer::Stream(Box::new(stream)))
}

fn progress_token(meta: &Map<String, Value>) -> Option<Value> {
    meta.get("progressToken").filter(|token| token.is_string() || token.is_i64() || token.is_u64()).cloned()
}
