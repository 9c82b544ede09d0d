//! Stop a run, a session or everything; set and lift the hold.
//!
//! These routes are behind no limiter and no queue. The stop is carried out before the first await.

use axum::Json;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use quell_engine::access::Caller;
use quell_engine::engine::{StopResult, build_stop_answer};
use quell_kernel::StopLevel;
use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy, StopRequest, StopScope};
use quell_protocol::api::{
    Hold, StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView,
};
use quell_protocol::{AgentId, ErrorCode, RunId, SessionKey, StopReason};
use quell_store::StoreError;
use serde::Deserialize;

use super::auth::StopCaller;
use super::extractors::{OptionalJsonBody, QueryFlag, QueryParams};
use super::runs::{parse_run_id, run_not_found};
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

/// True for the routes that stop and do nothing else. At the Unix socket they need no token, and descriptors are
/// reserved for them. Neither is true for the hold.
pub(crate) fn is_stop_route(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let is_stop = matches!(
        parts.as_slice(),
        ["api", "stop"] | ["api", "runs" | "sessions", _, "stop"] | ["api", "agent", _, "abort"]
    );
    *method == Method::POST && is_stop
}

/// True for what the stop contract names and for what shows it: stops, the hold, and the end of a background process.
/// No limiter counts these requests. Messages are counted by their own route, because their text may be a stop.
pub(super) fn is_outside_limits(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let is_contract = matches!(
        (method.as_str(), parts.as_slice()),
        (_, ["api", "hold"])
            | ("DELETE", ["api", "sessions", _, "processes", _])
            | ("POST", ["v1", "responses", _, "cancel"])
            | ("POST", ["api", "agent", "", "abort"] | ["api", "sessions", _, "runs"])
            // Their own code counts what is no stop.
            | (_, ["mcp"] | ["a2a", _, ..])
    );
    is_contract || is_stop_route(method, path)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WaitQuery {
    wait: QueryFlag,
}

impl WaitQuery {
    fn mode(&self) -> StopWaitMode {
        if self.wait.0 { StopWaitMode::Settled } else { StopWaitMode::CarriedOut }
    }
}

/// A stop that a client asks for, over HTTP or WebSocket.
pub(crate) fn stop_request(caller: &Caller, force: bool, reason: Option<&str>) -> StopRequest {
    let level = if force { StopLevel::Forced } else { StopLevel::Gentle };
    let reason = reason.map_or(StopReason::User, StopReason::from_text);
    StopRequest { level, reason, surface: caller.surface }
}

pub(super) async fn stop_run(
    StopCaller(call): StopCaller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<WaitQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopRunRequest>,
) -> Result<Response, ProblemResponse> {
    let view = stop_one_run(&call, &parse_run_id(&id)?, &request, query.mode()).await?;
    let status = if view.receipt.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(view)).into_response())
}

/// What a stop waits for before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopWaitMode {
    /// Everything has been told to end, on all nodes.
    CarriedOut,
    /// Everything has ended.
    Settled,
}

/// Stops a run, whichever transport asks.
pub(crate) async fn stop_one_run(
    call: &ApiCall,
    id: &RunId,
    request: &StopRunRequest,
    wait: StopWaitMode,
) -> Result<TicketView, ProblemResponse> {
    stop_run_of(call, id, None, request, wait).await
}

/// Stops a run of this agent. The run of another one goes on, on whichever node it is, and is answered as unknown.
pub(crate) async fn stop_run_of_agent(
    call: &ApiCall,
    id: &RunId,
    agent: &AgentId,
    request: &StopRunRequest,
    wait: StopWaitMode,
) -> Result<TicketView, ProblemResponse> {
    stop_run_of(call, id, Some(agent), request, wait).await
}

