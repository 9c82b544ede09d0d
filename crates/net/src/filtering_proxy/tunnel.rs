//! Relay bytes between a client and a server, after a look at the first bytes of the client.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::network_access::RefusalCause;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::first_bytes::{FirstBytes, FirstBytesReader};
use super::gate::{Gate, OpenedServer};
use super::http::{HttpFront, SwitchedConnection, plain_refusal, serve};
use super::streams::{BoxedStream, RewoundStream};

/// Size of one read.
const READ_SIZE: usize = 4096;

/// A fatal alert of TLS 1.2: `access_denied`.
const TLS_ACCESS_DENIED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];

/// Relays a connection that has left HTTP.
pub(super) async fn relay_switched(switched: SwitchedConnection, gate: &Arc<Gate>) -> io::Result<()> {
    match switched {
        SwitchedConnection::Tunnel { client, server } => relay_inspected(client, server, gate).await,
        SwitchedConnection::WebSocket { client, server } => relay(client, server).await,
    }
}

/// Relays what belongs to the target of the tunnel until both sides have ended, each by itself. HTTP is read request by
/// request instead.
pub(super) async fn relay_inspected(
    mut client: BoxedStream,
    mut server: OpenedServer,
    gate: &Arc<Gate>,
) -> io::Result<()> {
    let needs_tls = gate.limits.tls_ports.contains(&server.target.port());
    let mut reader = FirstBytesReader::new();
    let kind = read_first_bytes(
        &mut client,
        &mut server.stream,
        &mut reader,
        FirstBytesWait { needs_tls, head_timeout: gate.limits.head_timeout },
    )
    .await?;
    if needs_tls && kind == FirstBytes::Incomplete && reader.is_empty() {
        // The client only looked whether the port answers.
        return client.shutdown().await;
    }
    let refusal = match &kind {
        FirstBytes::Tls { server_name: Some(name) } if server.target.has_host(name) => None,
        FirstBytes::Tls { server_name: Some(name) } => {
            Some(RefusalCause::ServerNameDiffers { server_name: name.clone() })
        }
        // No server name can stand for an address.
        FirstBytes::Tls { server_name: None } if needs_tls && !server.target.is_address() => {
            Some(RefusalCause::ServerNameMissing)
        }
        FirstBytes::Tls { server_name: None } => None,
        FirstBytes::InvalidTls => Some(RefusalCause::InvalidClientHello),
        FirstBytes::Http | FirstBytes::Incomplete | FirstBytes::TooLong | FirstBytes::Other if needs_tls => {
            Some(RefusalCause::TlsExpected)
        }
        FirstBytes::TooLong => Some(RefusalCause::UnreadableRequest),
        FirstBytes::Http => {
            let client = Box::new(RewoundStream::new(reader.into_bytes(), client));
            return match serve(client, HttpFront::for_tunnel(gate, server)).await? {
                Some(switched) => {
                    // No tunnel begins inside of a tunnel, so this is a WebSocket.
                    let (client, server) = switched.into_streams();
                    relay(client, server).await
                }
                None => Ok(()),
            };
        }
        // The client has ended before its first bytes made sense, which no server can take for a request either.
        FirstBytes::Incomplete | FirstBytes::Other => None,
    };
    let Some(cause) = refusal else {
        server.stream.write_all(&reader.into_bytes()).await?;
        return relay(client, Box::new(server.stream)).await;
    };
    let text = gate.report_cause(&server.target, cause);
    match kind {
        FirstBytes::Tls { .. } | FirstBytes::InvalidTls => client.write_all(&TLS_ACCESS_DENIED).await?,
        FirstBytes::Http | FirstBytes::TooLong => client.write_all(plain_refusal(&text).as_bytes()).await?,
        FirstBytes::Incomplete | FirstBytes::Other => {}
    }
    client.shutdown().await
}

struct FirstBytesWait {
    needs_tls: bool,
    head_timeout: Duration,
}

/// Reads from the client until the kind of its bytes is known or it ends. Meanwhile a server that speaks first is heard,
/// unless the port is for TLS. The time limit begins with the first byte, and on a port for TLS at once.
async fn read_first_bytes(
    client: &mut BoxedStream,
    server: &mut TcpStream,
    reader: &mut FirstBytesReader,
    wait: FirstBytesWait,
) -> io::Result<FirstBytes> {
    let (mut from_client, mut from_server) = ([0; READ_SIZE], [0; READ_SIZE]);
    let deadline = |begins: bool| begins.then(|| Instant::now() + wait.head_timeout);
    let mut late_at = deadline(wait.needs_tls);
    let mut hears_server = !wait.needs_tls;
    loop {
        let late = async {
            match late_at {
                Some(late_at) => sleep_until(late_at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            count = client.read(&mut from_client) => {
                let count = count?;
                if count == 0 {
                    return Ok(FirstBytes::Incomplete);
                }
                match reader.add(from_client.get(..count).unwrap_or_default()) {
                    FirstBytes::Incomplete => late_at = late_at.or_else(|| deadline(true)),
                    known => return Ok(known),
                }
            }
            count = server.read(&mut from_server), if hears_server => {
                let count = count?;
                if count == 0 {
                    hears_server = false;
                    client.shutdown().await?;
                } else {
                    client.write_all(from_server.get(..count).unwrap_or_default()).await?;
                }
            }
            () = late => return Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }
}

/// Relays both directions. Each side ends by itself: the end of one is passed on, and the other goes on.
async fn relay(mut client: BoxedStream, mut server: BoxedStream) -> io::Result<()> {
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
