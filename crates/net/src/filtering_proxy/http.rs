//! The HTTP side of the proxy: CONNECT, requests in absolute form, and requests inside of a tunnel without TLS.
//!
//! Each request of a connection is checked by itself and gets a connection to its server of its own. hyper reads and
//! writes both sides, so a server sees only requests in one normal form.

mod body;
mod headers;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1 as http1_client;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use quell_kernel::network_access::{AllowedTarget, RefusalCause, split_authority};
use tokio::net::TcpStream;

use super::gate::{CheckedServer, ConnectError, Gate, OpenedServer};
use super::streams::BoxedStream;
use body::{ProxyBody, UpstreamConnection};
use headers::{forward_headers, is_websocket_upgrade};

/// Most bytes of a head, and most header fields, in both directions.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;

const HTTP_PORT: u16 = 80;

/// A connection that leaves HTTP after an answer.
pub(super) enum SwitchedConnection {
    Tunnel { client: BoxedStream, server: OpenedServer },
    WebSocket { client: BoxedStream, server: BoxedStream },
}

impl SwitchedConnection {
    pub(super) fn into_streams(self) -> (BoxedStream, BoxedStream) {
        match self {
            Self::Tunnel { client, server } => (client, Box::new(server.stream)),
            Self::WebSocket { client, server } => (client, server),
        }
    }
}

/// What the answer to a request has prepared.
enum PendingSwitch {
    Tunnel { client: OnUpgrade, server: OpenedServer },
    WebSocket { client: OnUpgrade, server: BoxedStream },
}

/// The server of a tunnel: all requests inside go to it.
struct TunnelServer {
    target: AllowedTarget,
    address: SocketAddr,
    /// The connection with which the tunnel was opened, until the first request takes it.
    first_stream: Mutex<Option<TcpStream>>,
}

pub(super) struct HttpFront {
    gate: Arc<Gate>,
    tunnel: Option<TunnelServer>,
    switch: Mutex<Option<PendingSwitch>>,
}

/// An answer of the proxy itself.
struct OwnAnswer {
    status: StatusCode,
    text: String,
}

