//! Accept loops for TCP and the Unix socket, with timeouts, connection limits and descriptors reserved for stops.
//!
//! Both serve the same routes. A connection without a valid token has little time, and is evicted when there are too
//! many. Some descriptors are reserved, so that a stop gets in when all others are used up.

mod body_timeout;
pub(crate) mod connection_limits;
mod descriptors;
#[cfg(test)]
mod tests;
pub(crate) mod unix_socket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use quell_protocol::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::a2a::A2aPushTranslator;
use crate::http::{ForwardedService, is_stop_route, problem_response};
use crate::router::router;
use crate::state::ServerState;
use connection_limits::{ConnectionHandle, PeerKey, UnauthenticatedConnections};
use descriptors::ReservedDescriptors;
use unix_socket::UnixPeer;

pub use descriptors::{OpenFileLimit, raise_open_files};
pub use unix_socket::{SOCKET_FILE, UnixSocketListener};

/// Time for the head of a request, and for an idle connection between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Same as [`HEADER_TIMEOUT`], on a connection that was accepted with a reserved descriptor.
const RESERVED_HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may live without a valid token; a request in progress may end within [`LAST_REQUEST_TIMEOUT`]
/// after that.
const UNAUTHENTICATED_LIFETIME: Duration = Duration::from_secs(60);
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of connections that are evicted at once when descriptors are used up.
const EVICTION_BATCH: usize = 16;
/// Pause after an eviction, until the connections have returned their descriptors.
const RETRY_AFTER_EVICTION: Duration = Duration::from_millis(2);
/// Pause when nothing can be evicted, until another connection returns a descriptor.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Listeners {
    /// For callers with a token.
    pub tcp: TcpListener,
    /// For processes of the same user on this machine.
    pub local: Option<UnixSocketListener>,
}

/// Serves all routes until `closing` completes. Then it waits for requests and streams to end: requests are answered,
/// and streams send their last events.
///
/// # Cancel safety
/// Dropping it closes the listeners. Connections continue until their clients or the engine end them.
pub async fn serve(listeners: Listeners, server: ServerState, closing: impl Future<Output = ()>) {
    let (settings, descriptors) = (server.settings(), descriptors::soft_limit());
    let routes = router(server.clone());
    server.engine().serve_push(Arc::new(A2aPushTranslator));
    server.engine().set_peer_service(ForwardedService::new(server.clone(), routes.clone()));
    let state = AcceptState {
        routes,
        connections: UnauthenticatedConnections::new(settings.max_unauthenticated_per_peer, descriptors),
        unix_connections: UnauthenticatedConnections::new(settings.max_unauthenticated_per_peer, descriptors),
        closing: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let accepting = async {
        let accepting_local = async {
            match listeners.local {
                Some(local) => accept_local(&state, local).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(accept_tcp(&state, listeners.tcp), accepting_local)
    };
    tokio::select! {
        // Neither loop ends by itself.
        _ = accepting => {}
        () = closing => {}
    }
    state.closing.cancel();
    state.tasks.close();
    state.tasks.wait().await;
}

/// Shared by all connections.
struct AcceptState {
    routes: Router,
    connections: UnauthenticatedConnections,
    /// Counted apart from `connections`, so that TCP connections never evict one that comes to stop.
    unix_connections: UnauthenticatedConnections,
    closing: CancellationToken,
    tasks: TaskTracker,
}

async fn accept_tcp(state: &AcceptState, listener: TcpListener) {
    let reserve = Arc::new(ReservedDescriptors::new(descriptors::RESERVED_FOR_TCP));
    loop {
        let mut source = DescriptorSource::Normal;
        let (stream, address) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) if descriptors::is_out_of_descriptors(&error) => {
                    if descriptors::restore_lowered_limit() {
                        continue;
                    }
                    // Connections without a token are evicted first.
                    if state.connections.evict_oldest(EVICTION_BATCH) > 0 {
                        sleep(RETRY_AFTER_EVICTION).await;
                    } else if reserve.release_one() {
                        source = DescriptorSource::Reserved(Arc::clone(&reserve));
                    } else {
                        sleep(RETRY_INTERVAL).await;
                    }
                }
                Err(error) => handle_accept_error(&error).await,
            }
        };
        // Send small deltas without waiting for an acknowledgement.
        let _ = stream.set_nodelay(true);
        reserve.refill_unless_reserved(&source);
        spawn_connection(state, stream, ConnectedPeer::Tcp(address), source);
    }
}

