//! Undo the file changes of a run.

use axum::Json;
use axum::extract::Path;
use quell_engine::engine::UndoError;
use quell_kernel::file_undo::UndoForce;
use quell_protocol::undo::{UndoReport, UndoRequest};

use super::extractors::OptionalJsonBody;
use super::runs::parse_run_id;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<UndoError> for ProblemResponse {
    fn from(error: UndoError) -> Self {
        match error {
            UndoError::Session(error) => error.into(),
            UndoError::Store(error) => error.into(),
            error => problem_response(error.code(), error.to_string()),
        }
    }
}

pub(super) async fn undo_run(
    call: ApiCall,
    Path(id): Path<String>,
    OptionalJsonBody(request): OptionalJsonBody<UndoRequest>,
) -> ApiResult<UndoReport> {
    call.count_request()?;
    let caller = call.require_write()?;
    let id = parse_run_id(&id)?;
    // In a cluster, this node has the files, and perhaps never had the session.
    if call.engine().cluster().is_some()
        && let Some(run) = call.engine().find_stored_run(&id).await?
    {
        call.engine().refresh_owner(&run.session_key).await?;
    }
    call.find_readable_run(&id).await?;
    let force = if request.force { UndoForce::OverwriteOthers } else { UndoForce::OwnChangesOnly };
    Ok(Json(call.engine().undo_run(caller, &id, force).await?))
}