impl OwnAnswer {
    fn bad_request(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: text.into() }
    }

    fn forbidden(text: String) -> Self {
        Self { status: StatusCode::FORBIDDEN, text }
    }

    fn bad_gateway(text: String) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, text }
    }

    fn into_response(self) -> Response<ProxyBody> {
        let mut response = Response::new(ProxyBody::from_text(format!("{}\n", self.text)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

impl From<ConnectError> for OwnAnswer {
    fn from(error: ConnectError) -> Self {
        match &error {
            ConnectError::Refused(refusal) => Self::forbidden(refusal.to_string()),
            ConnectError::Unresolved { .. } | ConnectError::Unreachable { .. } => Self::bad_gateway(error.to_string()),
        }
    }
}

/// A refusal as a whole answer, for a client that is not served by [`serve`].
pub(super) fn plain_refusal(text: &str) -> String {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{text}\n"
    )
}

/// Answers requests until the client or a limit ends the connection, or it leaves HTTP.
pub(super) async fn serve(client: BoxedStream, front: HttpFront) -> io::Result<Option<SwitchedConnection>> {
    let front = Arc::new(front);
    let service_front = Arc::clone(&front);
    let service = service_fn(move |request| {
        let front = Arc::clone(&service_front);
        async move { Ok::<_, Infallible>(front.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(front.gate.limits.head_timeout)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(client), service);
    connection.with_upgrades().await.map_err(io::Error::other)?;
    let pending = front.switch.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(match pending {
        None => None,
        Some(PendingSwitch::Tunnel { client, server }) => {
            Some(SwitchedConnection::Tunnel { client: wait_upgraded(client).await?, server })
        }
        Some(PendingSwitch::WebSocket { client, server }) => {
            Some(SwitchedConnection::WebSocket { client: wait_upgraded(client).await?, server })
        }
    })
}

/// The connection to the client, after the answer that changes its protocol.
async fn wait_upgraded(client: OnUpgrade) -> io::Result<BoxedStream> {
    let upgraded = client.await.map_err(io::Error::other)?;
    Ok(Box::new(TokioIo::new(upgraded)))
}

impl HttpFront {
    pub(super) fn for_proxy(gate: &Arc<Gate>) -> Self {
        Self { gate: Arc::clone(gate), tunnel: None, switch: Mutex::default() }
    }

    pub(super) fn for_tunnel(gate: &Arc<Gate>, server: OpenedServer) -> Self {
        let OpenedServer { target, address, stream } = server;
        let tunnel = TunnelServer { target, address, first_stream: Mutex::new(Some(stream)) };
        Self { gate: Arc::clone(gate), tunnel: Some(tunnel), switch: Mutex::default() }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        let answer = match (request.method(), &self.tunnel) {
            (&Method::CONNECT, Some(tunnel)) => Err(self.refuse_nested_connect(tunnel, request.uri())),
            (&Method::CONNECT, None) => self.open_tunnel(request).await,
            _ => self.forward(request).await,
        };
        answer.unwrap_or_else(OwnAnswer::into_response)
    }

    fn refuse_nested_connect(&self, tunnel: &TunnelServer, uri: &Uri) -> OwnAnswer {
        let cause = RefusalCause::tunnel_target(&uri.to_string());
        OwnAnswer::forbidden(self.gate.report_cause(&tunnel.target, cause))
    }

    async fn open_tunnel(&self, mut request: Request<Incoming>) -> Result<Response<ProxyBody>, OwnAnswer> {
        let usage = "CONNECT needs a host and a port, such as example.org:443";
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        // Port 0 is never allowed, so it can stand for none.
        let (host, port) = split_authority(authority, 0).ok_or_else(|| OwnAnswer::bad_request(usage))?;
        if port == 0 || host.is_empty() {
            return Err(OwnAnswer::bad_request(usage));
        }
        let server = self.gate.check(host, port).await?;
        self.check_host_header(&server.target, request.headers())?;
        let server = self.gate.connect(server).await?;
        let client = hyper::upgrade::on(&mut request);
        self.set_switch(PendingSwitch::Tunnel { client, server });
        Ok(Response::new(ProxyBody::empty()))
    }

    fn set_switch(&self, switch: PendingSwitch) {
        *self.switch.lock().unwrap_or_else(PoisonError::into_inner) = Some(switch);
    }

    /// Sends a request to its server and returns the answer.
    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<ProxyBody>, OwnAnswer> {
        let (stream, target) = match &self.tunnel {
            Some(tunnel) => {
                self.check_request_in_tunnel(tunnel, request.uri())?;
                self.check_host_header(&tunnel.target, request.headers())?;
                (self.tunnel_stream(tunnel).await?, tunnel.target.clone())
            }
            None => {
                let server = self.check_absolute_form(request.uri()).await?;
                self.check_host_header(&server.target, request.headers())?;
                let opened = self.gate.connect(server).await?;
                (opened.stream, opened.target)
            }
        };
        let is_websocket = is_websocket_upgrade(request.headers());
        let client = is_websocket.then(|| hyper::upgrade::on(&mut request));
        self.send(prepare_request(request, &target)?, stream, client).await
    }

    /// The server of a request in absolute form.
    async fn check_absolute_form(&self, uri: &Uri) -> Result<CheckedServer, OwnAnswer> {
        let Some(authority) = uri.authority() else {
            let text = "this is a proxy: ask for a whole URL such as http://example.org/";
            return Err(OwnAnswer::bad_request(text));
        };
        if uri.scheme_str() != Some("http") {
            return Err(OwnAnswer::bad_request("only http URLs are fetched; use CONNECT for https"));
        }
        let Some((host, port)) = split_authority(authority.as_str(), HTTP_PORT) else {
            return Err(OwnAnswer::bad_request("write the URL without a user name, and with a number as its port"));
        };
        Ok(self.gate.check(host, port).await?)
    }

    /// A request inside of a tunnel has a path, or a URL of the server of the tunnel.
    fn check_request_in_tunnel(&self, tunnel: &TunnelServer, uri: &Uri) -> Result<(), OwnAnswer> {
        let Some(authority) = uri.authority() else { return Ok(()) };
        if uri.scheme_str() == Some("http") && tunnel.target.is_named_by(authority.as_str(), HTTP_PORT) {
            return Ok(());
        }
        let cause = RefusalCause::tunnel_target(authority.as_str());
        Err(OwnAnswer::forbidden(self.gate.report_cause(&tunnel.target, cause)))
    }

    /// The Host header, if there is one, has to name the target. A header without a port means that of the target.
    fn check_host_header(&self, target: &AllowedTarget, headers: &HeaderMap) -> Result<(), OwnAnswer> {
        let mut values = headers.get_all(HOST).iter();
        let Some(host) = values.next() else { return Ok(()) };
        if values.next().is_some() {
            return Err(OwnAnswer::bad_request("the request has more than one Host header"));
        }
        let host = String::from_utf8_lossy(host.as_bytes());
        if target.is_named_by(&host, target.port()) {
            return Ok(());
        }
        Err(OwnAnswer::forbidden(self.gate.report_cause(target, RefusalCause::host_header(&host))))
    }

    /// The connection with which the tunnel was opened; for later requests another one to the same address.
    async fn tunnel_stream(&self, tunnel: &TunnelServer) -> Result<TcpStream, OwnAnswer> {
        let first = tunnel.first_stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stream) = first {
            return Ok(stream);
        }
        let unreachable = |error| OwnAnswer::bad_gateway(format!("{} cannot be reached: {error}", tunnel.target));
        self.gate.connect_to(tunnel.address).await.map_err(unreachable)
    }

    /// `client` is there if the request asks for a WebSocket.
    async fn send(
        &self,
        request: Request<Incoming>,
        stream: TcpStream,
        client: Option<OnUpgrade>,
    ) -> Result<Response<ProxyBody>, OwnAnswer> {
        let failed = |error: hyper::Error| OwnAnswer::bad_gateway(format!("the server did not answer: {error}"));
        let handshake = http1_client::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await;
        let (mut sender, connection) = handshake.map_err(failed)?;
        let mut connection = UpstreamConnection::new(connection.with_upgrades());
        let mut response = {
            let mut answer = pin!(sender.send_request(request));
            tokio::select! {
                biased;
                answer = &mut answer => answer.map_err(failed)?,
                // The connection may end when the answer is there already.
                () = connection.drive() => answer.await.map_err(failed)?,
            }
        };
        forward_headers(response.headers_mut());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response.map(|body| ProxyBody::from_server(body, connection)));
        }
        let Some(client) = client else {
            return Err(OwnAnswer::bad_gateway("the server changed the protocol unasked".to_owned()));
        };
        let upgrade = hyper::upgrade::on(&mut response);
        let (upgraded, ()) = tokio::join!(upgrade, connection.drive());
        let server = Box::new(TokioIo::new(upgraded.map_err(failed)?));
        self.set_switch(PendingSwitch::WebSocket { client, server });
        headers::set_websocket_upgrade(response.headers_mut());
        Ok(response.map(|_| ProxyBody::empty()))
    }
}

/// The request in the form for its server: a path, one Host header, no header that was meant for the proxy.
fn prepare_request(mut request: Request<Incoming>, target: &AllowedTarget) -> Result<Request<Incoming>, OwnAnswer> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| OwnAnswer::bad_request("the URL has no path"))?;
    *request.version_mut() = Version::HTTP_11;
    let is_websocket = is_websocket_upgrade(request.headers());
    let headers = request.headers_mut();
    forward_headers(headers);
    let host = if target.port() == HTTP_PORT { target.host().to_string() } else { target.to_string() };
    let host = HeaderValue::try_from(host).map_err(|_| OwnAnswer::bad_request("the host is no header value"))?;
    headers.insert(HOST, host);
    if is_websocket {
        headers::set_websocket_upgrade(headers);
    } else {
        headers::set_close(headers);
    }
    Ok(request)
}
