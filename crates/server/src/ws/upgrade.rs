//! WebSocket upgrade by hand, with size limits that depend on authentication.
//!
//! The frame decoder has one size limit for the life of a connection. Stricter limits count the raw bytes below it, so
//! that a client without a token can make the daemon hold 64 KiB and not more.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::MAX_PAYLOAD;
use super::receive_limits::{LimitedStream, ReceiveLimiter};

pub(super) type WsSocket = WebSocketStream<LimitedStream<TokioIo<hyper::upgrade::Upgraded>>>;

pub(super) fn is_upgrade_request(request: &Request) -> bool {
    header_list_has(request.headers(), header::UPGRADE, "websocket")
}

/// Accepts the upgrade and serves the socket in a task that ends with the connection.
pub(super) fn accept_upgrade<S, F>(
    mut request: Request,
    receive_limiter: ReceiveLimiter,
    serve: S,
) -> Result<Response, &'static str>
where
    S: FnOnce(WsSocket, ReceiveLimiter) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let headers = request.headers();
    if !header_list_has(headers, header::CONNECTION, "upgrade") {
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
            Ok(upgraded) => serve(into_websocket(upgraded, receive_limiter.clone()).await, receive_limiter).await,
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

async fn into_websocket(upgraded: hyper::upgrade::Upgraded, receive_limiter: ReceiveLimiter) -> WsSocket {
    let stream = LimitedStream::new(TokioIo::new(upgraded), receive_limiter);
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_PAYLOAD))
        .max_frame_size(Some(MAX_PAYLOAD))
        .read_buffer_size(8 * 1024)
        .write_buffer_size(0);
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await
}

fn header_list_has(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}
