//! `POST /v1/messages`.

use axum::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use quell_engine::engine::AGENT_PREFIX;
use quell_kernel::client_request::{ClientRequest, anthropic};
use quell_protocol::Surface;
use serde_json::Value;

use super::message_answer::{AnthropicAnswer, Reasoning};
use crate::answer_stream::{AnswerMode, answer_client};
use crate::client_run::{AnswerRequest, bound_session};
use crate::http::{ApiCall, BodyReservation, JsonBody, ProblemResponse};

pub(super) async fn create(
    call: ApiCall,
    headers: HeaderMap,
    Extension(reservation): Extension<BodyReservation>,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ProblemResponse> {
    let call = call.on_surface(Surface::Anthropic);
    call.require_write()?;
    let session = bound_session(&headers, &body)?;
    let ClientRequest { model, conversation, answer, stream } = anthropic::parse(&body)?;
    // An answer may take long, and other bodies need the room.
    drop(body);
    reservation.release();
    let reasoning = if model.starts_with(AGENT_PREFIX) { Reasoning::Unsigned } else { Reasoning::Signed };
    let message = AnthropicAnswer::new(&model, reasoning);
    let request = AnswerRequest { model, conversation, answer, session };
    answer_client(&call, request, AnswerMode::of(stream), message).await
}
