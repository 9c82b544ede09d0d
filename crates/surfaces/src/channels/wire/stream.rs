//! A byte stream to a server: TCP, with TLS where that is wanted.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long connecting may take, the TLS handshake included.
const CONNECT: Duration = Duration::from_secs(15);
/// How long it may take at one address.
const ADDRESS: Duration = Duration::from_secs(4);

/// What can be read and written.
pub(crate) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A connected stream. Dropping it closes it.
pub(crate) type Stream = Box<dyn ReadWrite>;

/// Whether a stream is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    /// It is not.
    Plain,
    /// It is, with the system's certificates.
    Tls,
}

/// Connects to a host and port.
///
/// # Errors
/// What the system or TLS says; also when it takes too long.
///
/// # Cancel safety
/// Safe: a connection that is dropped half-way is closed.
pub(crate) async fn connect(host: &str, port: u16, security: Security) -> io::Result<Stream> {
    let connecting = async {
        let stream = open(host, port).await?;
        match security {
            Security::Plain => Ok(Box::new(stream) as Stream),
            Security::Tls => secured(stream, host, tls()?).await,
        }
    };
    timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

/// Connects with TLS to a server that shows this certificate or one signed by it.
#[cfg(test)]
pub(crate) async fn connect_trusting(certificate: &std::path::Path, host: &str, port: u16) -> io::Result<Stream> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?).map_err(io::Error::other)?;
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    secured(open(host, port).await?, host, Arc::new(config)).await
}

/// Tries the addresses of a name in turn. Each has its own time, so that one at which nobody answers, as those of IPv6 on many
/// machines, does not use up the time of the others.
async fn open(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((host, port)).await? {
        match timeout(ADDRESS, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

async fn secured(stream: TcpStream, host: &str, config: Arc<rustls::ClientConfig>) -> io::Result<Stream> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
}

fn tls() -> io::Result<Arc<rustls::ClientConfig>> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    // Whoever comes first installs it; one is as good as another.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = Arc::new(rustls::ClientConfig::with_platform_verifier().map_err(io::Error::other)?);
    Ok(Arc::clone(CONFIG.get_or_init(|| made)))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        // Where the name has an address of IPv6 as well, nobody listens there.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        connect("localhost", port, Security::Plain).await.unwrap();
    }
}
