//! Calls that wait for a person.

use axum::Json;
use axum::extract::{Path, State};
use quell_engine::dispatch::AnswerError;
use quell_protocol::ErrorCode;
use quell_protocol::api::List;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow};

use super::body::Body;
use super::{Refused, Visitor, refuse};
use crate::door::Door;

impl From<AnswerError> for Refused {
    fn from(error: AnswerError) -> Self {
        let code = match &error {
            AnswerError::Unknown(_) => ErrorCode::NotFound,
            AnswerError::NotYours(..) => ErrorCode::Forbidden,
            AnswerError::Settled(_) => ErrorCode::Conflict,
        };
        refuse(code, error.to_string())
    }
}

pub(super) async fn list(State(door): State<Door>, _visitor: Visitor) -> Json<List<ApprovalRow>> {
    Json(List { items: door.engine().approvals(), next_cursor: None })
}

pub(super) async fn answer(
    State(door): State<Door>,
    visitor: Visitor,
    Path(id): Path<String>,
    Body(answer): Body<ApprovalAnswer>,
) -> Result<Json<ApprovalRow>, Refused> {
    Ok(Json(door.engine().answer_approval(visitor.answerer()?, &id, answer.decision)?))
}
