//! List, show, create and delete agents; abort their model calls or runs.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use quell_engine::engine::{AgentChangeError, AgentRemoval, build_stop_answer};
use quell_kernel::registry::AgentRunFilter;
use quell_protocol::agents::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use quell_protocol::api::{AgentAbortAnswer, AgentRow, Page, StopRunRequest};
use quell_protocol::web_ui::ModelRow;
use quell_protocol::{AgentId, ErrorCode};
use serde::Deserialize;

use super::auth::StopCaller;
use super::extractors::{ForceQuery, JsonBody, OptionalJsonBody, QueryParams};
use super::sessions::ReasonBody;
use super::stop::stop_request;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

pub(super) async fn list(call: ApiCall) -> Json<Page<AgentRow>> {
    let mut items = call.engine().list_agents();
    for agent in &mut items {
        call.engine().retain_visible_runs(&call.caller, &mut agent.active_runs);
    }
    Json(Page { items, next_cursor: None })
}

pub(super) async fn show(call: ApiCall, Path(id): Path<String>) -> ApiResult<AgentView> {
    let id = parse_agent_id(&id)?;
    let mut view = call.engine().agent_view(&id).ok_or_else(|| agent_not_found(&id))?;
    call.caller.key.check_agent(&id)?;
    call.engine().retain_visible_runs(&call.caller, &mut view.row.active_runs);
    Ok(Json(view))
}

pub(super) async fn tree(call: ApiCall) -> Json<Page<AgentNode>> {
    let mut items = call.engine().agent_tree();
    items.iter_mut().for_each(|node| hide_foreign_runs(&call, node));
    Json(Page { items, next_cursor: None })
}

fn hide_foreign_runs(call: &ApiCall, node: &mut AgentNode) {
    call.engine().retain_visible_runs(&call.caller, &mut node.active_runs);
    node.children.iter_mut().for_each(|child| hide_foreign_runs(call, child));
}

impl From<AgentChangeError> for ProblemResponse {
    fn from(error: AgentChangeError) -> Self {
        problem_response(error.code(), error.to_string())
    }
}

pub(super) async fn create(
    call: ApiCall,
    JsonBody(request): JsonBody<NewAgent>,
) -> Result<(StatusCode, Json<AgentRow>), ProblemResponse> {
    let row = call.engine().create_agent(call.require_admin()?, request).await?;
    Ok((StatusCode::CREATED, Json(row)))
}

pub(super) async fn delete(
    call: ApiCall,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<ForceQuery>,
    OptionalJsonBody(request): OptionalJsonBody<ReasonBody>,
) -> ApiResult<AgentsDeleted> {
    let caller = call.require_admin()?;
    let id = parse_agent_id(&id)?;
    let removal = match query.force.0 {
        false => AgentRemoval::IfIdle,
        true => AgentRemoval::Force(stop_request(caller, false, request.reason.as_deref())),
    };
    Ok(Json(call.engine().delete_agent(caller, &id, removal).await?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AbortAgentQuery {
    scope: Option<String>,
}

pub(super) async fn abort(
    StopCaller(call): StopCaller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<AbortAgentQuery>,
    OptionalJsonBody(request): OptionalJsonBody<StopRunRequest>,
) -> ApiResult<AgentAbortAnswer> {
    let caller = call.require_stop()?;
    require_engine_open(&call)?;
    let id = parse_agent_id(&id)?;
    if call.engine().find_agent(&id).is_none() {
        return Err(agent_not_found(&id));
    }
    let abort_request = stop_request(caller, request.force, request.reason.as_deref());
    let engine = call.engine();
    let (mut answer, mut stop) = match query.scope.as_deref() {
        None | Some("call") => engine.abort_agent(caller, &id, AgentRunFilter::WaitingLlm, &abort_request),
        Some("run") => engine.abort_agent(caller, &id, AgentRunFilter::Any, &abort_request),
        Some("tree") => engine.abort_agent_tree(caller, &id, &abort_request),
        Some(other) => {
            let detail = format!("scope is {other:?}; it may be `run`, `tree` or absent");
            return Err(problem_response(ErrorCode::InvalidRequest, detail));
        }
    };
    // Answer when none of these runs is `waiting_llm` or `stopping` any more: row B5 of docs/design/requirements.md.
    for ticket in &stop.tickets {
        ticket.wait_settled().await;
    }
    stop.wait_settled_everywhere().await;
    let stopped = build_stop_answer(&stop);
    if stopped.aborted && !answer.aborted {
        (answer.aborted, answer.reason) = (true, None);
    }
    answer.run_ids = stopped.run_ids;
    answer.paused_schedules = stopped.paused_schedules;
    answer.unreached = stopped.unreached;
    Ok(Json(answer))
}

pub(super) async fn abort_without_id(call: ApiCall) -> Result<(), ProblemResponse> {
    call.require_stop()?;
    require_engine_open(&call)?;
    Err(missing_agent_id())
}

/// Must be the first check of an abort: row B4 of docs/design/requirements.md.
fn require_engine_open(call: &ApiCall) -> Result<(), ProblemResponse> {
    if call.engine().is_open() {
        return Ok(());
    }
    Err(problem_response(ErrorCode::SocietyNotInitialized, "the daemon is starting or closing; ask again"))
}

fn parse_agent_id(text: &str) -> Result<AgentId, ProblemResponse> {
    if text.trim().is_empty() {
        return Err(missing_agent_id());
    }
    AgentId::parse(text).map_err(|_| problem_response(ErrorCode::AgentNotFound, format!("there is no agent {text:?}")))
}

fn missing_agent_id() -> ProblemResponse {
    problem_response(ErrorCode::MissingAgentId, "name the agent in the path: /api/agent/AGENT/abort")
}

pub(super) fn agent_not_found(id: &AgentId) -> ProblemResponse {
    problem_response(ErrorCode::AgentNotFound, format!("there is no agent {id:?}; GET /api/agents lists them"))
}

/// The models that agents use, each with its agents.
pub(super) async fn models(call: ApiCall) -> Json<Page<ModelRow>> {
    let mut models: BTreeMap<String, Vec<AgentId>> = BTreeMap::new();
    for agent in call.engine().list_agents() {
        models.entry(agent.model).or_default().push(agent.id);
    }
    let items = models.into_iter().map(|(model, agents)| ModelRow { model, agents }).collect();
    Json(Page { items, next_cursor: None })
}
