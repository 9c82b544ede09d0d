//! The way of every connection to a server: decide about the name, resolve it once, decide about its addresses, connect
//! to one of those.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use quell_kernel::network_access::{AllowedTarget, NetworkRefusal, NetworkRules, RefusalCause, TargetHost};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{HostResolver, ProxyLimits, ProxySetup, RefusalObserver};

/// Addresses of one name that are tried. All of them are checked.
const MAX_ATTEMPTS: usize = 8;

pub(super) struct Gate {
    rules: NetworkRules,
    resolver: Arc<dyn HostResolver>,
    observer: Mutex<Box<dyn RefusalObserver>>,
    pub(super) limits: ProxyLimits,
}

/// A server whose name and addresses were checked.
pub(super) struct CheckedServer {
    pub(super) target: AllowedTarget,
    addresses: Vec<SocketAddr>,
}

/// An open connection to a server.
pub(super) struct OpenedServer {
    pub(super) target: AllowedTarget,
    /// The checked address to which it leads.
    pub(super) address: SocketAddr,
    pub(super) stream: TcpStream,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// It has been reported.
    #[error("{0}")]
    Refused(NetworkRefusal),
    #[error("{host} cannot be resolved: {why}")]
    Unresolved { host: String, why: String },
    #[error("{target} cannot be reached: {source}")]
    Unreachable { target: String, source: io::Error },
}

impl Gate {
    pub(super) fn new(setup: ProxySetup) -> Self {
        let ProxySetup { rules, resolver, observer, limits } = setup;
        Self { rules, resolver, observer: Mutex::new(observer), limits }
    }

    /// Reports a refusal, and returns its text.
    pub(super) fn report(&self, refusal: &NetworkRefusal) -> String {
        tracing::debug!(target_server = %refusal.target, cause = %refusal.cause, "network access refused");
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).refused(refusal.clone());
        refusal.to_string()
    }

    /// Reports a refusal of this target, and returns its text.
    pub(super) fn report_cause(&self, target: &AllowedTarget, cause: RefusalCause) -> String {
        self.report(&target.refuse(cause))
    }

    /// Decides about a server, resolves its name and decides about its addresses.
    pub(super) async fn check(&self, host: &str, port: u16) -> Result<CheckedServer, ConnectError> {
        let refused = |refusal: NetworkRefusal| {
            self.report(&refusal);
            ConnectError::Refused(refusal)
        };
        let target = self.rules.check_target(host, port).map_err(refused)?;
        let addresses = match target.host() {
            TargetHost::Address(address) => vec![*address],
            TargetHost::Name(name) => self.resolve(name).await?,
        };
        self.rules.check_addresses(&target, &addresses).map_err(refused)?;
        let addresses = addresses.iter().map(|address| SocketAddr::new(address.to_canonical(), port)).collect();
        Ok(CheckedServer { target, addresses })
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ConnectError> {
        let unresolved = |why: String| ConnectError::Unresolved { host: name.to_owned(), why };
        match timeout(self.limits.connect_timeout, self.resolver.resolve(name)).await {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(unresolved("it has no address".to_owned())),
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(unresolved(error.to_string())),
            Err(late) => Err(unresolved(late.to_string())),
        }
    }

    /// Connects to one of the checked addresses, in their order.
    pub(super) async fn connect(&self, server: CheckedServer) -> Result<OpenedServer, ConnectError> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for address in server.addresses.iter().take(MAX_ATTEMPTS) {
            match self.connect_to(*address).await {
                Ok(stream) => return Ok(OpenedServer { target: server.target, address: *address, stream }),
                Err(error) => failure = error,
            }
        }
        Err(ConnectError::Unreachable { target: server.target.to_string(), source: failure })
    }

    /// Connects to an address that was checked before.
    pub(super) async fn connect_to(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = timeout(self.limits.connect_timeout, TcpStream::connect(address)).await??;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
