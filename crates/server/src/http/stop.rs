//! Stop a run, a session or everything; set and lift the hold.
//!
//! These routes are behind no limiter and no queue. The stop is carried out before the first await.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use quell_engine::access::Caller;
use quell_engine::engine::{StopResult, build_stop_answer};
use quell_kernel::StopLevel;
use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy, StopRequest, StopScope};
use quell_protocol::api::{
    Hold, StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView,
};
use quell_protocol::{ErrorCode, RunId, SessionKey, StopReason};
use quell_store::StoreError;
use serde::Deserialize;

use super::auth::StopCaller;
use super::extractors::{OptionalJsonBody, QueryParams};
use super::runs::{parse_run_id, run_not_found};
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

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

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WaitQuery {
    wait: Option<String>,
}

impl WaitQuery {
    /// False for `wait=0`, `wait=false`, `wait=no` and no `wait`.
    fn should_wait(&self) -> bool {
        self.wait.as_deref().is_some_and(|text| !matches!(text, "0" | "false" | "no"))
    }
}

pub(super) fn stop_request(caller: &Caller, force: bool, reason: Option<&str>) -> StopRequest {
    let level = if force { StopLevel::Forced } else { StopLevel::Gentle };
    let reason = reason.map_or(StopReason::User, StopReason::from_text);
    StopRequest { level, reason, surface: caller.surface }
}

pub(super) async fn stop_run(
    State(server): State<ServerState>,
    StopCaller(auth): StopCaller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<WaitQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopRunRequest>,
) -> Result<Response, ProblemResponse> {
    let caller = auth.require_write()?;
    let id = parse_run_id(&id)?;
    let scope = StopScope::Run { id: id.clone(), session: request.session_key.clone() };
    let stop = server.engine().stop(caller, &scope, &stop_request(caller, request.force, request.reason.as_deref()));
    let Some(ticket) = stop.tickets.iter().find(|ticket| *ticket.live_run().id() == id) else {
        return run_not_stopped_response(&server, caller, &id, request.session_key.as_ref()).await;
    };
    wait_if_asked(&query, &stop).await;
    let live_run = ticket.live_run();
    let Some(verdict) = live_run.verdict() else { return Err(run_not_found(&id)) };
    let receipt = live_run.receipt();
    let state = if receipt.is_some() { "ended" } else { "ending" }.to_owned();
    let status = if receipt.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let view = TicketView { run_id: id, state, stop: build_stop_answer(stop), verdict, receipt };
    Ok((status, Json(view)).into_response())
}

/// The response for a run that this stop did not reach: it has ended, or belongs to another caller, or does not exist.
async fn run_not_stopped_response(
    server: &ServerState,
    caller: &Caller,
    id: &RunId,
    session: Option<&SessionKey>,
) -> Result<Response, ProblemResponse> {
    let view = server.engine().find_run(id).await?.ok_or_else(|| run_not_found(id))?;
    if session.is_some_and(|key| *key != view.session_key) {
        return Err(run_not_found(id));
    }
    if !caller.is_admin() && view.principal != caller.principal {
        return Err(problem_response(
            ErrorCode::Forbidden,
            format!("the run {id:?} is not yours; an admin token can stop it"),
        ));
    }
    let Some(verdict) = view.verdict else { return Err(run_not_found(id)) };
    let answer = TicketView {
        run_id: id.clone(),
        state: view.state,
        stop: StopAnswer::default(),
        verdict,
        receipt: view.receipt,
    };
    Ok(Json(answer).into_response())
}

pub(super) async fn stop_session(
    State(server): State<ServerState>,
    StopCaller(auth): StopCaller,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<WaitQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopSessionRequest>,
) -> Result<Json<StopAnswer>, ProblemResponse> {
    let caller = auth.require_write()?;
    let queued = if request.keep_queued { QueuedPolicy::Keep } else { QueuedPolicy::Withdraw };
    let background = if request.keep_background { BackgroundPolicy::Keep } else { BackgroundPolicy::Stop };
    let scope = StopScope::Session { key: SessionKey::parse(key)?, queued, background };
    let stop = server.engine().stop(caller, &scope, &stop_request(caller, request.force, request.reason.as_deref()));
    wait_if_asked(&query, &stop).await;
    Ok(Json(build_stop_answer(stop)))
}

pub(super) async fn stop_everything(
    State(server): State<ServerState>,
    StopCaller(auth): StopCaller,
    QueryParams(query): QueryParams<WaitQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopAllRequest>,
) -> Result<Json<StopAllAnswer>, ProblemResponse> {
    let caller = auth.require_admin()?;
    if request.hold {
        // Set before the stop, so that no run starts in between, and stored before the response.
        server.engine().hold_now();
    }
    let stop = server.engine().stop(
        caller,
        &StopScope::Everything,
        &stop_request(caller, request.force, request.reason.as_deref()),
    );
    // A failed write must not hide what was stopped.
    let store_error =
        if request.hold { server.engine().set_hold(caller, true, request.reason).await.err() } else { None };
    wait_if_asked(&query, &stop).await;
    let held = server.engine().is_held();
    Ok(Json(StopAllAnswer {
        stop: build_stop_answer(stop),
        held,
        hold_problem: store_error.map(|error| hold_not_stored_detail(&error)),
    }))
}

/// Text for a hold that is in memory only.
fn hold_not_stored_detail(error: &StoreError) -> String {
    format!(
        "new runs are refused from now on, but that could not be written down, and a restart before it is would take runs \
         again: {error}"
    )
}

async fn wait_if_asked(query: &WaitQuery, stop: &StopResult) {
    if query.should_wait() {
        stop.wait_settled().await;
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HoldRequest {
    held: Option<bool>,
    reason: Option<String>,
}

pub(super) async fn show_hold(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
) -> Result<Json<Hold>, ProblemResponse> {
    Ok(Json(server.engine().hold().await?))
}

pub(super) async fn set_hold(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    OptionalJsonBody(request): OptionalJsonBody<HoldRequest>,
) -> Result<Json<Hold>, ProblemResponse> {
    let (caller, held) = (auth.require_admin()?, request.held.unwrap_or(true));
    match server.engine().set_hold(caller, held, request.reason).await {
        Ok(hold) => Ok(Json(hold)),
        Err(error) if held && server.engine().is_held() => {
            Err(problem_response(ErrorCode::StoreUnavailable, hold_not_stored_detail(&error)))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn lift_hold(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
) -> Result<Json<Hold>, ProblemResponse> {
    Ok(Json(server.engine().set_hold(auth.require_admin()?, false, None).await?))
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
}
