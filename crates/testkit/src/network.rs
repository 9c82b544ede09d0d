//! A network of its own for a node: a namespace with nothing but loopback, and relays that a test cuts and heals.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::or_fail::OrFail as _;
use crate::skip::announce_skip;

/// Runs in the new namespace, which lasts as long as its input is open.
const HOLDER_SCRIPT: &str = "echo made; ip link set lo up && echo up && exec cat";

/// A network namespace whose only interface is `lo`. It is gone with its last process, and when this is dropped.
#[derive(Debug)]
pub struct NodeNetwork {
    holder: Child,
    namespace: Arc<File>,
}

impl NodeNetwork {
    /// `None`: the test is skipped, because the system permits no network namespace.
    #[must_use]
    pub fn start() -> Option<Self> {
        #[expect(clippy::disallowed_methods, reason = "keeps a namespace for the binary under test")]
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", HOLDER_SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().or_fail("unshare cannot be started");
        let mut lines = BufReader::new(holder.stdout.take().or_fail("no output")).lines().map_while(Result::ok);
        if lines.next().is_none() {
            let _ = holder.wait();
            announce_skip("the system permits no network namespace");
            return None;
        }
        assert_eq!(lines.next().as_deref(), Some("up"), "`ip link set lo up` fails: install iproute2");
        let namespace = File::open(format!("/proc/{}/ns/net", holder.id())).or_fail("the namespace cannot be opened");
        Some(Self { holder, namespace: Arc::new(namespace) })
    }

    /// The namespace, for `nsenter --net=PATH`.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    /// From now on, programs in the namespace reach this port of the host's 127.0.0.1 as their own.
    pub fn relay_to_host(&self, port: u16) -> Relay {
        Relay::start(Some(&self.namespace), None, port)
    }

    /// Opens a free port of the host. What listens on the same port of the namespace is reached through it.
    pub fn relay_to_namespace(&self) -> Relay {
        Relay::start(None, Some(&self.namespace), 0)
    }
}

impl Drop for NodeNetwork {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // It exits at the end of its input.
        let _ = self.holder.wait();
    }
}

/// Connections from one namespace to another. Dropping it closes all of them.
///
/// While it is cut it passes nothing on and closes nothing, as a network that drops packets. One difference remains: the
/// kernel accepts connections and acknowledges bytes, which wait until it is healed.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    is_cut: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl Relay {
    /// Uses the caller's runtime.
    fn start(from: Option<&Arc<File>>, to: Option<&Arc<File>>, port: u16) -> Self {
        let bound = open_socket(from.map(Arc::as_ref), || StdTcpListener::bind(("127.0.0.1", port)));
        let listener = bound.and_then(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        let listener = listener.or_fail(format_args!("port {port} cannot be opened"));
        let port = listener.local_addr().or_fail("no address").port();
        let (is_cut, watched) = watch::channel(false);
        let (to, mut task) = (to.cloned(), JoinSet::new());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, to.clone(), port, watched.clone()));
            }
        });
        Self { port, is_cut, _task: task }
    }

    /// The port on both sides.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Passes nothing on from now on, except for bytes that are on their way.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Passes on what has waited, and everything that comes.
    pub fn heal(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn serve(client: TcpStream, to: Option<Arc<File>>, port: u16, is_cut: watch::Receiver<bool>) {
    if wait_until_healed(is_cut.clone()).await.is_err() {
        return;
    }
    let connected = open_socket(to.as_deref(), || StdTcpStream::connect(("127.0.0.1", port)));
    let server = connected.and_then(|server| {
        server.set_nonblocking(true)?;
        server.set_nodelay(true)?;
        TcpStream::from_std(server)
    });
    // Without a server the client sees the end of its connection.
    let Ok(server) = server else { return };
    let _ = client.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::join!(pass(from_client, to_server, is_cut.clone()), pass(from_server, to_client, is_cut));
}

/// Passes bytes on until the end or an error of one side, which the other one sees as the end.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, is_cut: watch::Receiver<bool>) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut bytes).await.unwrap_or_default();
        if wait_until_healed(is_cut.clone()).await.is_err() {
            return;
        }
        let passed = bytes.get(..count).unwrap_or_default();
        if count == 0 || to.write_all(passed).await.is_err() {
            let _ = to.shutdown().await;
            return;
        }
    }
}

/// Fails when the relay is gone.
async fn wait_until_healed(mut is_cut: watch::Receiver<bool>) -> Result<(), watch::error::RecvError> {
    is_cut.wait_for(|is_cut| !is_cut).await.map(drop)
}

/// A socket belongs to the namespace of the thread that opens it. `None` is the host.
fn open_socket<T: Send>(namespace: Option<&File>, open: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let work = || {
        if let Some(namespace) = namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        open()
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Reads what was sent, or nothing if nothing arrives for a moment.
    async fn receive(stream: &mut TcpStream) -> Option<u8> {
        timeout(Duration::from_millis(100), stream.read_u8()).await.ok()?.ok()
    }

    #[tokio::test]
    #[ignore = "full: iproute2 and root"]
    async fn a_cut_relay_passes_nothing_and_closes_nothing() {
        let Some(network) = NodeNetwork::start() else { return };
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let connect = || open_socket(Some(&network.namespace), || StdTcpStream::connect(("127.0.0.1", port)));
        assert!(connect().is_err(), "the namespace has a network of its own");
        let relay = network.relay_to_host(port);
        let in_namespace = || {
            let client = connect().unwrap();
            client.set_nonblocking(true).unwrap();
            TcpStream::from_std(client).unwrap()
        };
        let mut client = in_namespace();
        let (mut served, _) = server.accept().await.unwrap();
        client.write_u8(1).await.unwrap();
        assert_eq!(receive(&mut served).await, Some(1));
        relay.cut();
        client.write_u8(2).await.unwrap();
        served.write_u8(3).await.unwrap();
        let later = in_namespace();
        assert_eq!((receive(&mut served).await, receive(&mut client).await), (None, None));
        assert!(timeout(Duration::from_millis(100), server.accept()).await.is_err());
        relay.heal();
        assert_eq!((receive(&mut served).await, receive(&mut client).await), (Some(2), Some(3)));
        server.accept().await.unwrap();
        drop((client, later));
        assert_eq!(served.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    #[ignore = "full: iproute2 and root"]
    async fn the_host_reaches_a_port_of_the_namespace() {
        let Some(network) = NodeNetwork::start() else { return };
        let relay = network.relay_to_namespace();
        let server =
            open_socket(Some(&network.namespace), || StdTcpListener::bind(("127.0.0.1", relay.port()))).unwrap();
        server.set_nonblocking(true).unwrap();
        let server = TcpListener::from_std(server).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", relay.port())).await.unwrap();
        let (mut served, _) = server.accept().await.unwrap();
        client.write_u8(7).await.unwrap();
        assert_eq!(receive(&mut served).await, Some(7));
    }
}
