//! Messages to a session, sent for a program of another protocol, on whichever node of the cluster the session is.

use quell_engine::engine::SubmitOutcome;
use quell_protocol::api::{SendAnswer, SendRequest};
use quell_protocol::{RunId, SessionKey};
use uuid::Uuid;

use crate::http::{ApiCall, ProblemResponse, build_submission, send_message_to_owner};

/// Sends a message whose run gets the id that is its idempotency key. Programs stop by their own means, so a text that
/// is a stop word is only a text.
pub(crate) async fn send_message(
    call: &ApiCall,
    session: SessionKey,
    message: SendRequest,
) -> Result<SendAnswer, ProblemResponse> {
    let caller = call.require_write()?;
    let message = SendRequest { literal: true, ..message };
    if let Some(answer) = send_message_to_owner(call, &session, &message).await? {
        return Ok(answer);
    }
    match call.engine().submit(caller, build_submission(session, message, false)?).await? {
        SubmitOutcome::Accepted(answer) | SubmitOutcome::Duplicate(answer) => Ok(answer),
        SubmitOutcome::Stopped(_) => unreachable!("a literal text is no stop"),
    }
}

pub(crate) fn new_run_id() -> RunId {
    RunId::from_number(Uuid::now_v7().as_u128())
}
