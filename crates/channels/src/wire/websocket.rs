//! Open a client WebSocket with or without TLS.

use std::io;
use std::time::Duration;

use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::UrlError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use super::byte_stream::{ByteStream, StreamSecurity, connect};

/// A larger frame or message ends the connection.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Time limit of the handshake once the stream is connected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// A connected WebSocket. Dropping it closes its stream.
pub(crate) type ClientWebSocket = WebSocketStream<ByteStream>;

/// Opens a WebSocket at a `ws` or `wss` URL, with a time limit of 15 seconds each for the connect and the handshake.
///
/// # Cancel safety
/// Safe: a connection that is dropped half-way is closed.
pub(crate) async fn open_websocket(url: &Url) -> Result<ClientWebSocket, Error> {
    let security = match url.scheme() {
        "ws" => StreamSecurity::Plain,
        "wss" => StreamSecurity::Tls,
        _ => return Err(Error::Url(UrlError::UnsupportedUrlScheme)),
    };
    let host = url.host_str().ok_or(Error::Url(UrlError::NoHostName))?;
    let port = url.port_or_known_default().ok_or(Error::Url(UrlError::NoPathOrQuery))?;
    let stream = connect(host.trim_matches(['[', ']']), port, security).await?;
    let limits =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    let handshake = client_async_with_config(url.as_str(), stream, Some(limits));
    let (socket, _response) =
        timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(|_| Error::Io(io::ErrorKind::TimedOut.into()))??;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_that_never_answers_the_handshake_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("ws://{}/", listener.local_addr().unwrap())).unwrap();
        let silent = async {
            let (stream, _) = listener.accept().await.unwrap();
            // From here on only time passes.
            tokio::time::pause();
            tokio::time::sleep(2 * HANDSHAKE_TIMEOUT).await;
            drop(stream);
        };
        tokio::select! {
            opened = open_websocket(&url) => assert!(matches!(opened, Err(Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut)),
            () = silent => panic!("it waits for ever"),
        }
    }

    #[tokio::test]
    async fn an_address_that_is_none_of_a_web_socket_is_refused() {
        let opened = open_websocket(&Url::parse("http://127.0.0.1:1/").unwrap()).await;
        assert!(matches!(opened, Err(Error::Url(UrlError::UnsupportedUrlScheme))));
    }
}
