//! List, search and delete notes of sessions, agents and senders.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell_engine::engine::NoteFilter;
use quell_engine::memory::NoteScope;
use quell_protocol::api::Page;
use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::{AgentId, ErrorCode, SessionKey};
use serde::Deserialize;

use super::extractors::QueryParams;
use super::runs::{DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE};
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

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
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<NoteListQuery>,
) -> Result<Json<Page<NoteRow>>, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    if server.engine().find_session(&key).await?.is_none() {
        let detail = format!("there is no session {key:?}; `quell sessions` lists them");
        return Err(problem_response(ErrorCode::SessionNotFound, detail));
    }
    list_notes(&server, NoteScope::Session(key), query).await
}

pub(super) async fn list_of_agent(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<NoteListQuery>,
) -> Result<Json<Page<NoteRow>>, ProblemResponse> {
    let id = parse_agent_id(&id)?;
    let exists = server.engine().find_agent(&id).is_some();
    let page = list_notes(&server, NoteScope::Agent(id.clone()), query).await?;
    // Notes outlive the configuration of their agent.
    if !exists && page.0.items.is_empty() {
        let detail = format!("there is no agent {id:?}; GET /api/agents lists them");
        return Err(problem_response(ErrorCode::AgentNotFound, detail));
    }
    Ok(page)
}

pub(super) async fn list_senders(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    QueryParams(SenderListQuery { limit, cursor }): QueryParams<SenderListQuery>,
) -> Result<Json<Page<SenderRow>>, ProblemResponse> {
    let limit = limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE_SIZE);
    Ok(Json(server.engine().list_senders(limit, cursor).await?))
}

pub(super) async fn list_of_sender(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(sender): Path<String>,
    QueryParams(query): QueryParams<NoteListQuery>,
) -> Result<Json<Page<NoteRow>>, ProblemResponse> {
    let scope = NoteScope::Sender(sender.clone());
    let page = list_notes(&server, scope.clone(), query).await?;
    if page.0.items.is_empty() {
        // A search may find nothing although the sender has notes.
        let any = server.engine().list_notes(scope, NoteFilter { query: None, limit: 1, cursor: None }).await?;
        if any.items.is_empty() {
            return Err(sender_not_found(&sender));
        }
    }
    Ok(page)
}

pub(super) async fn forget_sender(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(sender): Path<String>,
) -> Result<Json<NotesForgotten>, ProblemResponse> {
    let caller = auth.require_admin()?;
    match server.engine().forget_sender(caller, sender.clone()).await? {
        0 => Err(sender_not_found(&sender)),
        forgotten => Ok(Json(NotesForgotten { forgotten })),
    }
}

pub(super) async fn forget_sender_note(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path((sender, note)): Path<(String, String)>,
) -> Result<StatusCode, ProblemResponse> {
    auth.require_admin()?;
    forget_note(&server, &auth, NoteScope::Sender(sender), note).await
}

pub(super) async fn forget_session_note(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path((key, note)): Path<(String, String)>,
) -> Result<StatusCode, ProblemResponse> {
    forget_note(&server, &auth, NoteScope::Session(SessionKey::parse(key)?), note).await
}

pub(super) async fn forget_agent_note(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path((id, note)): Path<(String, String)>,
) -> Result<StatusCode, ProblemResponse> {
    auth.require_admin()?;
    forget_note(&server, &auth, NoteScope::Agent(parse_agent_id(&id)?), note).await
}

async fn list_notes(
    server: &ServerState,
    scope: NoteScope,
    query: NoteListQuery,
) -> Result<Json<Page<NoteRow>>, ProblemResponse> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE_SIZE).clamp(1, MAX_PAGE_SIZE);
    if query.query.is_some() && query.cursor.is_some() {
        let detail = "a search has one page; ask for a higher limit instead of a cursor";
        return Err(problem_response(ErrorCode::InvalidRequest, detail));
    }
    Ok(Json(server.engine().list_notes(scope, NoteFilter { query: query.query, limit, cursor: query.cursor }).await?))
}

async fn forget_note(
    server: &ServerState,
    auth: &AuthenticatedCaller,
    scope: NoteScope,
    note: String,
) -> Result<StatusCode, ProblemResponse> {
    let caller = auth.require_write()?;
    if server.engine().forget_note(caller, scope.clone(), note.clone()).await? {
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
