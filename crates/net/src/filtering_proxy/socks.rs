//! The server side of SOCKS5 (RFC 1928): CONNECT without authentication, to names and listed addresses.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::gate::{ConnectError, Gate, OpenedServer};
use super::streams::IdleStream;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const ADDRESS_IPV4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_IPV6: u8 = 4;

/// Replies of SOCKS5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocksReply {
    Succeeded = 0,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

/// SOCKS4 sends an address instead of a name, and has no reply for a rule: rejected, 91.
pub(super) async fn refuse_version_4(stream: &mut IdleStream) -> io::Result<()> {
    stream.write_all(&[0, 91, 0, 0, 0, 0, 0, 0]).await?;
    stream.shutdown().await
}

/// Reads a request and connects to its server. `None` if it was answered with a failure.
pub(super) async fn negotiate(stream: &mut IdleStream, gate: &Gate) -> io::Result<Option<OpenedServer>> {
    let head_timeout = gate.limits.head_timeout;
    if !timeout(head_timeout, negotiate_method(stream)).await?? {
        return Ok(None);
    }
    let asked_for = match timeout(head_timeout, read_request(stream)).await?? {
        Ok(asked_for) => asked_for,
        Err(reply) => {
            send_reply(stream, reply).await?;
            stream.shutdown().await?;
            return Ok(None);
        }
    };
    let opened = match gate.check(&asked_for.host, asked_for.port).await {
        Ok(server) => gate.connect(server).await,
        Err(error) => Err(error),
    };
    match opened {
        Ok(opened) => {
            send_reply(stream, SocksReply::Succeeded).await?;
            Ok(Some(opened))
        }
        Err(error) => {
            tracing::debug!(%error, "a SOCKS request failed");
            send_reply(stream, reply_for(&error)).await?;
            stream.shutdown().await?;
            Ok(None)
        }
    }
}

/// Agrees on no authentication. False if the client offers only other methods.
async fn negotiate_method(stream: &mut IdleStream) -> io::Result<bool> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut methods = vec![0; usize::from(head[1])];
    stream.read_exact(&mut methods).await?;
    let is_offered = methods.contains(&NO_AUTHENTICATION);
    stream.write_all(&[VERSION, if is_offered { NO_AUTHENTICATION } else { NO_ACCEPTABLE_METHOD }]).await?;
    Ok(is_offered)
}

/// The server that a SOCKS client asks for.
struct SocksTarget {
    host: String,
    port: u16,
}

/// The server, or the reply to a request that is not supported.
async fn read_request(stream: &mut IdleStream) -> io::Result<Result<SocksTarget, SocksReply>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, command, _, address_type] = head;
    if version != VERSION {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let host = match address_type {
        ADDRESS_IPV4 => {
            let mut octets = [0; 4];
            stream.read_exact(&mut octets).await?;
            Ipv4Addr::from(octets).to_string()
        }
        ADDRESS_IPV6 => {
            let mut octets = [0; 16];
            stream.read_exact(&mut octets).await?;
            Ipv6Addr::from(octets).to_string()
        }
        ADDRESS_NAME => {
            let mut name = vec![0; usize::from(stream.read_u8().await?)];
            stream.read_exact(&mut name).await?;
            // What is no UTF-8 becomes a name that no rule can allow.
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => return Ok(Err(SocksReply::AddressTypeNotSupported)),
    };
    let port = stream.read_u16().await?;
    Ok(if command == CONNECT { Ok(SocksTarget { host, port }) } else { Err(SocksReply::CommandNotSupported) })
}

fn reply_for(error: &ConnectError) -> SocksReply {
    match error {
        ConnectError::Refused(_) => SocksReply::NotAllowed,
        ConnectError::Unreachable { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
            SocksReply::ConnectionRefused
        }
        ConnectError::Unresolved { .. } | ConnectError::Unreachable { .. } => SocksReply::HostUnreachable,
    }
}

/// The bound address of a reply is left unspecified: it is one of the daemon's network.
async fn send_reply(stream: &mut IdleStream, reply: SocksReply) -> io::Result<()> {
    stream.write_all(&[VERSION, reply as u8, 0, ADDRESS_IPV4, 0, 0, 0, 0, 0, 0]).await
}
