//! TLS to a PostgreSQL server by rustls, with the channel binding of SCRAM: the server proves that it knows the password
//! and owns the certificate of this connection.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Makes TLS connections. Clones share the settings.
#[derive(Clone)]
pub(super) struct TlsSettings(Arc<ClientConfig>);

/// One handshake. The name is checked when it begins, because a connection without TLS may have a path for a host.
pub(super) struct TlsHandshake {
    connector: TlsConnector,
    host: String,
}

pub(super) struct PostgresTlsStream(tokio_rustls::client::TlsStream<Socket>);

impl TlsSettings {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self(Arc::new(config))
    }
}

impl MakeTlsConnect<Socket> for TlsSettings {
    type Stream = PostgresTlsStream;
    type TlsConnect = TlsHandshake;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<TlsHandshake, Infallible> {
        Ok(TlsHandshake { connector: Arc::clone(&self.0).into(), host: host.to_owned() })
    }
}

impl TlsConnect<Socket> for TlsHandshake {
    type Stream = PostgresTlsStream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<PostgresTlsStream>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host);
            let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            self.connector.connect(name, socket).await.map(PostgresTlsStream)
        })
    }
}

impl TlsStream for PostgresTlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates().unwrap_or_default();
        let hash = certificates.first().and_then(|certificate| hash_for_channel_binding(certificate));
        hash.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for PostgresTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PostgresTlsStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// `tls-server-end-point` of RFC 5929: the hash of the certificate by the hash function of its signature, SHA-256 in
/// place of SHA-1. `None` for signatures without such a function, such as Ed25519.
fn hash_for_channel_binding(certificate: &[u8]) -> Option<Vec<u8>> {
    // The object identifiers of RFC 8017 and RFC 5758, as DER encodes their content.
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    let (last, family) = signature_algorithm(certificate)?.split_last()?;
    match (family, *last) {
        (RSA, 5 | 11) | (ECDSA_SHA2, 2) => Some(Sha256::digest(certificate).to_vec()),
        (RSA, 12) | (ECDSA_SHA2, 3) => Some(Sha384::digest(certificate).to_vec()),
        (RSA, 13) | (ECDSA_SHA2, 4) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// Content of the object identifier in `signatureAlgorithm`, the second member of a certificate in DER.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 6;
    let (members, _) = read_der(certificate, SEQUENCE)?;
    let (_signed_part, rest) = read_der(members, SEQUENCE)?;
    let (algorithm, _signature) = read_der(rest, SEQUENCE)?;
    Some(read_der(algorithm, OBJECT_IDENTIFIER)?.0)
}

/// Reads a value of this type. Returns its content and the bytes behind it.
fn read_der(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let bytes = bytes.strip_prefix(&[tag])?;
    let (&first, rest) = bytes.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // That many bytes contain the length.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        let length = match content.len() {
            0..0x80 => vec![length[3]],
            0x80..0x100 => vec![0x81, length[3]],
            _ => vec![0x82, length[2], length[3]],
        };
        [&[tag], length.as_slice(), content].concat()
    }

    fn certificate(algorithm: &[u8], signed_bytes: usize) -> Vec<u8> {
        let algorithm = der(0x30, &[der(6, algorithm), der(5, &[])].concat());
        der(0x30, &[der(0x30, &vec![7; signed_bytes]), algorithm, der(3, &[0, 1, 2])].concat())
    }

    #[rstest]
    #[case::rsa_sha1(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], Some(32))]
    #[case::rsa_sha256(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], Some(32))]
    #[case::rsa_sha384(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], Some(48))]
    #[case::rsa_sha512(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], Some(64))]
    #[case::ecdsa_sha256(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], Some(32))]
    #[case::ecdsa_sha384(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], Some(48))]
    #[case::ed25519(&[0x2b, 0x65, 0x70], None)]
    fn channel_binding_hashes_as_the_signature_does(#[case] algorithm: &[u8], #[case] bytes: Option<usize>) {
        for signed_bytes in [5, 0x90, 1000] {
            let certificate = certificate(algorithm, signed_bytes);
            assert_eq!(hash_for_channel_binding(&certificate).map(|hash| hash.len()), bytes);
            for cut in 0..certificate.len() {
                assert_eq!(hash_for_channel_binding(&certificate[..cut]), None, "a part of a certificate");
            }
        }
    }
}
