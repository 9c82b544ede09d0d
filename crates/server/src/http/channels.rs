//! List and test chat channels, send through them, and receive signed webhook messages.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use quell_protocol::ErrorCode;
use quell_protocol::api::Page;
use quell_protocol::channel::{ChannelDelivery, ChannelRow, ChannelSend, ChannelTest};

use super::body_limits::{BodyLimit, BodyReservation};
use super::extractors::JsonBody;
use super::forward::{Forwarded, forward_post};
use super::{ApiCall, ApiResult, ProblemResponse, check_origin, problem_response};
use crate::state::ServerState;
use quell_channels::flow::{ChannelTargetError, Channels, ReceiveError};
use quell_channels::network::InboundRejection;

impl From<ChannelTargetError> for ProblemResponse {
    fn from(error: ChannelTargetError) -> Self {
        let code = match error {
            ChannelTargetError::Unknown { .. } => ErrorCode::ChannelNotFound,
            ChannelTargetError::Unusable { .. } => ErrorCode::Conflict,
            ChannelTargetError::InvalidRequest(_) => ErrorCode::InvalidRequest,
        };
        problem_response(code, error.to_string())
    }
}

impl From<ReceiveError> for ProblemResponse {
    fn from(error: ReceiveError) -> Self {
        let code = match &error {
            ReceiveError::NoEndpoint(_) => ErrorCode::ChannelNotFound,
            ReceiveError::Rejected(InboundRejection::TooLarge(_)) => ErrorCode::BodyTooLarge,
            ReceiveError::Rejected(InboundRejection::Unauthenticated(_)) => ErrorCode::BadSignature,
            ReceiveError::Rejected(InboundRejection::Stale(_)) => ErrorCode::StaleTimestamp,
            ReceiveError::Rejected(InboundRejection::Malformed(_)) => ErrorCode::InvalidRequest,
            ReceiveError::NotListening(_) => ErrorCode::NodeUnreachable,
            ReceiveError::NotStored => ErrorCode::StoreUnavailable,
        };
        problem_response(code, error.to_string())
    }
}

pub(super) async fn list(call: ApiCall) -> Json<Page<ChannelRow>> {
    Json(Page { items: call.server.channels().map(Channels::channel_rows).unwrap_or_default(), next_cursor: None })
}

pub(super) async fn test(call: ApiCall, Path(name): Path<String>) -> ApiResult<ChannelTest> {
    call.require_write()?;
    Ok(Json(running_channels(&call.server)?.probe(&name).await?))
}

pub(super) async fn send(call: ApiCall, JsonBody(request): JsonBody<ChannelSend>) -> ApiResult<ChannelDelivery> {
    let caller = call.require_admin()?;
    Ok(Json(running_channels(&call.server)?.send_text(caller, &request.to, &request.text).await?))
}

/// Receives a message of a network that posts to Quell. Callers show no token: the network checks their signature.
pub(super) async fn receive(
    State(server): State<ServerState>,
    Path(name): Path<String>,
    Extension(reservation): Extension<BodyReservation>,
    forwarded: Option<Extension<Forwarded>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ProblemResponse> {
    check_origin(&headers, &server)?;
    let channels = running_channels(&server)?;
    let max_bytes = channels.max_post_bytes(&name).ok_or_else(|| ReceiveError::NoEndpoint(name.clone()))?;
    let body_limit =
        BodyLimit { max_bytes, configured_by: " here", budget: Some(&server.budgets().unauthenticated_receive) };
    let body = body_limit.read_body(Some(&reservation), &headers, body).await?;
    match channels.receive_post(&name, &headers, &body).await {
        Ok(received) => Ok((StatusCode::ACCEPTED, Json(received)).into_response()),
        Err(error @ ReceiveError::NotListening(_)) if forwarded.is_none() => {
            let answered = forward_post(&server, &name, &headers, &body).await?;
            answered.ok_or_else(|| ProblemResponse::from(error).retry_after(1))
        }
        Err(error) => Err(error.into()),
    }
}

/// The channels, if the daemon was started with any and is not closing.
fn running_channels(server: &ServerState) -> Result<&Channels, ProblemResponse> {
    if !server.engine().is_open() {
        return Err(problem_response(ErrorCode::ShuttingDown, "the daemon is closing"));
    }
    server
        .channels()
        .ok_or_else(|| problem_response(ErrorCode::ChannelNotFound, "this daemon was started without chat networks"))
}
