//! List, show and end the processes of sessions.

use axum::Json;
use axum::extract::Path;
use quell_engine::engine::SessionProcess;
use quell_kernel::StopLevel;
use quell_protocol::api::Page;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::{ErrorCode, SessionKey};
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
    let rows = call.engine().all_processes().iter().flat_map(SessionProcess::to_rows).collect();
    Json(readable_page(&call, rows))
}

pub(super) async fn list(call: ApiCall, Path(key): Path<String>) -> ApiResult<Page<ProcessRow>> {
    let key = SessionKey::parse(key)?;
    let processes = call.engine().session_processes(&key);
    Ok(Json(readable_page(&call, processes.iter().filter_map(|process| process.row_of(&key)).collect())))
}

fn readable_page(call: &ApiCall, mut items: Vec<ProcessRow>) -> Page<ProcessRow> {
    items.retain(|row| call.engine().may_read_process(&call.caller, row));
    Page { items, next_cursor: None }
}

pub(super) async fn show(
    call: ApiCall,
    Path((key, id)): Path<(String, String)>,
    QueryParams(query): QueryParams<ProcessOutputQuery>,
) -> ApiResult<ProcessView> {
    let key = SessionKey::parse(key)?;
    let process = find_process(&call, &key, &id)?;
    let row = process.row_of(&key).filter(|row| call.engine().may_read_process(&call.caller, row));
    let row = row.ok_or_else(|| process_not_found(&key, &id))?;
    let (output, missing, next) = match &process {
        SessionProcess::Command(command) => {
            let excerpt = command.output(query.after, MAX_OUTPUT_BYTES);
            (excerpt.text, excerpt.missing, excerpt.next)
        }
        SessionProcess::Server(_) => (String::new(), 0, 0),
    };
    Ok(Json(ProcessView { process: row, output, missing, next }))
}

/// Ends a process and answers when its last process is dead. The end is requested before the first await, so that a
/// caller who disconnects does not prevent it.
pub(super) async fn end(
    call: ApiCall,
    Path((key, id)): Path<(String, String)>,
    QueryParams(query): QueryParams<ForceQuery>,
) -> ApiResult<ProcessRow> {
    let caller = call.require_stop()?;
    let key = SessionKey::parse(key)?;
    let process = find_process(&call, &key, &id)?;
    let level = if query.force.0 { StopLevel::Forced } else { StopLevel::Gentle };
    if !call.engine().end_process(caller, &process, level) {
        let who = match process {
            SessionProcess::Command(_) => "whoever sent its message or an admin",
            SessionProcess::Server(_) => "whoever started it with a run, or an admin, who alone ends a shared server,",
        };
        let detail = format!("the process {id:?} is not yours; {who} can end it");
        return Err(problem_response(ErrorCode::Forbidden, detail));
    }
    process.wait_ended().await;
    Ok(Json(process.row_of(&key).ok_or_else(|| process_not_found(&key, &id))?))
}

fn find_process(call: &ApiCall, key: &SessionKey, id: &str) -> Result<SessionProcess, ProblemResponse> {
    call.engine().find_process(key, id).ok_or_else(|| process_not_found(key, id))
}

fn process_not_found(key: &SessionKey, id: &str) -> ProblemResponse {
    problem_response(ErrorCode::NotFound, format!("the session {key:?} has no background process {id:?}"))
}
