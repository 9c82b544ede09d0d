//! WebSocket endpoint: gateway protocol 3 and 4 on `/` and `/ws`.
//!
//! One task per connection reads, answers and writes side by side, so that the stop of a client that does not read is
//! still received. Outgoing frames wait in a bounded [`outbox`]. It may drop live text; losing any other event closes
//! the connection instead. Incoming bytes are limited by [`receive_limits`]. A connection is always read on: too many
//! requests are refused one by one and not left unread, since the next one may be a stop.

mod connection;
mod event_forwarder;
mod followed_runs;
mod forward;
mod frame;
mod frame_splitter;
mod gateway_events;
mod handshake;
mod methods;
mod outbox;
mod payloads;
mod peer;
mod receive_limits;
mod upgrade;

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use quell_engine::access::RequestOrigin;
use quell_protocol::ErrorCode;

use crate::http::{check_origin, is_unix_peer, login_cookie, peer_ip, problem_response, request_origin};
use crate::serve::connection_limits::ConnectionHandle;
use crate::state::ServerState;
use crate::web_assets;
pub(crate) use forward::{ForwardedMethod, answer_forwarded_method};

/// Largest frame before `connect` was answered, in bytes.
const MAX_PAYLOAD_BEFORE_AUTH: usize = 64 * 1024;
/// Largest frame after `connect`, in bytes: `policy.maxPayload`.
const MAX_PAYLOAD: usize = 26_214_400;
/// Largest frame of a client that may only read, in bytes.
const MAX_READER_PAYLOAD: usize = 64 * 1024;
/// Bytes that may wait for one slow client: `policy.maxBufferedBytes`.
const MAX_BUFFERED: usize = 52_428_800;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time between `tick` events: `policy.tickIntervalMs`.
const TICK_INTERVAL: Duration = Duration::from_secs(30);
/// Time between pings, and the time limit for the pong.
const PING_INTERVAL: Duration = Duration::from_secs(25);
/// Events of followed runs are read only while fewer bytes than this wait for the client.
const FOLLOW_BUFFER_BYTES: usize = 256 * 1024;
/// Maximum number of runs that one connection may follow.
const MAX_FOLLOWED_RUNS: usize = 64;
/// Maximum number of notices that are forwarded before the client's messages are read again.
const NOTICE_BURST: usize = 64;
/// Time limit for sending a close frame.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Close codes that OpenClaw's gateway uses for the same cases.
mod close {
    pub(super) const NORMAL: u16 = 1000;
    pub(super) const PROTOCOL: u16 = 1002;
    pub(super) const POLICY: u16 = 1008;
    pub(super) const TOO_BIG: u16 = 1009;
    pub(super) const RESTART: u16 = 1012;
    pub(super) const TRY_AGAIN: u16 = 1013;
}

/// Upgrades to the gateway protocol, or serves the page if the request is no upgrade.
pub(crate) async fn upgrade(State(server): State<ServerState>, request: Request) -> Response {
    if !upgrade::is_upgrade_request(&request) {
        return web_assets::index(&server, request.headers());
    }
    if let Err(refused) = check_origin(request.headers(), &server) {
        return refused.into_response();
    }
    if !server.engine().is_open() {
        return problem_response(ErrorCode::ShuttingDown, "connect again when it is back").into_response();
    }
    let Some(permit) = server.budgets().streams.reserve_one() else {
        return problem_response(
            ErrorCode::TooManyConnections,
            "close a connection, or raise max_connections in [server]",
        )
        .into_response();
    };
    let upgrade_info = UpgradeInfo {
        origin: request_origin(request.extensions(), request.headers()),
        peer: peer_ip(request.extensions()),
        browser_cookie: browser_cookie(&request, &server),
        is_unix_peer: is_unix_peer(request.extensions()),
        connection: request.extensions().get::<ConnectionHandle>().cloned(),
    };
    let receive_limiter = receive_limits::ReceiveLimiter::new(&server.budgets().unauthenticated_receive);
    match upgrade::accept_upgrade(request, receive_limiter, move |socket, receive_limiter| {
        connection::serve_socket(socket, receive_limiter, server, permit, upgrade_info)
    }) {
        Ok(response) => response,
        Err(problem) => problem_response(ErrorCode::InvalidRequest, problem).into_response(),
    }
}

/// Facts about a client that the upgrade request gives.
struct UpgradeInfo {
    origin: RequestOrigin,
    peer: Option<std::net::IpAddr>,
    /// The page's cookie. It is checked with the secret that the first request brings.
    browser_cookie: Option<String>,
    /// The client is a local process that the daemon has not started.
    is_unix_peer: bool,
    /// The connection, which may be evicted until it has shown a valid token.
    connection: Option<ConnectionHandle>,
}

/// A cookie is accepted only with an Origin header, which every browser sends and [`check_origin`] has checked.
fn browser_cookie(request: &Request, server: &ServerState) -> Option<String> {
    request.headers().get(header::ORIGIN)?;
    login_cookie(request.headers(), server).map(str::to_owned)
}
