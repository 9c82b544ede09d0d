//! Open a TCP or TLS stream.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Time limit of a connect to all addresses, the TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of a connect to one address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);

pub(crate) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A connected stream. Dropping it closes it.
pub(crate) type ByteStream = Box<dyn ReadWrite>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamSecurity {
    Plain,
    /// Encrypted; verified with the system's certificates.
    Tls,
}

/// Connects to a host and port, within 15 seconds.
///
/// # Cancel safety
/// Safe: a connection that is dropped half-way is closed.
pub(crate) async fn connect(host: &str, port: u16, security: StreamSecurity) -> io::Result<ByteStream> {
    let connecting = async {
        let stream = connect_tcp(host, port).await?;
        match security {
            StreamSecurity::Plain => Ok(Box::new(stream) as ByteStream),
            StreamSecurity::Tls => connect_tls(stream, host, tls_config()?).await,
        }
    };
    timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

/// Connects with TLS to a server that shows this certificate or one signed by it.
#[cfg(test)]
pub(crate) async fn connect_trusting(certificate: &std::path::Path, host: &str, port: u16) -> io::Result<ByteStream> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?).map_err(io::Error::other)?;
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    connect_tls(connect_tcp(host, port).await?, host, Arc::new(config)).await
}

/// Tries the addresses of a name in turn. Each has a time limit of its own, so that an address that does not respond
/// (IPv6 on many machines) does not use up the time of the others.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((host, port)).await? {
        match timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last_error = error,
            Err(_) => last_error = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last_error)
}

async fn connect_tls(stream: TcpStream, host: &str, config: Arc<rustls::ClientConfig>) -> io::Result<ByteStream> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
}

fn tls_config() -> io::Result<Arc<rustls::ClientConfig>> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    // The first caller installs it; all providers are the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Arc::new(rustls::ClientConfig::with_platform_verifier().map_err(io::Error::other)?);
    Ok(Arc::clone(CONFIG.get_or_init(|| config)))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried() {
        // If the name also has an IPv6 address, nothing listens there.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        connect("localhost", port, StreamSecurity::Plain).await.unwrap();
    }
}
