//! The server's thread: accepts connections and executes the test's port commands.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::connection::serve_connection;
use super::shared_state::ModelServerState;

#[derive(Debug)]
pub(super) enum PortCommand {
    Close(oneshot::Sender<()>),
    Open(oneshot::Sender<()>),
}

/// Main function of the server's thread; returns when the inbox closes.
pub(super) fn run_server(
    stage: Arc<ModelServerState>,
    inbox: mpsc::Receiver<PortCommand>,
    ready: oneshot::Sender<(SocketAddr, Handle)>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime for the scripted model: {error}"),
    };
    let handle = runtime.handle().clone();
    runtime.block_on(async move {
        let bound = bind_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).and_then(|l| Ok((l.local_addr()?, l)));
        match bound {
            Ok((address, listener)) if ready.send((address, handle)).is_ok() => {
                accept_loop(listener, address, stage, inbox).await;
            }
            Ok(_) => {}
            Err(error) => panic!("no port for the scripted model: {error}"),
        }
    });
}

pub(crate) fn bind_free_port() -> TcpListener {
    match bind_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
        Ok(listener) => listener,
        Err(error) => panic!("no free port: {error}"),
    }
}

/// Binds a listener, also to a port that was just closed.
pub(crate) fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

async fn accept_loop(
    listener: TcpListener,
    address: SocketAddr,
    stage: Arc<ModelServerState>,
    mut inbox: mpsc::Receiver<PortCommand>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        // Cancel safe: a dropped accept leaves the connection in the backlog; commands and join results are received
        // whole or not at all.
        tokio::select! {
            order = inbox.recv() => match order {
                None => return,
                Some(PortCommand::Close(done)) => {
                    listener = None;
                    let _ = done.send(());
                }
                Some(PortCommand::Open(done)) => match bind_listener(address) {
                    Ok(open) => {
                        listener = Some(open);
                        let _ = done.send(());
                    }
                    Err(error) => stage.report_unexpected(format!("the port could not be opened again: {error}")),
                },
            },
            stream = accept_connection(listener.as_ref(), &stage) => {
                connections.spawn(serve_connection(stream, Arc::clone(&stage)));
            }
            Some(Err(error)) = connections.join_next() => stage.report_unexpected(format!("a connection failed: {error}")),
        }
    }
}

async fn accept_connection(listener: Option<&TcpListener>, stage: &ModelServerState) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                stage.report_unexpected(format!("accept failed: {error}"));
                // Out of descriptors: an immediate retry would fail too.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Raises the soft limit of open files to the hard one: a thousand streams need two thousand descriptors in one
/// process.
pub(super) fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Some sandboxes refuse this; then only tests with very many streams fail.
    let _ = setrlimit(Resource::Nofile, limit);
}