async fn accept_local(state: &AcceptState, listener: UnixSocketListener) {
    let reserve = Arc::new(ReservedDescriptors::new(descriptors::RESERVED_FOR_UNIX));
    loop {
        let mut source = DescriptorSource::Normal;
        let stream = loop {
            match listener.accept().await {
                Ok(stream) => break stream,
                Err(error) if descriptors::is_out_of_descriptors(&error) => {
                    if descriptors::restore_lowered_limit() {
                        continue;
                    }
                    let evicted = state.connections.evict_oldest(EVICTION_BATCH)
                        + state.unix_connections.evict_oldest(EVICTION_BATCH);
                    if reserve.release_one() {
                        source = DescriptorSource::Reserved(Arc::clone(&reserve));
                    } else {
                        sleep(if evicted > 0 { RETRY_AFTER_EVICTION } else { RETRY_INTERVAL }).await;
                    }
                }
                Err(error) => handle_accept_error(&error).await,
            }
        };
        let peer = check_peer(&stream, &reserve);
        reserve.refill_unless_reserved(&source);
        spawn_connection(state, stream, ConnectedPeer::Unix(peer), source);
    }
}

/// Authorizes the peer. This needs a descriptor, so a reserved one may be released for it.
fn check_peer(stream: &UnixStream, reserve: &ReservedDescriptors) -> Result<UnixPeer, String> {
    loop {
        match unix_socket::authorize_peer(stream) {
            Err(error) if descriptors::is_out_of_descriptors(&error) && reserve.release_one() => {}
            Err(error) => return Err(error.to_string()),
            Ok(checked) => return checked,
        }
    }
}

async fn handle_accept_error(error: &io::Error) {
    let is_peer_error = matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    );
    if !is_peer_error {
        tracing::warn!(%error, "a connection cannot be accepted");
        sleep(RETRY_INTERVAL).await;
    }
}

/// How a connection got its descriptor.
enum DescriptorSource {
    Normal,
    /// None was left: the connection uses a reserved one, and may only stop.
    Reserved(Arc<ReservedDescriptors>),
}

impl ReservedDescriptors {
    /// Refills the reserve from descriptors that others have returned.
    fn refill_unless_reserved(&self, source: &DescriptorSource) {
        if matches!(source, DescriptorSource::Normal) {
            self.refill();
        }
    }
}

enum ConnectedPeer {
    Tcp(SocketAddr),
    Unix(Result<UnixPeer, String>),
}

fn spawn_connection<S>(state: &AcceptState, stream: S, peer: ConnectedPeer, source: DescriptorSource)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = match &peer {
        ConnectedPeer::Tcp(address) => state.connections.admit(PeerKey::from_ip(address.ip())),
        ConnectedPeer::Unix(Ok(_)) => state.unix_connections.admit(PeerKey::UnixSocket),
        ConnectedPeer::Unix(Err(_)) => state.unix_connections.admit(PeerKey::RefusedUnixSocket),
    };
    let requests = ConnectionRequests {
        routes: TowerToHyperService::new(state.routes.clone()),
        peer,
        connection: connection.clone(),
        stops_only: matches!(source, DescriptorSource::Reserved(_)),
    };
    let closing = state.closing.clone();
    let serving = serve_connection(stream, requests, closing);
    #[expect(
        clippy::disallowed_methods,
        reason = "a connection belongs to its client, not to a run; it ends with the server"
    )]
    tokio::spawn(state.tasks.track_future(async move {
        tokio::select! {
            () = serving => {}
            () = connection.evicted() => {}
        }
        drop(connection);
        if let DescriptorSource::Reserved(reserve) = source {
            reserve.refill();
        }
    }));
}

