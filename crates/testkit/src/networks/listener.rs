//! Free ports and the accept loop of the fake networks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::model::server::bind_listener;

pub(super) fn bind_free_port() -> TcpListener {
    match bind_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
        Ok(listener) => listener,
        Err(error) => panic!("no free port: {error}"),
    }
}

/// Serves each connection in a task until it is dropped; the tasks end with it.
pub(super) async fn accept_loop<S, F>(listener: TcpListener, shared: Arc<S>, serve: impl Fn(TcpStream, Arc<S>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        // A dropped accept leaves the connection in the backlog.
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                // Only small frames are sent here; with Nagle's algorithm they would wait for each other.
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
