//! The WebSocket door: gateway protocol 4 (ranges from 3 are accepted) on `/` and `/ws`.
//!
//! One task per connection. Reading, answering and writing go on side by side in it, so that a client that does not read
//! can still be heard when it says stop. What goes out waits in a bounded [`outbox`]; live text may be dropped there, facts
//! close the connection instead. What comes in is counted by [`intake`]. A connection is read whatever it has asked for: too
//! many requests are refused one by one instead of left unread, since the next one may be a stop.

mod chat;
mod connection;
mod follows;
mod frame;
mod handshake;
mod intake;
mod methods;
mod outbox;
mod shapes;
mod transport;
mod unframe;

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use quell_engine::access::{Credential, Origin};
use quell_protocol::ErrorCode;

use crate::door::Door;
use crate::http::{check_origin, cookie, origin_of, peer_of, refuse};
use crate::page;
use crate::serve::Connection;

/// Largest frame before `connect` was answered.
const MAX_BEFORE_AUTH: usize = 64 * 1024;
/// Largest frame after it: `policy.maxPayload`.
const MAX_PAYLOAD: usize = 26_214_400;
/// Largest frame of a client that may only look.
const MAX_OF_READER: usize = 64 * 1024;
/// Bytes that may wait for a slow client: `policy.maxBufferedBytes`.
const MAX_BUFFERED: usize = 52_428_800;
/// Time for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// Between `tick` events: `policy.tickIntervalMs`.
const TICK: Duration = Duration::from_secs(30);
/// Between pings, and the time for the pong.
const PING: Duration = Duration::from_secs(25);
/// Bytes that may wait when more of a followed run is written: its reader is kept at this distance, and not further behind.
const ROOM: usize = 256 * 1024;
/// Runs that one connection may follow.
const MOST_FOLLOWED: usize = 64;
/// Most notices that are shown in one go, between two looks at what the client says.
const BURST: usize = 64;
/// A close frame gets this long to leave.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Close codes (research: openclaw.md 1.3).
mod close {
    pub(super) const NORMAL: u16 = 1000;
    pub(super) const PROTOCOL: u16 = 1002;
    pub(super) const POLICY: u16 = 1008;
    pub(super) const TOO_BIG: u16 = 1009;
    pub(super) const RESTART: u16 = 1012;
    pub(super) const TRY_AGAIN: u16 = 1013;
}

/// Upgrades to the gateway protocol, or shows the page.
pub(crate) async fn upgrade(State(door): State<Door>, request: Request) -> Response {
    if !transport::asks_for_upgrade(&request) {
        return page::index(&door, request.headers());
    }
    if let Err(refused) = check_origin(request.headers(), &door) {
        return refused.into_response();
    }
    if !door.engine().is_open() {
        return refuse(ErrorCode::ShuttingDown, "connect again when it is back").into_response();
    }
    let Some(place) = door.take_stream() else {
        return refuse(ErrorCode::TooManyConnections, "close a connection, or raise max_connections in [server]")
            .into_response();
    };
    let visit = Visit {
        origin: origin_of(request.extensions(), request.headers()),
        peer: peer_of(request.extensions()),
        browser: browser(&request, &door),
        connection: request.extensions().get::<Connection>().cloned(),
    };
    let intake = intake::Intake::new(door.unproven_intake());
    match transport::accept(request, intake, move |socket| connection::serve(socket, door, place, visit)) {
        Ok(response) => response,
        Err(problem) => refuse(ErrorCode::InvalidRequest, problem).into_response(),
    }
}

/// What the upgrade says of a client before it speaks.
struct Visit {
    origin: Origin,
    peer: Option<std::net::IpAddr>,
    /// The page's cookie, if it is a good one.
    browser: Option<Credential>,
    /// The connection, which gives way to others as long as it has shown no valid token.
    connection: Option<Connection>,
}

/// A cookie counts with an origin, which every browser sends and [`check_origin`] has checked.
fn browser(request: &Request, door: &Door) -> Option<Credential> {
    request.headers().get(header::ORIGIN)?;
    let shown = Credential::cookie(cookie(request.headers(), door)?);
    door.engine().access().owner(&shown).map(|_| shown)
}
