//! The server's thread: accepts connections and carries out the test's orders about the port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::connection::serve;
use super::stage::Stage;

/// What a test can ask of the port.
#[derive(Debug)]
pub(super) enum Order {
    /// Refuse new connections.
    Close(oneshot::Sender<()>),
    /// Accept them again.
    Open(oneshot::Sender<()>),
}

/// Body of the server's thread; returns when the inbox closes.
pub(super) fn run(stage: Arc<Stage>, inbox: mpsc::Receiver<Order>, ready: oneshot::Sender<(SocketAddr, Handle)>) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime for the scripted model: {error}"),
    };
    let handle = runtime.handle().clone();
    runtime.block_on(async move {
        let bound = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).and_then(|l| Ok((l.local_addr()?, l)));
        match bound {
            Ok((address, listener)) if ready.send((address, handle)).is_ok() => {
                accept(listener, address, stage, inbox).await;
            }
            Ok(_) => {}
            Err(error) => panic!("no port for the scripted model: {error}"),
        }
    });
}

/// A listener at an address, also right after another one had it.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

async fn accept(listener: TcpListener, address: SocketAddr, stage: Arc<Stage>, mut inbox: mpsc::Receiver<Order>) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        // An accept that is dropped leaves the connection in the backlog; an order or a join result is taken or not.
        tokio::select! {
            order = inbox.recv() => match order {
                None => return,
                Some(Order::Close(done)) => {
                    listener = None;
                    let _ = done.send(());
                }
                Some(Order::Open(done)) => match listen(address) {
                    Ok(open) => {
                        listener = Some(open);
                        let _ = done.send(());
                    }
                    Err(error) => stage.oddity(format!("the port could not be opened again: {error}")),
                },
            },
            stream = next(listener.as_ref(), &stage) => {
                connections.spawn(serve(stream, Arc::clone(&stage)));
            }
            Some(Err(error)) = connections.join_next() => stage.oddity(format!("a connection failed: {error}")),
        }
    }
}

async fn next(listener: Option<&TcpListener>, stage: &Stage) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                stage.oddity(format!("accept failed: {error}"));
                // Out of descriptors: the next try at once would fail as well.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Raises the soft limit of open files to the hard one; a thousand streams are two thousand descriptors in one process.
pub(super) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused in some sandboxes; then only tests with very many streams will say so.
    let _ = setrlimit(Resource::Nofile, limit);
}