async fn stop_run_of(
    call: &ApiCall,
    id: &RunId,
    agent: Option<&AgentId>,
    request: &StopRunRequest,
    wait: StopWaitMode,
) -> Result<TicketView, ProblemResponse> {
    let caller = call.require_stop()?;
    let session = request.session_key.clone();
    let scope = StopScope::Run { id: id.clone(), session, agent: agent.cloned() };
    let mut stop = call.engine().stop(caller, &scope, &stop_request(caller, request.force, request.reason.as_deref()));
    let Some(ticket) = stop.tickets.iter().find(|ticket| ticket.live_run().id() == id).cloned() else {
        wait_for_stop(wait, &mut stop).await;
        return view_of_run_elsewhere(call, &scope, &stop).await;
    };
    wait_for_stop(wait, &mut stop).await;
    let live_run = ticket.live_run();
    let Some(verdict) = live_run.verdict() else { return Err(run_not_found(id)) };
    let receipt = live_run.receipt();
    let state = if receipt.is_some() { "ended" } else { "ending" }.to_owned();
    Ok(TicketView { run_id: id.clone(), state, stop: build_stop_answer(&stop), verdict, receipt })
}

/// The state of a run that the stop did not reach on this node: it is on another node of the cluster, has ended,
/// belongs to another caller, or does not exist.
async fn view_of_run_elsewhere(
    call: &ApiCall,
    scope: &StopScope,
    stop: &StopResult,
) -> Result<TicketView, ProblemResponse> {
    let StopScope::Run { id, session, agent } = scope else { unreachable!("only the stop of one run looks for it") };
    let view = call.engine().find_run(id).await?.ok_or_else(|| run_not_found(id))?;
    let is_other = session.as_ref().is_some_and(|key| *key != view.session_key)
        || agent.as_ref().is_some_and(|agent| *agent != view.agent);
    if is_other {
        return Err(run_not_found(id));
    }
    if !call.caller.may_stop_all() && view.principal != call.caller.principal {
        return Err(problem_response(
            ErrorCode::Forbidden,
            format!("the run {id:?} is not yours; an admin token can stop it"),
        ));
    }
    let stop = build_stop_answer(stop);
    if !stop.unreached.is_empty() && view.receipt.is_none() {
        return Err(owner_unreached(id, &stop));
    }
    let Some(verdict) = view.verdict else { return Err(run_not_found(id)) };
    Ok(TicketView { run_id: id.clone(), state: view.state, stop, verdict, receipt: view.receipt })
}

/// The answer if the node of a run is silent.
fn owner_unreached(id: &RunId, stop: &StopAnswer) -> ProblemResponse {
    let Some(node) = stop.unreached.first() else { return run_not_found(id) };
    let stored = if node.stored {
        "The stop is stored, and the node carries it out as soon as it answers."
    } else {
        "The stop could not be stored either; send it again."
    };
    problem_response(
        ErrorCode::NodeUnreachable,
        format!(
            "the run {id:?} is on the node {}, which does not answer. {stored} If it stays silent, everything that it holds ends \
             by {}, {} ms from now, when its lease ends",
            node.node, node.lease_ends_by, node.lease_ends_in_ms
        ),
    )
}

pub(super) async fn stop_session(
    StopCaller(call): StopCaller,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<WaitQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopSessionRequest>,
) -> ApiResult<StopAnswer> {
    stop_one_session(&call, SessionKey::parse(key)?, &request, query.mode()).await.map(Json)
}

/// Stops a session, whichever transport asks.
pub(crate) async fn stop_one_session(
    call: &ApiCall,
    key: SessionKey,
    request: &StopSessionRequest,
    wait: StopWaitMode,
) -> Result<StopAnswer, ProblemResponse> {
    let caller = call.require_stop()?;
    let queued = if request.keep_queued { QueuedPolicy::Keep } else { QueuedPolicy::Withdraw };
    let background = if request.keep_background { BackgroundPolicy::Keep } else { BackgroundPolicy::Stop };
    let scope = StopScope::Session { key, queued, background };
    let mut stop = call.engine().stop(caller, &scope, &stop_request(caller, request.force, request.reason.as_deref()));
    wait_for_stop(wait, &mut stop).await;
    Ok(build_stop_answer(&stop))
}

pub(super) async fn stop_everything(
    StopCaller(call): StopCaller,
    QueryParams(query): QueryParams<WaitQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopAllRequest>,
) -> ApiResult<StopAllAnswer> {
    stop_all(&call, request, query.mode()).await.map(Json)
}

