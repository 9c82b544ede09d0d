//! Every way to stop over HTTP, and the hold. These routes are behind no limiter and no queue: the stop itself is done before
//! the handler waits for anything.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use quell_engine::access::Caller;
use quell_engine::dispatch::{Stop, stop_answer};
use quell_engine::store::StoreError;
use quell_kernel::Push;
use quell_kernel::registry::{Background, Queued, StopAsk, StopScope};
use quell_protocol::api::{
    Hold, StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView,
};
use quell_protocol::{ErrorCode, RunId, SessionKey, StopReason};
use serde::Deserialize;

use super::auth::Stopper;
use super::body::{Asked, Optional};
use super::runs::{known_id, no_run};
use super::{Refused, Visitor, refuse};
use crate::door::Door;

/// True for the routes that stop and do nothing else: they need no token at the Unix socket, and have descriptors kept back for
/// them. The hold has neither.
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
    /// `wait=0`, `wait=false` and no `wait` do not wait.
    fn waits(&self) -> bool {
        self.wait.as_deref().is_some_and(|text| !matches!(text, "0" | "false" | "no"))
    }
}

pub(super) fn ask(caller: &Caller, force: bool, reason: Option<&str>) -> StopAsk {
    let push = if force { Push::Forced } else { Push::Gentle };
    let reason = reason.map_or(StopReason::User, StopReason::from_text);
    StopAsk { push, reason, surface: caller.surface }
}

pub(super) async fn run(
    State(door): State<Door>,
    Stopper(visitor): Stopper,
    Path(id): Path<String>,
    Asked(query): Asked<WaitQuery>,
    Optional(request): Optional<StopRunRequest>,
) -> Result<Response, Refused> {
    let caller = visitor.writer()?;
    let id = known_id(&id)?;
    let scope = StopScope::Run { id: id.clone(), session: request.session_key.clone() };
    let stop = door.engine().stop(caller, &scope, &ask(caller, request.force, request.reason.as_deref()));
    let Some(ticket) = stop.tickets.iter().find(|ticket| *ticket.cell().id() == id) else {
        return not_stopped(&door, caller, &id, request.session_key.as_ref()).await;
    };
    wait_if_asked(&query, &stop).await;
    let cell = ticket.cell();
    let Some(verdict) = cell.verdict() else { return Err(no_run(&id)) };
    let receipt = cell.receipt();
    let state = if receipt.is_some() { "ended" } else { "ending" }.to_owned();
    let status = if receipt.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let view = TicketView { run_id: id, state, stop: stop_answer(stop), verdict, receipt };
    Ok((status, Json(view)).into_response())
}

/// The run is over and only the database knows it, or it is not this caller's, or there is none.
async fn not_stopped(
    door: &Door,
    caller: &Caller,
    id: &RunId,
    session: Option<&SessionKey>,
) -> Result<Response, Refused> {
    let view = door.engine().run(id).await?.ok_or_else(|| no_run(id))?;
    if session.is_some_and(|key| *key != view.session_key) {
        return Err(no_run(id));
    }
    if !caller.is_admin() && view.principal != caller.principal {
        return Err(refuse(ErrorCode::Forbidden, format!("the run {id:?} is not yours; an admin token can stop it")));
    }
    let Some(verdict) = view.verdict else { return Err(no_run(id)) };
    let answer = TicketView {
        run_id: id.clone(),
        state: view.state,
        stop: StopAnswer::default(),
        verdict,
        receipt: view.receipt,
    };
    Ok(Json(answer).into_response())
}

pub(super) async fn session(
    State(door): State<Door>,
    Stopper(visitor): Stopper,
    Path(key): Path<String>,
    Asked(query): Asked<WaitQuery>,
    Optional(request): Optional<StopSessionRequest>,
) -> Result<Json<StopAnswer>, Refused> {
    let caller = visitor.writer()?;
    let queued = if request.keep_queued { Queued::Keep } else { Queued::Withdraw };
    let background = if request.keep_background { Background::Keep } else { Background::Stop };
    let scope = StopScope::Session { key: SessionKey::parse(key)?, queued, background };
    let stop = door.engine().stop(caller, &scope, &ask(caller, request.force, request.reason.as_deref()));
    wait_if_asked(&query, &stop).await;
    Ok(Json(stop_answer(stop)))
}

pub(super) async fn everything(
    State(door): State<Door>,
    Stopper(visitor): Stopper,
    Asked(query): Asked<WaitQuery>,
    Optional(request): Optional<StopAllRequest>,
) -> Result<Json<StopAllAnswer>, Refused> {
    let caller = visitor.admin()?;
    if request.hold {
        // Before the stop, so that nothing slips in between; durable before the answer.
        door.engine().hold_now();
    }
    let stop =
        door.engine().stop(caller, &StopScope::Everything, &ask(caller, request.force, request.reason.as_deref()));
    // What was stopped is told also by a daemon whose database refuses.
    let unstored = if request.hold { door.engine().set_hold(caller, true, request.reason).await.err() } else { None };
    wait_if_asked(&query, &stop).await;
    let held = door.engine().is_held();
    Ok(Json(StopAllAnswer { stop: stop_answer(stop), held, hold_problem: unstored.map(|error| unwritten(&error)) }))
}

/// What a hold is worth that is in memory only.
fn unwritten(error: &StoreError) -> String {
    format!(
        "new runs are refused from now on, but that could not be written down, and a restart before it is would take runs \
         again: {error}"
    )
}

async fn wait_if_asked(query: &WaitQuery, stop: &Stop) {
    if query.waits() {
        stop.settled().await;
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HoldRequest {
    held: Option<bool>,
    reason: Option<String>,
}

pub(super) async fn show_hold(State(door): State<Door>, _visitor: Visitor) -> Result<Json<Hold>, Refused> {
    Ok(Json(door.engine().hold().await?))
}

pub(super) async fn set_hold(
    State(door): State<Door>,
    visitor: Visitor,
    Optional(request): Optional<HoldRequest>,
) -> Result<Json<Hold>, Refused> {
    let (caller, held) = (visitor.admin()?, request.held.unwrap_or(true));
    match door.engine().set_hold(caller, held, request.reason).await {
        Ok(hold) => Ok(Json(hold)),
        Err(error) if held && door.engine().is_held() => Err(refuse(ErrorCode::StoreUnavailable, unwritten(&error))),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn lift_hold(State(door): State<Door>, visitor: Visitor) -> Result<Json<Hold>, Refused> {
    Ok(Json(door.engine().set_hold(visitor.admin()?, false, None).await?))
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
