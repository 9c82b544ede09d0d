//! A WebSocket to a server, with or without TLS.

use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::UrlError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use super::stream::{Security, Stream, connect};

/// A frame or message that is larger ends the connection.
const LARGEST: usize = 16 * 1024 * 1024;

/// A connected WebSocket. Dropping it closes the connection under it.
pub(crate) type Socket = WebSocketStream<Stream>;

/// Opens a WebSocket at a `ws` or `wss` URL.
///
/// # Errors
/// What the URL, the stream or the handshake says.
///
/// # Cancel safety
/// Safe: a connection that is dropped half-way is closed.
pub(crate) async fn open(url: &Url) -> Result<Socket, Error> {
    let security = match url.scheme() {
        "ws" => Security::Plain,
        "wss" => Security::Tls,
        _ => return Err(Error::Url(UrlError::UnsupportedUrlScheme)),
    };
    let host = url.host_str().ok_or(Error::Url(UrlError::NoHostName))?;
    let port = url.port_or_known_default().ok_or(Error::Url(UrlError::NoPathOrQuery))?;
    let stream = connect(host.trim_matches(['[', ']']), port, security).await?;
    let limits = WebSocketConfig::default().max_message_size(Some(LARGEST)).max_frame_size(Some(LARGEST));
    let (socket, _response) = client_async_with_config(url.as_str(), stream, Some(limits)).await?;
    Ok(socket)
}
