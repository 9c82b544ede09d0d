//! List, show and end background processes.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use quell_kernel::StopLevel;
use quell_protocol::api::Page;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::{ErrorCode, SessionKey};
use quell_tools::background::BackgroundProcess;
use serde::Deserialize;

use super::extractors::{ForceQuery, QueryParams};
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

/// Maximum bytes of output in one response.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ProcessOutputQuery {
    after: u64,
}

pub(super) async fn list_all(call: ApiCall) -> Json<Page<ProcessRow>> {
    let mut processes = call.engine().all_processes();
    processes.retain(|process| call.engine().may_read_process(&call.caller, process));
    Json(Page { items: processes.iter().map(|process| process.to_row()).collect(), next_cursor: None })
}

pub(super) async fn list(call: ApiCall, Path(key): Path<String>) -> ApiResult<Page<ProcessRow>> {
    let mut processes = call.engine().session_processes(&SessionKey::parse(key)?);
    processes.retain(|process| call.engine().may_read_process(&call.caller, process));
    Ok(Json(Page { items: processes.iter().map(|process| process.to_row()).collect(), next_cursor: None }))
}

pub(super) async fn show(
    call: ApiCall,
    Path((key, id)): Path<(String, String)>,
    QueryParams(query): QueryParams<ProcessOutputQuery>,
) -> ApiResult<ProcessView> {
    let process = find_process(&call, key.clone(), &id)?;
    if !call.engine().may_read_process(&call.caller, &process) {
        return Err(process_not_found(&SessionKey::parse(key)?, &id));
    }
    let excerpt = process.output(query.after, MAX_OUTPUT_BYTES);
    let (output, missing, next) = (excerpt.text, excerpt.missing, excerpt.next);
    Ok(Json(ProcessView { process: process.to_row(), output, missing, next }))
}

/// Ends a process and answers when its last process is dead. The end is requested before the first await, so that a
/// caller who disconnects does not prevent it.
pub(super) async fn end(
    call: ApiCall,
    Path((key, id)): Path<(String, String)>,
    QueryParams(query): QueryParams<ForceQuery>,
) -> ApiResult<ProcessRow> {
    let caller = call.require_stop()?;
    let process = find_process(&call, key, &id)?;
    let level = if query.force.0 { StopLevel::Forced } else { StopLevel::Gentle };
    if !call.engine().end_process(caller, &process, level) {
        let detail = format!("the process {id:?} is not yours; whoever sent its message or an admin can end it");
        return Err(problem_response(ErrorCode::Forbidden, detail));
    }
    process.wait_ended().await;
    Ok(Json(process.to_row()))
}

fn find_process(call: &ApiCall, key: String, id: &str) -> Result<Arc<BackgroundProcess>, ProblemResponse> {
    let key = SessionKey::parse(key)?;
    call.engine().find_process(&key, id).ok_or_else(|| process_not_found(&key, id))
}

fn process_not_found(key: &SessionKey, id: &str) -> ProblemResponse {
    problem_response(ErrorCode::NotFound, format!("the session {key:?} has no background process {id:?}"))
}
