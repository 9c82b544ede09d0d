//! Notes of sessions, agents and senders: look through them, forget one, forget all of a sender.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::dispatch::NoteFilter;
use quell_engine::memory::NoteScope;
use quell_protocol::api::List;
use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::{AgentId, ErrorCode, SessionKey};
use serde::Deserialize;

use super::body::Asked;
use super::runs::{PAGE, PAGE_MOST};
use super::{Refused, Visitor, refuse};
use crate::door::Door;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NoteQuery {
    query: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SenderQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn of_session(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(key): Path<String>,
    Asked(query): Asked<NoteQuery>,
) -> Result<Json<List<NoteRow>>, Refused> {
    let key = SessionKey::parse(key)?;
    if door.engine().session(&key).await?.is_none() {
        let detail = format!("there is no session {key:?}; `quell sessions` lists them");
        return Err(refuse(ErrorCode::SessionNotFound, detail));
    }
    list(&door, NoteScope::Session(key), query).await
}

pub(super) async fn of_agent(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(id): Path<String>,
    Asked(query): Asked<NoteQuery>,
) -> Result<Json<List<NoteRow>>, Refused> {
    let id = agent_id(&id)?;
    let exists = door.engine().agent(&id).is_some();
    let page = list(&door, NoteScope::Agent(id.clone()), query).await?;
    // Notes outlive the configuration of their agent.
    if !exists && page.0.items.is_empty() {
        let detail = format!("there is no agent {id:?}; GET /api/agents lists them");
        return Err(refuse(ErrorCode::AgentNotFound, detail));
    }
    Ok(page)
}

pub(super) async fn senders(
    State(door): State<Door>,
    _visitor: Visitor,
    Asked(SenderQuery { limit, cursor }): Asked<SenderQuery>,
) -> Result<Json<List<SenderRow>>, Refused> {
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE_MOST);
    Ok(Json(door.engine().senders(limit, cursor).await?))
}

pub(super) async fn of_sender(
    State(door): State<Door>,
    _visitor: Visitor,
    Path(sender): Path<String>,
    Asked(query): Asked<NoteQuery>,
) -> Result<Json<List<NoteRow>>, Refused> {
    let scope = NoteScope::Sender(sender.clone());
    let page = list(&door, scope.clone(), query).await?;
    if page.0.items.is_empty() {
        // A search may find nothing of somebody who is known.
        let any = door.engine().notes(scope, NoteFilter { query: None, limit: 1, cursor: None }).await?;
        if any.items.is_empty() {
            return Err(no_sender(&sender));
        }
    }
    Ok(page)
}

pub(super) async fn forget_sender(
    State(door): State<Door>,
    visitor: Visitor,
    Path(sender): Path<String>,
) -> Result<Json<NotesForgotten>, Refused> {
    let caller = visitor.admin()?;
    match door.engine().forget_sender(caller, sender.clone()).await? {
        0 => Err(no_sender(&sender)),
        forgotten => Ok(Json(NotesForgotten { forgotten })),
    }
}

pub(super) async fn forget_of_sender(
    State(door): State<Door>,
    visitor: Visitor,
    Path((sender, note)): Path<(String, String)>,
) -> Result<StatusCode, Refused> {
    visitor.admin()?;
    forget(&door, &visitor, NoteScope::Sender(sender), note).await
}

pub(super) async fn forget_of_session(
    State(door): State<Door>,
    visitor: Visitor,
    Path((key, note)): Path<(String, String)>,
) -> Result<StatusCode, Refused> {
    forget(&door, &visitor, NoteScope::Session(SessionKey::parse(key)?), note).await
}

pub(super) async fn forget_of_agent(
    State(door): State<Door>,
    visitor: Visitor,
    Path((id, note)): Path<(String, String)>,
) -> Result<StatusCode, Refused> {
    visitor.admin()?;
    forget(&door, &visitor, NoteScope::Agent(agent_id(&id)?), note).await
}

async fn list(door: &Door, scope: NoteScope, query: NoteQuery) -> Result<Json<List<NoteRow>>, Refused> {
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MOST);
    if query.query.is_some() && query.cursor.is_some() {
        let detail = "a search has one page; ask for a higher limit instead of a cursor";
        return Err(refuse(ErrorCode::InvalidRequest, detail));
    }
    Ok(Json(door.engine().notes(scope, NoteFilter { query: query.query, limit, cursor: query.cursor }).await?))
}

async fn forget(door: &Door, visitor: &Visitor, scope: NoteScope, note: String) -> Result<StatusCode, Refused> {
    let caller = visitor.writer()?;
    if door.engine().forget_note(caller, scope.clone(), note.clone()).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(refuse(ErrorCode::NotFound, format!("the {scope} has no note {note:?}")))
}

fn no_sender(sender: &str) -> Refused {
    let detail = format!("nothing is remembered of {sender:?}; GET /api/senders lists of whom something is");
    refuse(ErrorCode::NotFound, detail)
}

fn agent_id(text: &str) -> Result<AgentId, Refused> {
    AgentId::parse(text).map_err(|_| refuse(ErrorCode::AgentNotFound, format!("there is no agent {text:?}")))
}
