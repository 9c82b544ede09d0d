//! A WebSocket to a server, with or without TLS.

use std::io;
use std::time::Duration;

use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::UrlError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use super::stream::{Security, Stream, connect};

/// A frame or message that is larger ends the connection.
const LARGEST: usize = 16 * 1024 * 1024;
/// How long the handshake may take once there is a connection.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// A connected WebSocket. Dropping it closes the connection under it.
pub(crate) type Socket = WebSocketStream<Stream>;

/// Opens a WebSocket at a `ws` or `wss` URL.
///
/// # Errors
/// What the URL, the stream or the handshake says; also when it takes too long.
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
    let shaking = client_async_with_config(url.as_str(), stream, Some(limits));
    let (socket, _response) =
        timeout(HANDSHAKE, shaking).await.map_err(|_| Error::Io(io::ErrorKind::TimedOut.into()))??;
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
            tokio::time::sleep(2 * HANDSHAKE).await;
            drop(stream);
        };
        tokio::select! {
            opened = open(&url) => assert!(matches!(opened, Err(Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut)),
            () = silent => panic!("it waits for ever"),
        }
    }

    #[tokio::test]
    async fn an_address_that_is_none_of_a_web_socket_is_refused() {
        let opened = open(&Url::parse("http://127.0.0.1:1/").unwrap()).await;
        assert!(matches!(opened, Err(Error::Url(UrlError::UnsupportedUrlScheme))));
    }
}
