//! List, show and end background processes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use quell_kernel::StopLevel;
use quell_protocol::api::Page;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::{ErrorCode, SessionKey};
use quell_tools::background::BackgroundProcess;
use serde::Deserialize;

use super::extractors::QueryParams;
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

/// Maximum bytes of output in one response.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ProcessOutputQuery {
    after: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EndProcessQuery {
    force: Option<String>,
}

pub(super) async fn list_all(State(server): State<ServerState>, _auth: AuthenticatedCaller) -> Json<Page<ProcessRow>> {
    let processes = server.engine().all_processes();
    Json(Page { items: processes.iter().map(|process| process.to_row()).collect(), next_cursor: None })
}

pub(super) async fn list(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path(key): Path<String>,
) -> Result<Json<Page<ProcessRow>>, ProblemResponse> {
    let processes = server.engine().session_processes(&SessionKey::parse(key)?);
    Ok(Json(Page { items: processes.iter().map(|process| process.to_row()).collect(), next_cursor: None }))
}

pub(super) async fn show(
    State(server): State<ServerState>,
    _auth: AuthenticatedCaller,
    Path((key, id)): Path<(String, String)>,
    QueryParams(query): QueryParams<ProcessOutputQuery>,
) -> Result<Json<ProcessView>, ProblemResponse> {
    let process = find_process(&server, key, &id)?;
    let excerpt = process.output(query.after, MAX_OUTPUT_BYTES);
    let (output, missing, next) = (excerpt.text, excerpt.missing, excerpt.next);
    Ok(Json(ProcessView { process: process.to_row(), output, missing, next }))
}

/// Ends a process and answers when its last process is dead. The end is requested before the first await, so that a
/// caller who disconnects does not prevent it.
pub(super) async fn end(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path((key, id)): Path<(String, String)>,
    QueryParams(query): QueryParams<EndProcessQuery>,
) -> Result<Json<ProcessRow>, ProblemResponse> {
    let caller = auth.require_write()?;
    let process = find_process(&server, key, &id)?;
    let force = query.force.is_some_and(|text| !matches!(text.as_str(), "0" | "false" | "no"));
    let level = if force { StopLevel::Forced } else { StopLevel::Gentle };
    if !server.engine().end_process(caller, &process, level) {
        let detail = format!("the process {id:?} is not yours; whoever sent its message or an admin can end it");
        return Err(problem_response(ErrorCode::Forbidden, detail));
    }
    process.wait_ended().await;
    Ok(Json(process.to_row()))
}

fn find_process(server: &ServerState, key: String, id: &str) -> Result<Arc<BackgroundProcess>, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    let missing =
        || problem_response(ErrorCode::NotFound, format!("the session {key:?} has no background process {id:?}"));
    server.engine().find_process(&key, id).ok_or_else(missing)
}
