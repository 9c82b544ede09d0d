//! Chat networks: how they fare, whether one works, a word in its name, and the door of networks that call.

use axum::body::Body as RawBody;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use quell_protocol::ErrorCode;
use quell_protocol::api::List;
use quell_protocol::channel::{ChannelDelivery, ChannelReceived, ChannelRow, ChannelSend, ChannelTest};

use super::body::Body;
use super::intake::{Allowance, Held};
use super::{Refused, Visitor, check_origin, refuse};
use crate::channels::flow::{Channels, NotAddressed, NotReceived};
use crate::channels::seam::Unwelcome;
use crate::door::Door;

impl From<NotAddressed> for Refused {
    fn from(error: NotAddressed) -> Self {
        let code = match error {
            NotAddressed::Unknown { .. } => ErrorCode::ChannelNotFound,
            NotAddressed::Unusable { .. } => ErrorCode::Conflict,
            NotAddressed::Senseless(_) => ErrorCode::InvalidRequest,
        };
        refuse(code, error.to_string())
    }
}

impl From<NotReceived> for Refused {
    fn from(error: NotReceived) -> Self {
        let code = match &error {
            NotReceived::NoDoor(_) => ErrorCode::ChannelNotFound,
            NotReceived::Unwelcome(Unwelcome::TooLarge(_)) => ErrorCode::BodyTooLarge,
            NotReceived::Unwelcome(Unwelcome::Unproven(_)) => ErrorCode::BadSignature,
            NotReceived::Unwelcome(Unwelcome::Stale(_)) => ErrorCode::StaleTimestamp,
            NotReceived::Unwelcome(Unwelcome::Malformed(_)) => ErrorCode::InvalidRequest,
            NotReceived::Unsettled => ErrorCode::StoreUnavailable,
        };
        refuse(code, error.to_string())
    }
}

pub(super) async fn list(State(door): State<Door>, _visitor: Visitor) -> Json<List<ChannelRow>> {
    Json(List { items: door.channels().map(Channels::list).unwrap_or_default(), next_cursor: None })
}

pub(super) async fn test(
    State(door): State<Door>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<Json<ChannelTest>, Refused> {
    visitor.writer()?;
    Ok(Json(channels(&door)?.probe(&name).await?))
}

pub(super) async fn send(
    State(door): State<Door>,
    visitor: Visitor,
    Body(request): Body<ChannelSend>,
) -> Result<Json<ChannelDelivery>, Refused> {
    let caller = visitor.admin()?;
    Ok(Json(channels(&door)?.send(caller, &request.to, &request.text).await?))
}

/// The door of networks that call. Whoever calls shows no token: the network knows its callers by their signature.
pub(super) async fn receive(
    State(door): State<Door>,
    Path(name): Path<String>,
    Extension(held): Extension<Held>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<(StatusCode, Json<ChannelReceived>), Refused> {
    check_origin(&headers, &door)?;
    let channels = channels(&door)?;
    let most = channels.largest_post(&name).ok_or_else(|| NotReceived::NoDoor(name.clone()))?;
    let allowance = Allowance { limit: most, set_by: " here", budget: Some(door.unproven_intake()) };
    let body = allowance.read(Some(&held), &headers, body).await?;
    let received = channels.receive(&name, &headers, &body).await?;
    Ok((StatusCode::ACCEPTED, Json(received)))
}

/// The channels, while there is a daemon behind the doors that has any.
fn channels(door: &Door) -> Result<&Channels, Refused> {
    if !door.engine().is_open() {
        return Err(refuse(ErrorCode::ShuttingDown, "the daemon is closing"));
    }
    door.channels().ok_or_else(|| refuse(ErrorCode::ChannelNotFound, "this daemon was started without chat networks"))
}
