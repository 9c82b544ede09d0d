//! Agents: list, look, make, delete, and the abort of their model calls (row B4).

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::dispatch::{Removal, SocietyError};
use quell_kernel::registry::AgentPhase;
use quell_protocol::api::{AgentAbortAnswer, AgentRow, List, StopRunRequest};
use quell_protocol::page::ModelRow;
use quell_protocol::society::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use quell_protocol::{AgentId, ErrorCode};
use serde::Deserialize;

use super::auth::Stopper;
use super::body::{Asked, Body, Optional};
use super::sessions::EndRequest;
use super::stop::ask;
use super::{Refused, Visitor, refuse};
use crate::door::Door;

pub(super) async fn list(State(door): State<Door>, _visitor: Visitor) -> Json<List<AgentRow>> {
    Json(List { items: door.engine().agents(), next_cursor: None })
}

pub(super) async fn show(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Json<AgentView>, Refused> {
    let id = agent_id(&id)?;
    door.engine().agent_view(&id).map(Json).ok_or_else(|| no_agent(&id))
}

pub(super) async fn tree(State(door): State<Door>, _visitor: Visitor) -> Json<List<AgentNode>> {
    Json(List { items: door.engine().agent_tree(), next_cursor: None })
}

impl From<SocietyError> for Refused {
    fn from(error: SocietyError) -> Self {
        refuse(error.code(), error.to_string())
    }
}

pub(super) async fn create(
    State(door): State<Door>,
    visitor: Visitor,
    Body(request): Body<NewAgent>,
) -> Result<(StatusCode, Json<AgentRow>), Refused> {
    let row = door.engine().create_agent(visitor.admin()?, request).await?;
    Ok((StatusCode::CREATED, Json(row)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DeleteQuery {
    force: Option<String>,
}

pub(super) async fn delete(
    State(door): State<Door>,
    visitor: Visitor,
    Path(id): Path<String>,
    Asked(query): Asked<DeleteQuery>,
    Optional(request): Optional<EndRequest>,
) -> Result<Json<AgentsDeleted>, Refused> {
    let caller = visitor.admin()?;
    let id = agent_id(&id)?;
    let removal = match query.force.as_deref() {
        None | Some("0" | "false" | "no") => Removal::IfIdle,
        Some(_) => Removal::Force(ask(caller, false, request.reason.as_deref())),
    };
    Ok(Json(door.engine().delete_agent(caller, &id, removal).await?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AbortQuery {
    scope: Option<String>,
}

pub(super) async fn abort(
    State(door): State<Door>,
    Stopper(visitor): Stopper,
    Path(id): Path<String>,
    Asked(query): Asked<AbortQuery>,
    Optional(request): Optional<StopRunRequest>,
) -> Result<Json<AgentAbortAnswer>, Refused> {
    let caller = visitor.writer()?;
    check_open(&door)?;
    let id = agent_id(&id)?;
    if door.engine().agent(&id).is_none() {
        return Err(no_agent(&id));
    }
    let ask = ask(caller, request.force, request.reason.as_deref());
    let engine = door.engine();
    let (answer, stop) = match query.scope.as_deref() {
        None | Some("call") => engine.abort_agent(caller, &id, AgentPhase::WaitingLlm, &ask),
        Some("run") => engine.abort_agent(caller, &id, AgentPhase::Any, &ask),
        Some("tree") => engine.abort_agent_tree(caller, &id, &ask),
        Some(other) => {
            let detail = format!("scope is {other:?}; it may be `run`, `tree` or absent");
            return Err(refuse(ErrorCode::InvalidRequest, detail));
        }
    };
    // The answer is sent when the status has left `waiting_llm` and `stopping` for these runs (row B5).
    for ticket in &stop.tickets {
        ticket.settled().await;
    }
    Ok(Json(answer))
}

pub(super) async fn abort_without_id(State(door): State<Door>, visitor: Visitor) -> Result<(), Refused> {
    visitor.writer()?;
    check_open(&door)?;
    Err(missing_id())
}

/// The first check of row B4.
fn check_open(door: &Door) -> Result<(), Refused> {
    if door.engine().is_open() {
        return Ok(());
    }
    Err(refuse(ErrorCode::SocietyNotInitialized, "the daemon is starting or closing; ask again"))
}

fn agent_id(text: &str) -> Result<AgentId, Refused> {
    if text.trim().is_empty() {
        return Err(missing_id());
    }
    AgentId::parse(text).map_err(|_| refuse(ErrorCode::AgentNotFound, format!("there is no agent {text:?}")))
}

fn missing_id() -> Refused {
    refuse(ErrorCode::MissingAgentId, "name the agent in the path: /api/agent/AGENT/abort")
}

fn no_agent(id: &AgentId) -> Refused {
    refuse(ErrorCode::AgentNotFound, format!("there is no agent {id:?}; GET /api/agents lists them"))
}

/// The models that agents work with, each with its agents.
pub(super) async fn models(State(door): State<Door>, _visitor: Visitor) -> Json<List<ModelRow>> {
    let mut models: BTreeMap<String, Vec<AgentId>> = BTreeMap::new();
    for agent in door.engine().agents() {
        models.entry(agent.model).or_default().push(agent.id);
    }
    let items = models.into_iter().map(|(model, agents)| ModelRow { model, agents }).collect();
    Json(List { items, next_cursor: None })
}
