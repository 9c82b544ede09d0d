//! The proxy through which commands with a network list reach servers.
//!
//! The commands live in a network namespace that has nothing but a loopback interface. A socket keeps the namespace in
//! which it was made: the listener comes from there, and the connections to servers are made by the daemon. One port
//! speaks HTTP (CONNECT and requests in absolute form) and SOCKS5. Every way to ask gets the decision of
//! [`NetworkRules`]; names are resolved here, once, and the connection goes to the address that was checked.
//!
//! What a tunnel carries is looked at where it begins: the server name of TLS must be that of the target, and HTTP
//! without TLS is read request by request. Two things remain open. Inside of TLS a client can name another host of the
//! same server (domain fronting), because the proxy does not decrypt; with Encrypted Client Hello the outer name counts.
//! And TLS that begins later in a connection (STARTTLS) is not checked.

mod environment;
mod first_bytes;
mod gate;
mod http;
mod resolver;
mod socks;
mod streams;
#[cfg(test)]
mod tests;
mod tunnel;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::network_access::{NetworkRefusal, NetworkRules};
use quell_protocol::ResourceKind;
use quell_scope::{Point, Release, Scope};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

pub use environment::proxy_environment;
pub use resolver::{HostResolver, ResolvedAddresses, SystemResolver};

use gate::Gate;
use streams::{ActivityClock, IdleStream};

/// Pause after a failed accept, for example until others have given file descriptors back.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The first byte of SOCKS5, and that of SOCKS4, which is not spoken.
const SOCKS5: u8 = 5;
const SOCKS4: u8 = 4;

/// Receives what was refused, to tell the model.
pub trait RefusalObserver: Send {
    /// Called for each refusal, also for repeated ones: a command may cause any number. Must not block.
    fn refused(&mut self, refusal: NetworkRefusal);
}

/// Limits of one proxy.
#[derive(Debug, Clone)]
pub struct ProxyLimits {
    /// Connections at once; others wait in the backlog of the listener. Each takes two descriptors of the daemon.
    pub max_connections: usize,
    /// Time for the head of a request, a SOCKS handshake, or the first message of TLS.
    pub head_timeout: Duration,
    /// Time to resolve a name, and time for each attempt to connect.
    pub connect_timeout: Duration,
    /// A connection on which no byte moves for this long is closed.
    pub idle_timeout: Duration,
    /// Ports on which a connection has to begin with TLS that names the target.
    pub tls_ports: Vec<u16>,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            head_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            tls_ports: vec![443],
        }
    }
}

/// What a proxy decides with, and to whom it reports.
pub struct ProxySetup {
    pub rules: NetworkRules,
    pub resolver: Arc<dyn HostResolver>,
    pub observer: Box<dyn RefusalObserver>,
    pub limits: ProxyLimits,
}

/// A running proxy. It ends with [`FilteringProxy::close`], when this is dropped, or when the scope that it was started
/// in is stopped; in each case all of its sockets are closed.
#[derive(Debug)]
#[must_use = "a dropped proxy ends at once"]
pub struct FilteringProxy {
    /// Cancelled together with the scope of the command, and before it when the command ends.
    work: Scope,
}

impl FilteringProxy {
    /// Starts to accept connections. `scope` holds the proxy in its ledger until the last socket is closed.
    pub fn start(listener: TcpListener, setup: ProxySetup, scope: &Scope) -> Self {
        let work = scope.sibling();
        let stopped_work = work.clone();
        let held = scope.hold(ResourceKind::Task, "network proxy").on_stop(move |level| {
            stopped_work.stop(level);
        });
        let accepting_work = work.clone();
        work.spawn(async move {
            let accepting = accept_connections(listener, setup, &accepting_work);
            // A cancel is the only end.
            let _ = accepting_work.race(Point::Process, accepting).await;
        });
        let (closed_work, command) = (work.clone(), scope.clone());
        scope.spawn(async move {
            // waits: for the stop of the command, or for the end of the proxy, which both cancel it.
            closed_work.cancelled().await;
            closed_work.close().await;
            held.release(if command.is_cancelled() { Release::Cancelled } else { Release::Closed });
        });
        Self { work }
    }

    /// Ends the proxy and waits until all of its sockets are closed.
    ///
    /// # Cancel safety
    /// Safe: the end is begun at once, and goes on by itself.
    pub async fn close(&self) {
        self.work.cancel();
        self.work.close().await;
    }
}

impl Drop for FilteringProxy {
    fn drop(&mut self) {
        self.work.cancel();
    }
}

/// Never returns: it is raced against the end of the proxy.
async fn accept_connections(listener: TcpListener, setup: ProxySetup, work: &Scope) {
    let places = Arc::new(Semaphore::new(setup.limits.max_connections.max(1)));
    let gate = Arc::new(Gate::new(setup));
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::debug!(%error, "the network proxy cannot accept a connection");
                    sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            }
        };
        let connection = ProxyConnection { gate: Arc::clone(&gate), _place: place };
        let raced = work.clone();
        work.spawn(async move {
            // A cancel drops the connection, which closes both of its sockets.
            let _ = raced.race(Point::Process, connection.serve(stream)).await;
        });
    }
}

struct ProxyConnection {
    gate: Arc<Gate>,
    _place: OwnedSemaphorePermit,
}

impl ProxyConnection {
    async fn serve(self, stream: TcpStream) {
        // Small messages are sent at once, as their senders meant it.
        let _ = stream.set_nodelay(true);
        let activity = ActivityClock::start();
        let idle = activity.wait_idle(self.gate.limits.idle_timeout);
        tokio::select! {
            outcome = self.serve_client(stream, activity.clone()) => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection of the network proxy ended early");
                }
            }
            () = idle => tracing::debug!("an idle connection of the network proxy is closed"),
        }
    }

    async fn serve_client(&self, stream: TcpStream, activity: ActivityClock) -> io::Result<()> {
        let mut first = [0];
        let peeked = timeout(self.gate.limits.head_timeout, stream.peek(&mut first)).await??;
        if peeked == 0 {
            return Ok(());
        }
        let mut stream = IdleStream::new(stream, activity);
        match first[0] {
            SOCKS5 => match socks::negotiate(&mut stream, &self.gate).await? {
                Some(opened) => tunnel::relay_inspected(Box::new(stream), opened, &self.gate).await,
                None => Ok(()),
            },
            SOCKS4 => socks::refuse_version_4(&mut stream).await,
            _ => match http::serve(Box::new(stream), http::HttpFront::for_proxy(&self.gate)).await? {
                Some(switched) => tunnel::relay_switched(switched, &self.gate).await,
                None => Ok(()),
            },
        }
    }
}
