//! `POST /v1/chat/completions`.

use axum::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use quell_kernel::client_request::{ClientRequest, openai_chat};
use quell_protocol::Surface;
use serde_json::Value;

use super::chat_answer::ChatAnswer;
use crate::answer_stream::{AnswerMode, answer_client};
use crate::client_run::{AnswerRequest, bound_session};
use crate::http::{ApiCall, BodyReservation, JsonBody, ProblemResponse};

pub(super) async fn create(
    call: ApiCall,
    headers: HeaderMap,
    Extension(reservation): Extension<BodyReservation>,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ProblemResponse> {
    let call = call.on_surface(Surface::Openai);
    call.require_write()?;
    let session = bound_session(&headers, &body)?;
    let ClientRequest { model, conversation, answer, stream } = openai_chat::parse(&body)?;
    let chat = ChatAnswer::new(&model, wants_usage(&body));
    // An answer may take long, and other bodies need the room.
    drop(body);
    reservation.release();
    let request = AnswerRequest { model, conversation, answer, session };
    answer_client(&call, request, AnswerMode::of(stream), chat).await
}

fn wants_usage(body: &Value) -> bool {
    body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or_default()
}
