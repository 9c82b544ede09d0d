//! The accept loops: TCP and the Unix socket serve the same routes. A connection is given little time until it has shown a valid
//! token, and gives way when there are too many; descriptors are kept back, so that a stop gets in when all others are used up.

mod connections;
mod descriptors;
mod local;
mod slow_body;
#[cfg(test)]
mod tests;

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

use crate::door::Door;
use crate::http::{is_stop_route, refuse, router};
use connections::{Connections, Peer};
use descriptors::Spares;

pub(crate) use connections::Connection;
pub use descriptors::{OpenFiles, raise_open_files};
pub(crate) use local::LocalPeer;
pub use local::{LocalListener, SOCKET_FILE};

/// Time for the head of a request, and for a connection to lie idle between two.
const HEAD: Duration = Duration::from_secs(30);
/// The same on a connection for which a reserved descriptor was given up.
const HEAD_OF_RESERVE: Duration = Duration::from_secs(2);
/// How long a connection may live without a valid token; what it is at then may end within [`LAST_REQUEST`].
const UNAUTHENTICATED: Duration = Duration::from_secs(60);
const LAST_REQUEST: Duration = Duration::from_secs(30);
/// Connections that are closed at once when descriptors are used up.
const EVICTED_AT_ONCE: usize = 16;
/// Until closed connections have given their descriptors back.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
/// Until somebody else gives one back.
const LONG_PAUSE: Duration = Duration::from_millis(50);

/// Where connections come in.
#[derive(Debug)]
pub struct Listeners {
    /// For everybody who has a token.
    pub tcp: TcpListener,
    /// For processes of the same user on this machine.
    pub local: Option<LocalListener>,
}

/// Serves all routes until `closing`, then lets what is under way end: requests are answered, streams say their last words.
///
/// # Cancel safety
/// Dropping it closes the listeners; connections go on until their clients or the engine end them.
pub async fn serve(listeners: Listeners, door: Door, closing: impl Future<Output = ()>) {
    let (settings, descriptors) = (door.settings(), descriptors::soft_limit());
    let site = Site {
        routes: router(door.clone()),
        connections: Connections::new(settings.max_unauthenticated_per_peer, descriptors),
        local_connections: Connections::new(settings.max_unauthenticated_per_peer, descriptors),
        closing: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let accepting = async {
        let local = async {
            match listeners.local {
                Some(local) => accept_local(&site, local).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(accept_tcp(&site, listeners.tcp), local)
    };
    tokio::select! {
        // Neither loop ends by itself.
        _ = accepting => {}
        () = closing => {}
    }
    site.closing.cancel();
    site.tasks.close();
    site.tasks.wait().await;
}

/// What every connection is served with.
struct Site {
    routes: Router,
    connections: Connections,
    /// Apart from the others, so that those of TCP never take the place of one that comes to stop.
    local_connections: Connections,
    closing: CancellationToken,
    tasks: TaskTracker,
}

async fn accept_tcp(site: &Site, listener: TcpListener) {
    let spares = Arc::new(Spares::new(descriptors::KEPT_FOR_TCP));
    loop {
        let mut room = Room::Ample;
        let (stream, address) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) if descriptors::are_used_up(&error) => {
                    if descriptors::raised_again() {
                        continue;
                    }
                    // Those without a token give way first.
                    if site.connections.evict_oldest(EVICTED_AT_ONCE) > 0 {
                        sleep(SHORT_PAUSE).await;
                    } else if spares.give_up() {
                        room = Room::Reserve(Arc::clone(&spares));
                    } else {
                        sleep(LONG_PAUSE).await;
                    }
                }
                Err(error) => refused(&error).await,
            }
        };
        // Deltas are small and must not wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        spares.refill_if(&room);
        start(site, stream, Client::Tcp(address), room);
    }
}

async fn accept_local(site: &Site, listener: LocalListener) {
    let spares = Arc::new(Spares::new(descriptors::KEPT_FOR_LOCAL));
    loop {
        let mut room = Room::Ample;
        let stream = loop {
            match listener.accept().await {
                Ok(stream) => break stream,
                Err(error) if descriptors::are_used_up(&error) => {
                    if descriptors::raised_again() {
                        continue;
                    }
                    let evicted = site.connections.evict_oldest(EVICTED_AT_ONCE)
                        + site.local_connections.evict_oldest(EVICTED_AT_ONCE);
                    if spares.give_up() {
                        room = Room::Reserve(Arc::clone(&spares));
                    } else {
                        sleep(if evicted > 0 { SHORT_PAUSE } else { LONG_PAUSE }).await;
                    }
                }
                Err(error) => refused(&error).await,
            }
        };
        let peer = check_peer(&stream, &spares);
        spares.refill_if(&room);
        start(site, stream, Client::Local(peer), room);
    }
}

/// Looks at the peer; that takes a descriptor.
fn check_peer(stream: &UnixStream, spares: &Spares) -> Result<LocalPeer, String> {
    loop {
        match local::check(stream) {
            Err(error) if descriptors::are_used_up(&error) && spares.give_up() => {}
            Err(error) => return Err(error.to_string()),
            Ok(checked) => return checked,
        }
    }
}