async fn serve_connection<S>(stream: S, requests: ConnectionRequests, closing: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = requests.connection.clone();
    let stops_only = requests.stops_only;
    let requests = Arc::new(requests);
    let request_service = service_fn(move |request| handle_request(Arc::clone(&requests), request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    http.header_read_timeout(if stops_only { RESERVED_HEADER_TIMEOUT } else { HEADER_TIMEOUT });
    http.keep_alive(!stops_only);
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), request_service).with_upgrades());
    let mut auth_deadline = pin!(sleep(UNAUTHENTICATED_LIFETIME));
    let (mut shutting_down, mut has_auth_deadline, mut is_last_request) = (false, true, false);
    // `select!` reads a condition once, before it waits, so each of these changes only in its own branch.
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = closing.cancelled(), if !shutting_down => {
                shutting_down = true;
                serving.as_mut().graceful_shutdown();
            }
            // A valid token may have come since the wait began.
            () = auth_deadline.as_mut(), if has_auth_deadline => {
                if connection.is_authenticated() {
                    has_auth_deadline = false;
                    continue;
                }
                if is_last_request {
                    return;
                }
                is_last_request = true;
                serving.as_mut().graceful_shutdown();
                let last_request_deadline = auth_deadline.deadline() + LAST_REQUEST_TIMEOUT;
                auth_deadline.as_mut().reset(last_request_deadline);
            }
        }
    }
}

/// Shared by the requests of one connection.
struct ConnectionRequests {
    routes: TowerToHyperService<Router>,
    peer: ConnectedPeer,
    connection: ConnectionHandle,
    stops_only: bool,
}

async fn handle_request(
    connection_requests: Arc<ConnectionRequests>,
    request: hyper::Request<Incoming>,
) -> Result<Response, Infallible> {
    let (request, timed_out) = with_body_timeout(request);
    let mut request = request;
    match &connection_requests.peer {
        ConnectedPeer::Tcp(address) => {
            request.extensions_mut().insert(ConnectInfo(*address));
        }
        ConnectedPeer::Unix(Ok(peer)) => {
            request.extensions_mut().insert(*peer);
        }
        ConnectedPeer::Unix(Err(why)) => {
            return Ok(with_connection_close(problem_response(ErrorCode::Forbidden, why.clone())));
        }
    }
    if connection_requests.stops_only && !is_stop_route(request.method(), request.uri().path()) {
        let detail = "the daemon has no descriptors left, and those that are kept back are for stops; \
                      raise the limit of open files (LimitNOFILE=, ulimit -n)";
        return Ok(with_connection_close(problem_response(ErrorCode::TooManyConnections, detail)));
    }
    request.extensions_mut().insert(connection_requests.connection.clone());
    let Ok(response) = connection_requests.routes.call(request).await;
    if timed_out.is_some_and(|timed_out| timed_out.is_cancelled()) {
        let detail = "the body of a request may take 20 s and one second more for each 16 KiB";
        return Ok(with_connection_close(problem_response(ErrorCode::BodyTimeout, detail)));
    }
    Ok(response)
}

/// Adds a time limit to the body of a request; the token is cancelled when the limit is exceeded.
fn with_body_timeout(request: hyper::Request<Incoming>) -> (Request, Option<CancellationToken>) {
    if request.body().is_end_stream() {
        return (request.map(Body::new), None);
    }
    let timed_out = CancellationToken::new();
    (request.map(|body| Body::new(body_timeout::TimedBody::new(body, timed_out.clone()))), Some(timed_out))
}

fn with_connection_close(refused: impl IntoResponse) -> Response {
    let mut response = refused.into_response();
    response.headers_mut().insert(axum::http::header::CONNECTION, axum::http::HeaderValue::from_static("close"));
    response
}
