//! List pending tool approvals and decide them.

use axum::Json;
use axum::extract::{Path, State};
use quell_engine::engine::AnswerError;
use quell_protocol::ErrorCode;
use quell_protocol::api::Page;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow};

use super::extractors::JsonBody;
use super::{AuthenticatedCaller, ProblemResponse, problem_response};
use crate::state::ServerState;

impl From<AnswerError> for ProblemResponse {
    fn from(error: AnswerError) -> Self {
        let code = match &error {
            AnswerError::Unknown(_) => ErrorCode::NotFound,
            AnswerError::NotAllowed(..) => ErrorCode::Forbidden,
            AnswerError::AlreadySettled(_) => ErrorCode::Conflict,
        };
        problem_response(code, error.to_string())
    }
}

pub(super) async fn list(State(server): State<ServerState>, _auth: AuthenticatedCaller) -> Json<Page<ApprovalRow>> {
    Json(Page { items: server.engine().pending_approvals(), next_cursor: None })
}

pub(super) async fn answer(
    State(server): State<ServerState>,
    auth: AuthenticatedCaller,
    Path(id): Path<String>,
    JsonBody(answer): JsonBody<ApprovalAnswer>,
) -> Result<Json<ApprovalRow>, ProblemResponse> {
    Ok(Json(server.engine().answer_approval(auth.require_approver()?, &id, answer.decision)?))
}
