//! List, search and delete notes of sessions, agents and senders.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use quell_engine::engine::NoteFilter;
use quell_engine::memory::NoteScope;
use quell_protocol::api::Page;
use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::{AgentId, ErrorCode, SessionKey};
use serde::Deserialize;

use super::agents::agent_not_found;
use super::extractors::{QueryParams, page_size};
use super::sessions::session_not_found;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NoteListQuery {
    query: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SenderListQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(super) async fn list_of_session(
    call: ApiCall,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<NoteListQuery>,
) -> ApiResult<Page<NoteRow>> {
    let key = SessionKey::parse(key)?;
    call.require_readable(&key)?;
    if call.engine().find_session(&key).await?.is_none() {
        return Err(session_not_found(&key));
    }
    list_notes(&call, NoteScope::Session(key), query).await
}

pub(super) async fn list_of_agent(
    call: ApiCall,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<NoteListQuery>,
) -> ApiResult<Page<NoteRow>> {
    // The notes of an agent are made in the sessions of everybody.
    call.require_read_all()?;
    let id = parse_agent_id(&id)?;
    call.caller.key.check_agent(&id)?;
    let exists = call.engine().find_agent(&id).is_some();
    let page = list_notes(&call, NoteScope::Agent(id.clone()), query).await?;
    // Notes outlive the configuration of their agent.
    if !exists && page.0.items.is_empty() {
        return Err(agent_not_found(&id));
    }
    Ok(page)
}

pub(super) async fn list_senders(
    call: ApiCall,
    QueryParams(SenderListQuery { limit, cursor }): QueryParams<SenderListQuery>,
) -> ApiResult<Page<SenderRow>> {
    call.require_read_all()?;
    Ok(Json(call.engine().list_senders(page_size(limit), cursor).await?))
}

pub(super) async fn list_of_sender(
    call: ApiCall,
    Path(sender): Path<String>,
    QueryParams(query): QueryParams<NoteListQuery>,
) -> ApiResult<Page<NoteRow>> {
    call.require_read_all()?;
    let scope = NoteScope::Sender(sender.clone());
    let page = list_notes(&call, scope.clone(), query).await?;
    if page.0.items.is_empty() {
        // A search may find nothing although the sender has notes.
        let any = call.engine().list_notes(scope, NoteFilter { query: None, limit: 1, cursor: None }).await?;
        if any.items.is_empty() {
            return Err(sender_not_found(&sender));
        }
    }
    Ok(page)
}

pub(super) async fn forget_sender(call: ApiCall, Path(sender): Path<String>) -> ApiResult<NotesForgotten> {
    let caller = call.require_admin()?;
    match call.engine().forget_sender(caller, sender.clone()).await? {
        0 => Err(sender_not_found(&sender)),
        forgotten => Ok(Json(NotesForgotten { forgotten })),
    }
}

pub(super) async fn forget_sender_note(
    call: ApiCall,
    Path((sender, note)): Path<(String, String)>,
) -> Result<StatusCode, ProblemResponse> {
    call.require_admin()?;
    forget_note(&call, NoteScope::Sender(sender), note).await
}

pub(super) async fn forget_session_note(
    call: ApiCall,
    Path((key, note)): Path<(String, String)>,
) -> Result<StatusCode, ProblemResponse> {
    forget_note(&call, NoteScope::Session(SessionKey::parse(key)?), note).await
}

pub(super) async fn forget_agent_note(
    call: ApiCall,
    Path((id, note)): Path<(String, String)>,
) -> Result<StatusCode, ProblemResponse> {
    call.require_admin()?;
    forget_note(&call, NoteScope::Agent(parse_agent_id(&id)?), note).await
}

async fn list_notes(call: &ApiCall, scope: NoteScope, query: NoteListQuery) -> ApiResult<Page<NoteRow>> {
    let limit = page_size(query.limit);
    if query.query.is_some() && query.cursor.is_some() {
        let detail = "a search has one page; ask for a higher limit instead of a cursor";
        return Err(problem_response(ErrorCode::InvalidRequest, detail));
    }
    Ok(Json(call.engine().list_notes(scope, NoteFilter { query: query.query, limit, cursor: query.cursor }).await?))
}

async fn forget_note(call: &ApiCall, scope: NoteScope, note: String) -> Result<StatusCode, ProblemResponse> {
    let caller = call.require_write()?;
    if call.engine().forget_note(caller, scope.clone(), note.clone()).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(problem_response(ErrorCode::NotFound, format!("the {scope} has no note {note:?}")))
}

fn sender_not_found(sender: &str) -> ProblemResponse {
    let detail = format!("no notes are stored about {sender:?}; GET /api/senders lists the senders with notes");
    problem_response(ErrorCode::NotFound, detail)
}

fn parse_agent_id(text: &str) -> Result<AgentId, ProblemResponse> {
    AgentId::parse(text).map_err(|_| problem_response(ErrorCode::AgentNotFound, format!("there is no agent {text:?}")))
}
