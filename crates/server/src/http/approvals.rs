//! List pending tool approvals and decide them.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use quell_engine::engine::AnswerError;
use quell_protocol::ErrorCode;
use quell_protocol::api::Page;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, ApprovalRule};

use super::extractors::JsonBody;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

impl From<AnswerError> for ProblemResponse {
    fn from(error: AnswerError) -> Self {
        let code = match &error {
            AnswerError::Unknown(_) => ErrorCode::NotFound,
            AnswerError::NotAllowed(..) => ErrorCode::Forbidden,
            AnswerError::AlreadySettled(_) | AnswerError::AlreadyCounted(_) => ErrorCode::Conflict,
            AnswerError::ReasonTooLong | AnswerError::WrongScope(_) | AnswerError::WrongFields(_) => {
                ErrorCode::InvalidRequest
            }
        };
        problem_response(code, error.to_string())
    }
}

pub(super) async fn list(call: ApiCall) -> Json<Page<ApprovalRow>> {
    Json(Page { items: call.engine().visible_approvals(&call.caller), next_cursor: None })
}

pub(super) async fn answer(
    call: ApiCall,
    Path(id): Path<String>,
    JsonBody(answer): JsonBody<ApprovalAnswer>,
) -> ApiResult<ApprovalRow> {
    Ok(Json(call.engine().answer_approval(call.require_approver()?, &id, answer)?))
}

pub(super) async fn list_rules(call: ApiCall) -> Json<Page<ApprovalRule>> {
    Json(Page { items: call.engine().visible_approval_rules(&call.caller), next_cursor: None })
}

pub(super) async fn forget_rule(call: ApiCall, Path(id): Path<String>) -> Result<StatusCode, ProblemResponse> {
    if call.engine().forget_approval_rule(call.require_approver()?, &id) {
        return Ok(StatusCode::NO_CONTENT);
    }
    let detail = format!("there is no remembered allowance {id:?}; `quell approvals rules` lists them");
    Err(problem_response(ErrorCode::NotFound, detail))
}
