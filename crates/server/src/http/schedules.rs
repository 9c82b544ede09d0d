//! List, make, change and delete schedules.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use quell_engine::schedules::ScheduleChangeError;
use quell_protocol::ErrorCode;
use quell_protocol::api::Page;
use quell_protocol::schedule::{SchedulePatch, ScheduleRequest, ScheduleView};

use super::extractors::JsonBody;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<ScheduleChangeError> for ProblemResponse {
    fn from(error: ScheduleChangeError) -> Self {
        match error {
            ScheduleChangeError::Store(error) => error.into(),
            other => problem_response(other.code(), other.to_string()),
        }
    }
}

pub(super) async fn list(call: ApiCall) -> ApiResult<Page<ScheduleView>> {
    Ok(Json(Page { items: call.engine().list_schedules(&call.caller).await?, next_cursor: None }))
}

pub(super) async fn create(
    call: ApiCall,
    JsonBody(request): JsonBody<ScheduleRequest>,
) -> Result<(StatusCode, Json<ScheduleView>), ProblemResponse> {
    let caller = call.require_write()?;
    if let Some(agent) = request.agent.as_ref().filter(|agent| call.engine().find_agent(agent).is_none()) {
        return Err(super::agents::agent_not_found(agent));
    }
    Ok((StatusCode::CREATED, Json(call.engine().create_schedule(caller, request).await?)))
}

pub(super) async fn show(call: ApiCall, Path(id): Path<String>) -> ApiResult<ScheduleView> {
    let found = call.engine().find_schedule(&call.caller, &id).await?;
    found.map(Json).ok_or_else(|| schedule_not_found(&id))
}

pub(super) async fn patch(
    call: ApiCall,
    Path(id): Path<String>,
    JsonBody(patch): JsonBody<SchedulePatch>,
) -> ApiResult<ScheduleView> {
    let changed = call.engine().patch_schedule(call.require_write()?, &id, &patch).await?;
    changed.map(Json).ok_or_else(|| schedule_not_found(&id))
}

pub(super) async fn delete(call: ApiCall, Path(id): Path<String>) -> Result<StatusCode, ProblemResponse> {
    if call.engine().delete_schedule(call.require_write()?, &id).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(schedule_not_found(&id))
}

fn schedule_not_found(id: &str) -> ProblemResponse {
    problem_response(ErrorCode::NotFound, format!("there is no schedule {id:?}; GET /api/schedules lists yours"))
}