/// Stops everything, whichever transport asks.
pub(crate) async fn stop_all(
    call: &ApiCall,
    request: StopAllRequest,
    wait: StopWaitMode,
) -> Result<StopAllAnswer, ProblemResponse> {
    let caller = if request.hold { call.require_admin()? } else { call.require_stop_all()? };
    if request.hold {
        // Set before the stop, so that no run starts in between, and stored before the response.
        call.engine().hold_now();
    }
    let stop_request = stop_request(caller, request.force, request.reason.as_deref());
    let mut stop = call.engine().stop(caller, &StopScope::Everything, &stop_request);
    // A failed write must not hide what was stopped.
    let store_error =
        if request.hold { call.engine().set_hold(caller, true, request.reason).await.err() } else { None };
    wait_for_stop(wait, &mut stop).await;
    let held = call.engine().is_held();
    Ok(StopAllAnswer {
        stop: build_stop_answer(&stop),
        held,
        hold_problem: store_error.map(|error| hold_not_stored_detail(&error)),
    })
}

/// Text for a hold that is in memory only.
fn hold_not_stored_detail(error: &StoreError) -> String {
    format!(
        "new runs are refused from now on, but that could not be written down, and a restart before it is would take runs \
         again: {error}"
    )
}

/// Waits for the answers of other nodes, and for the end of everything if the caller wants that.
async fn wait_for_stop(wait: StopWaitMode, stop: &mut StopResult) {
    match wait {
        StopWaitMode::Settled => stop.wait_settled_everywhere().await,
        StopWaitMode::CarriedOut => stop.wait_carried_out().await,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HoldRequest {
    held: Option<bool>,
    reason: Option<String>,
}

pub(super) async fn show_hold(call: ApiCall) -> ApiResult<Hold> {
    Ok(Json(call.engine().hold().await?))
}

pub(super) async fn set_hold(
    call: ApiCall,
    OptionalJsonBody(request): OptionalJsonBody<HoldRequest>,
) -> ApiResult<Hold> {
    change_hold(&call, request.held.unwrap_or(true), request.reason).await.map(Json)
}

/// Sets or lifts the hold, whichever transport asks.
pub(crate) async fn change_hold(call: &ApiCall, held: bool, reason: Option<String>) -> Result<Hold, ProblemResponse> {
    let caller = call.require_admin()?;
    match call.engine().set_hold(caller, held, reason).await {
        Ok(hold) => Ok(hold),
        Err(error) if held && call.engine().is_held() => {
            Err(problem_response(ErrorCode::StoreUnavailable, hold_not_stored_detail(&error)))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn lift_hold(call: ApiCall) -> ApiResult<Hold> {
    Ok(Json(call.engine().set_hold(call.require_admin()?, false, None).await?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Method::POST, "/api/stop", true)]
    #[case(Method::POST, "/api/runs/r%2F1/stop", true)]
    #[case(Method::POST, "/api/sessions/cli:default/stop", true)]
    #[case(Method::POST, "/api/agent/main/abort", true)]
    #[case(Method::GET, "/api/stop", false)]
    #[case(Method::PUT, "/api/hold", false)]
    #[case(Method::POST, "/api/sessions/s/runs", false)]
    #[case(Method::POST, "/api/runs/r/stop/more", false)]
    #[case(Method::POST, "/x/api/stop", false)]
    fn only_stops_are_stops(#[case] method: Method, #[case] path: &str, #[case] is_stop: bool) {
        assert_eq!(is_stop_route(&method, path), is_stop);
    }

    #[rstest]
    #[case(Method::POST, "/api/stop", true)]
    #[case(Method::POST, "/api/agent/main/abort", true)]
    #[case(Method::GET, "/api/hold", true)]
    #[case(Method::DELETE, "/api/hold", true)]
    #[case(Method::POST, "/mcp", true)]
    #[case(Method::POST, "/a2a/main/tasks/t:cancel", true)]
    #[case(Method::DELETE, "/api/sessions/s/processes/p", true)]
    #[case(Method::GET, "/api/sessions/s/processes/p", false)]
    #[case(Method::GET, "/api/runs/r/stop", false)]
    #[case(Method::GET, "/api/sessions/s/runs", false)]
    #[case(Method::POST, "/api/approvals/a", false)]
    #[case(Method::GET, "/api/holds", false)]
    fn no_limiter_counts_what_the_stop_contract_names(
        #[case] method: Method,
        #[case] path: &str,
        #[case] is_outside: bool,
    ) {
        assert_eq!(is_outside_limits(&method, path), is_outside);
    }
}