async fn refused(error: &io::Error) {
    let is_of_one = matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    );
    if !is_of_one {
        tracing::warn!(%error, "a connection cannot be accepted");
        sleep(LONG_PAUSE).await;
    }
}

/// What a connection was accepted with.
enum Room {
    /// Descriptors are left.
    Ample,
    /// None was left: it has one of those that are kept back, and may stop and nothing else.
    Reserve(Arc<Spares>),
}

impl Spares {
    /// Takes back what others have given back in the meantime.
    fn refill_if(&self, room: &Room) {
        if matches!(room, Room::Ample) {
            self.refill();
        }
    }
}

/// Who connected.
enum Client {
    Tcp(SocketAddr),
    Local(Result<LocalPeer, String>),
}

fn start<S>(site: &Site, stream: S, client: Client, room: Room)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = match &client {
        Client::Tcp(address) => site.connections.admit(Peer::of(address.ip())),
        Client::Local(Ok(_)) => site.local_connections.admit(Peer::Local),
        Client::Local(Err(_)) => site.local_connections.admit(Peer::Refused),
    };
    let visit = Visit {
        routes: TowerToHyperService::new(site.routes.clone()),
        client,
        connection: connection.clone(),
        stops_only: matches!(room, Room::Reserve(_)),
    };
    let closing = site.closing.clone();
    let life = live(stream, visit, closing);
    #[expect(
        clippy::disallowed_methods,
        reason = "a connection belongs to its client, not to a run; it ends with the doors"
    )]
    tokio::spawn(site.tasks.track_future(async move {
        tokio::select! {
            () = life => {}
            () = connection.evicted() => {}
        }
        drop(connection);
        if let Room::Reserve(spares) = room {
            spares.refill();
        }
    }));
}

/// Serves one connection to its end.
async fn live<S>(stream: S, visit: Visit, closing: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = visit.connection.clone();
    let stops_only = visit.stops_only;
    let visit = Arc::new(visit);
    let answer = service_fn(move |request| answer(Arc::clone(&visit), request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    http.header_read_timeout(if stops_only { HEAD_OF_RESERVE } else { HEAD });
    http.keep_alive(!stops_only);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), answer).with_upgrades());
    let mut unwelcome = pin!(sleep(UNAUTHENTICATED));
    let (mut told, mut is_last) = (false, false);
    loop {
        tokio::select! {
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = closing.cancelled(), if !told => {
                told = true;
                served.as_mut().graceful_shutdown();
            }
            () = unwelcome.as_mut(), if !connection.is_authenticated() => {
                if is_last {
                    return;
                }
                is_last = true;
                served.as_mut().graceful_shutdown();
                let last = unwelcome.deadline() + LAST_REQUEST;
                unwelcome.as_mut().reset(last);
            }
        }
    }
}

/// What the requests of one connection are answered with.
struct Visit {
    routes: TowerToHyperService<Router>,
    client: Client,
    connection: Connection,
    stops_only: bool,
}

async fn answer(visit: Arc<Visit>, request: hyper::Request<Incoming>) -> Result<Response, Infallible> {
    let (request, late) = timed(request);
    let mut request = request;
    match &visit.client {
        Client::Tcp(address) => {
            request.extensions_mut().insert(ConnectInfo(*address));
        }
        Client::Local(Ok(peer)) => {
            request.extensions_mut().insert(*peer);
        }
        Client::Local(Err(why)) => return Ok(closing(refuse(ErrorCode::Forbidden, why.clone()))),
    }
    if visit.stops_only && !is_stop_route(request.method(), request.uri().path()) {
        let detail = "the daemon has no descriptors left, and those that are kept back are for stops; \
                      raise the limit of open files (LimitNOFILE=, ulimit -n)";
        return Ok(closing(refuse(ErrorCode::TooManyConnections, detail)));
    }
    request.extensions_mut().insert(visit.connection.clone());
    let Ok(response) = visit.routes.call(request).await;
    if late.is_some_and(|late| late.is_cancelled()) {
        let detail = "the body of a request may take 20 s and one second more for each 16 KiB";
        return Ok(closing(refuse(ErrorCode::BodyTimeout, detail)));
    }
    Ok(response)
}

/// The request with a limit of time for its body, and how to know that the limit was exceeded.
fn timed(request: hyper::Request<Incoming>) -> (Request, Option<CancellationToken>) {
    if request.body().is_end_stream() {
        return (request.map(Body::new), None);
    }
    let late = CancellationToken::new();
    (request.map(|body| Body::new(slow_body::Timed::new(body, late.clone()))), Some(late))
}

/// The last answer on its connection.
fn closing(refused: impl IntoResponse) -> Response {
    let mut response = refused.into_response();
    response.headers_mut().insert(axum::http::header::CONNECTION, axum::http::HeaderValue::from_static("close"));
    response
}
