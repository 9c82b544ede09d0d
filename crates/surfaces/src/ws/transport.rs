//! The upgrade by hand, so that an unauthenticated client can make the daemon hold 64 KiB and not more.
//!
//! The frame decoder has one size limit for the life of a connection; the stricter one before authentication is a budget of
//! raw bytes under it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::{MAX_BEFORE_AUTH, MAX_PAYLOAD};

/// A socket that speaks frames.
pub(super) type Socket = WebSocketStream<Budgeted<TokioIo<hyper::upgrade::Upgraded>>>;

/// No budget: the client is authenticated.
const UNLIMITED: usize = usize::MAX;
/// Frame headers and pings that may come with the one frame before authentication.
const SLACK: usize = 1024;

/// Bytes that may still be read.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// The client is authenticated: only the frame limit counts from now on.
    pub(super) fn lift(&self) {
        self.0.store(UNLIMITED, Ordering::Release);
    }
}

/// A stream that fails when more was read than its budget.
#[derive(Debug)]
pub(super) struct Budgeted<S> {
    stream: S,
    budget: Budget,
}

impl<S: AsyncRead + Unpin> AsyncRead for Budgeted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        let left = self.budget.0.load(Ordering::Acquire);
        if left == UNLIMITED {
            return Poll::Ready(Ok(()));
        }
        if read > left {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, "too much before authentication")));
        }
        self.budget.0.store(left - read, Ordering::Release);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Budgeted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// True when the client wants a WebSocket.
pub(super) fn asks_for_upgrade(request: &Request) -> bool {
    has_token(request.headers(), header::UPGRADE, "websocket")
}

/// Answers the upgrade and serves the socket in a task that ends with the connection.
pub(super) fn accept<S, F>(mut request: Request, serve: S) -> Result<Response, &'static str>
where
    S: FnOnce((Socket, Budget)) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let headers = request.headers();
    if !has_token(headers, header::CONNECTION, "upgrade") {
        return Err("a WebSocket upgrade needs `Connection: Upgrade`");
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err("a WebSocket upgrade needs `Sec-WebSocket-Version: 13`");
    }
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY) else {
        return Err("a WebSocket upgrade needs `Sec-WebSocket-Key`");
    };
    let accept_key = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| "the key is not valid")?;
    let upgrade = hyper::upgrade::on(&mut request);
    #[expect(
        clippy::disallowed_methods,
        reason = "a connection belongs to its client, not to a run; it ends with the engine"
    )]
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => serve(socket(upgraded).await).await,
            Err(error) => tracing::debug!(%error, "an upgrade was not completed"),
        }
    });
    let mut response = (StatusCode::SWITCHING_PROTOCOLS, Body::empty()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept_key);
    Ok(response)
}

async fn socket(upgraded: hyper::upgrade::Upgraded) -> (Socket, Budget) {
    let budget = Budget(Arc::new(AtomicUsize::new(MAX_BEFORE_AUTH + SLACK)));
    let stream = Budgeted { stream: TokioIo::new(upgraded), budget: budget.clone() };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_PAYLOAD))
        .max_frame_size(Some(MAX_PAYLOAD))
        .read_buffer_size(8 * 1024)
        .write_buffer_size(0);
    (WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await, budget)
}

fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}
