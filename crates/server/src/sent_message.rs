//! Messages to a session, sent for a client of MCP or A2A, on whichever node of the cluster the session is.

use quell_engine::engine::SubmitOutcome;
use quell_kernel::stop_text;
use quell_protocol::api::{SendAnswer, SendRequest, StopAnswer};
use quell_protocol::{RunId, SessionKey};
use uuid::Uuid;

use crate::http::{ApiCall, ProblemResponse, build_submission, send_message_to_owner};

/// What came of a message.
pub(crate) enum SentMessage {
    Run(SendAnswer),
    /// The message was a stop text.
    Stopped(Box<StopAnswer>),
}

/// Sends a message whose run gets this id, on whichever node of the cluster its session is.
pub(crate) async fn send_message(
    call: &ApiCall,
    session: SessionKey,
    message: SendRequest,
) -> Result<SentMessage, ProblemResponse> {
    let caller = call.require_write()?;
    let is_stop = stop_text::is_stop_phrase(&message.text);
    if !is_stop && let Some(answer) = send_message_to_owner(call, &session, &message).await? {
        return Ok(SentMessage::Run(answer));
    }
    Ok(match call.engine().submit(caller, build_submission(session, message, is_stop)?).await? {
        SubmitOutcome::Accepted(answer) | SubmitOutcome::Duplicate(answer) => SentMessage::Run(answer),
        SubmitOutcome::Stopped(answer) => SentMessage::Stopped(Box::new(answer)),
    })
}

#[expect(clippy::expect_used, reason = "the id is made of hexadecimal digits")]
pub(crate) fn new_run_id() -> RunId {
    RunId::parse(Uuid::now_v7().simple().to_string()).expect("a UUID is a valid id")
}
